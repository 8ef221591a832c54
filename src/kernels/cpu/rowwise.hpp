// Elementwise work on rows of activations. Included inside an ISA namespace after rows.hpp and
// soft_cap.hpp.

// Elements whose sum is carried in float32 before it is added up in double: at most
// kSumBlock / (4 kLanes) additions an accumulator.
inline constexpr std::int64_t kSumBlock = 256;
inline constexpr std::int64_t kRowPiece = 256;  // elements rounded to 16 bits at once: stays in L1

POLYHEAD_INLINE double sum_of_lanes(Simd::V v) {
  alignas(64) float lane[kLanes];
  Simd::store(lane, v);
  double sums[4] = {};
  for (int i = 0; i < kLanes; ++i) sums[i % 4] += static_cast<double>(lane[i]);
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

/// Sum over i < n of term(x[i]): accumulate(sum, x) adds a vector of terms; lanes past the end are
/// made to add nothing by `past`, a value whose term is zero.
template <class Accumulate>
inline double sum_row(const float* x, std::int64_t n, float past, const Accumulate& accumulate) {
  double sum = 0.0;
  for (std::int64_t block = 0; block < n; block += kSumBlock) {
    const std::int64_t end = std::min(n, block + kSumBlock);
    Simd::V part[4] = {Simd::zero(), Simd::zero(), Simd::zero(), Simd::zero()};
    std::int64_t i = block;
    for (; i + 4 * kLanes <= end; i += 4 * kLanes) {
#pragma GCC unroll 4
      for (int p = 0; p < 4; ++p) part[p] = accumulate(part[p], Simd::load(x + i + p * kLanes));
    }
    for (int p = 0; i + kLanes <= end; i += kLanes, ++p) {
      part[p] = accumulate(part[p], Simd::load(x + i));
    }
    if (i < end) {
      alignas(64) float tail[kLanes];
      for (int j = 0; j < kLanes; ++j) tail[j] = i + j < end ? x[i + j] : past;
      part[3] = accumulate(part[3], Simd::load(tail));
    }
    sum += sum_of_lanes(Simd::add(Simd::add(part[0], part[1]), Simd::add(part[2], part[3])));
  }
  return sum;
}

/// out[i] = value(first + i): value(i, count) gives a vector of which `count` lanes are kept.
template <class Value>
POLYHEAD_INLINE void fill_floats(float* out, std::int64_t first, std::int64_t count,
                                 const Value& value) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) Simd::store(out + i, value(first + i, kLanes));
  if (i < count) {
    const int left = static_cast<int>(count - i);
    Simd::store_first(out + i, value(first + i, left), left);
  }
}

template <class Value>
inline void write_row(RowOut to, std::int64_t n, const Value& value) {
  if (to.type == ElementType::float32) {
    return fill_floats(reinterpret_cast<float*>(to.data), 0, n, value);
  }
  alignas(64) float wide[kRowPiece];
  for (std::int64_t first = 0; first < n; first += kRowPiece) {
    const std::int64_t count = std::min(kRowPiece, n - first);
    fill_floats(wide, first, count, value);
    narrow_row(to.data + first * 2, wide, to.type, 2, count);
  }
}

/// Lanes past `count` are zero and their memory is not touched.
POLYHEAD_INLINE Simd::V load_some(const float* p, int count) {
  return count == kLanes ? Simd::load(p) : Simd::load_first(p, count);
}

// Terms of sums and values of rows are structs: a lambda does not inherit the target region.

struct PlainTerm {
  POLYHEAD_INLINE Simd::V operator()(Simd::V sum, Simd::V v) const { return Simd::add(sum, v); }
};
struct SquareTerm {
  float middle = 0.0f;
  POLYHEAD_INLINE Simd::V operator()(Simd::V sum, Simd::V v) const {
    const Simd::V off = Simd::sub(v, Simd::broadcast(middle));
    return Simd::fma(off, off, sum);
  }
};

struct RmsNormed {
  const float *x, *weight;
  float factor;
  POLYHEAD_INLINE Simd::V operator()(std::int64_t i, int count) const {
    return Simd::mul(Simd::mul(load_some(x + i, count), Simd::broadcast(factor)),
                     load_some(weight + i, count));
  }
};

inline void rms_norm(RowOut to, const float* x, const float* weight, float eps, std::int64_t n) {
  const double mean = sum_row(x, n, 0.0f, SquareTerm{}) / static_cast<double>(n);
  const auto factor = static_cast<float>(1.0 / __builtin_sqrt(mean + static_cast<double>(eps)));
  write_row(to, n, RmsNormed{x, weight, factor});
}

struct LayerNormed {
  const float *x, *weight, *bias;
  float middle, factor;
  POLYHEAD_INLINE Simd::V operator()(std::int64_t i, int count) const {
    const Simd::V off = Simd::sub(load_some(x + i, count), Simd::broadcast(middle));
    const Simd::V scaled =
        Simd::mul(Simd::mul(off, Simd::broadcast(factor)), load_some(weight + i, count));
    return bias != nullptr ? Simd::add(scaled, load_some(bias + i, count)) : scaled;
  }
};

inline void layer_norm(RowOut to, const float* x, const float* weight, const float* bias, float eps,
                       std::int64_t n) {
  const auto count = static_cast<double>(n);
  const double mean = sum_row(x, n, 0.0f, PlainTerm{}) / count;
  const auto middle = static_cast<float>(mean);
  const double slip = mean - static_cast<double>(middle);
  double variance = sum_row(x, n, middle, SquareTerm{middle}) / count - slip * slip;
  if (variance < 0.0) variance = 0.0;
  const double root = __builtin_sqrt(variance + static_cast<double>(eps));
  write_row(to, n, LayerNormed{x, weight, bias, middle, static_cast<float>(1.0 / root)});
}

/// x / (1 + exp(-z)) by exp(-|z|), which neither overflows nor cancels.
POLYHEAD_INLINE Simd::V times_sigmoid(Simd::V x, Simd::V z) {
  const Simd::V one = Simd::broadcast(1.0f);
  const Simd::V e = Simd::exp2(Simd::mul(Simd::abs(z), Simd::broadcast(-kLog2E)));
  const Simd::V top = Simd::select(Simd::greater(Simd::zero(), z), e, one);
  return Simd::mul(x, Simd::div(top, Simd::add(one, e)));
}

struct Silu {
  POLYHEAD_INLINE Simd::V operator()(Simd::V x) const { return times_sigmoid(x, x); }
};

/// 0.5 x (1 + tanh(z / 2)) is x / (1 + exp(-z)), with z = 2 sqrt(2 / pi) (x + 0.044715 x^3).
struct GeluTanh {
  POLYHEAD_INLINE Simd::V operator()(Simd::V x) const {
    const Simd::V cubic = Simd::fma(Simd::mul(x, x), Simd::broadcast(0.07135481627362154f),
                                    Simd::broadcast(1.5957691216057308f));
    return times_sigmoid(x, Simd::mul(x, cubic));
  }
};

/// x Phi(x), Phi(x) = erfc(-x / sqrt 2) / 2. With z = |x| / sqrt 2 and t = 1 / (1 + z / 2),
/// erfc(z) = t 2^(P(t) - z^2 log2 e): P interpolates at the Chebyshev nodes of [0.17, 1], where it
/// leaves an error of 1e-7 in erfc.
struct Gelu {
  POLYHEAD_INLINE Simd::V operator()(Simd::V x) const {
    constexpr float kP[] = {0.2104257494211197f,  -0.9891772270202637f,  1.6842607259750366f,
                            -1.0235894918441772f, -0.10143581032752991f, -0.0049255844205617905f,
                            0.05186814069747925f, 0.5574803948402405f,   1.4407494068145752f,
                            -1.8256562948226929f};
    const Simd::V one = Simd::broadcast(1.0f);
    const Simd::V size = Simd::abs(x);
    const Simd::V t = Simd::div(one, Simd::fma(size, Simd::broadcast(0.35355339059327376f), one));
    Simd::V p = Simd::broadcast(kP[0]);
#pragma GCC unroll 9
    for (int i = 1; i < 10; ++i) p = Simd::fma(p, t, Simd::broadcast(kP[i]));
    const Simd::V square = Simd::mul(size, size);
    const Simd::V e = Simd::exp2(Simd::fnma(square, Simd::broadcast(0.5f * kLog2E), p));
    const Simd::V half = Simd::mul(Simd::mul(Simd::broadcast(0.5f), t), e);  // Phi(-|x|)
    const Simd::V phi = Simd::select(Simd::greater(Simd::zero(), x), half, Simd::sub(one, half));
    return Simd::mul(x, phi);
  }
};

template <class Function>
struct Activated {
  const float *x, *up;
  POLYHEAD_INLINE Simd::V operator()(std::int64_t i, int count) const {
    const Simd::V value = Function()(load_some(x + i, count));
    return up != nullptr ? Simd::mul(value, load_some(up + i, count)) : value;
  }
};

template <class Function>
inline void activate_row(RowOut to, const float* x, const float* up, std::int64_t n) {
  write_row(to, n, Activated<Function>{x, up});
}

inline RowOut floats_out(float* to) {
  return {reinterpret_cast<std::byte*>(to), ElementType::float32};
}

struct Added {
  const float *a, *b;
  POLYHEAD_INLINE Simd::V operator()(std::int64_t i, int count) const {
    return Simd::add(load_some(a + i, count), load_some(b + i, count));
  }
};

inline void add_row(float* to, const float* term, std::int64_t n) {
  write_row(floats_out(to), n, Added{to, term});
}

struct Capped {
  const float* x;
  SoftCap cap;
  POLYHEAD_INLINE Simd::V operator()(std::int64_t i, int count) const {
    return cap(load_some(x + i, count));
  }
};

inline void soft_cap_row(float* x, float cap, std::int64_t n) {
  write_row(floats_out(x), n, Capped{x, {cap, 1.0f / cap}});
}

/// NaN is passed over.
inline float largest_value(const float* x, std::int64_t n) {
  Simd::V most[4];
  for (Simd::V& m : most) m = Simd::broadcast(-kInfinity);
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
#pragma GCC unroll 4
    for (int p = 0; p < 4; ++p) most[p] = Simd::max(Simd::load(x + i + p * kLanes), most[p]);
  }
  alignas(64) float lane[4 * kLanes];
  for (int p = 0; p < 4; ++p) Simd::store(lane + p * kLanes, most[p]);
  float value = lane[0];
  for (const float candidate : lane) value = candidate > value ? candidate : value;
  for (; i < n; ++i) value = x[i] > value ? x[i] : value;
  return value;
}

struct ExpTerm {
  float reference;
  POLYHEAD_INLINE Simd::V operator()(Simd::V sum, Simd::V v) const {
    const Simd::V t = Simd::sub(v, Simd::broadcast(reference));
    return Simd::add(sum, Simd::exp2(Simd::mul(t, Simd::broadcast(kLog2E))));
  }
};

inline double log_sum_exp(const float* x, std::int64_t n) {
  const float most = largest_value(x, n);
  if (most == -kInfinity || most == kInfinity) {
    float sum = most;  // NaN where there is one beside it
    for (std::int64_t i = 0; i < n; ++i) sum += x[i] == -kInfinity ? 0.0f : x[i];
    return static_cast<double>(sum);
  }
  const double sum = sum_row(x, n, -kInfinity, ExpTerm{most});
  return __builtin_log(sum) + static_cast<double>(most);
}

inline constexpr RowTable kRowTable{
    rms_norm, layer_norm,   activate_row<Silu>, activate_row<Gelu>, activate_row<GeluTanh>,
    add_row,  soft_cap_row, log_sum_exp};
