// Decoding on the integer path: scores and sums of few rows against codes, in integers. Included
// inside an ISA namespace after decode_codes.hpp, decode_sums.hpp and path_integer.hpp.

/// The weighted sum of a block's values. Lanes are dims; a block of 32 of them is an integer sum
/// over all keys of the block, whatever pages they lie on.
template <class Path>
struct DecodeIntegerSums : DecodeSums<Path> {
  using Sums = DecodeSums<Path>;
  using Few = FewRows<Path>;
  using Run = typename Sums::Run;
  using Runs = typename Sums::Runs;
  using Sums::call, Sums::few;
  static constexpr int kPairs = kKeyBlock / 2;

  template <class Elements>
  void block(std::int64_t first, int b) {
    const int keys = few.keys_of(first);
    this->rescale(b);
    const Runs runs = this->runs_of(first, b, 0, keys);
    for (std::int64_t at = 0; at < Path::blocks(call.value_dim); ++at) {
      Rounded rounded;
      round(rounded, runs, at);
      by_rows<kRowsShare>(few.row_count,
                          [&](auto n, int r) { sum_block<Elements, n>(runs, rounded, r, at); });
    }
  }

 private:
  /// All rows' weights times the scales of a block of dims.
  struct Rounded {
    alignas(64) float pairs[Few::kRowsMost][kPairs];
    float back[Few::kRowsMost];
  };

  float* weights_of(int r, int b) const {
    return few.memory.scores + r * Few::kPhase + b * kKeyBlock;
  }

  /// The scales of a block of dims, a key each; 0 past the end.
  void read_scales(float* to, const Runs& runs, std::int64_t at) const {
    const Scales& step = call.v.scales;
    int key = 0;
    for (int i = 0; i < runs.count; ++i) {
      const Run& run = runs.each[i];
      const float* from = run.rows.scales + at * step.block;
      key = run.at + run.keys;
      if (step.token == 1)
        std::memcpy(to + run.at, from, static_cast<std::size_t>(run.keys) * 4);
      else
        for (int j = 0; j < run.keys; ++j) to[run.at + j] = from[j * step.token];
    }
    std::fill(to + key, to + kKeyBlock, 0.0f);
  }

  void round(Rounded& to, const Runs& runs, std::int64_t at) const {
    alignas(64) float scales[kKeyBlock];
    read_scales(scales, runs, at);
    Simd::V scale[kKeyBlock / kLanes];
    Simd::I most = Simd::broadcast_int(0);
    for (int i = 0; i < kKeyBlock / kLanes; ++i) {
      scale[i] = Simd::load(scales + i * kLanes);
      most = larger(most, Simd::bits(scale[i]));
    }
    const bool plain = all_numbers(most);
    for (int r = 0; r < few.row_count; ++r) {
      if (plain)
        round_row<true>(to, r, weights_of(r, runs.b), scale);
      else
        round_row<false>(to, r, weights_of(r, runs.b), scale);
    }
  }

  template <bool kPlain>
  POLYHEAD_INLINE static void round_row(Rounded& to, int r, const float* p,
                                        const Simd::V (&scale)[kKeyBlock / kLanes]) {
    Simd::V x[kKeyBlock / kLanes];
    Simd::I most = Simd::broadcast_int(0);
#pragma GCC unroll 4
    for (int i = 0; i < kKeyBlock / kLanes; ++i) {
      x[i] = Path::template scaled<kPlain>(Simd::load(p + i * kLanes), scale[i]);
      most = larger(most, Path::template size_of<kPlain>(x[i]));
    }
    const Fit fit = fit_of(Simd::broadcast_int(_mm512_reduce_max_epu32(most)));
    to.back[r] = _mm512_cvtss_f32(fit.back);
#pragma GCC unroll 2
    for (int i = 0; i < kKeyBlock / kLanes; i += 2)
      Simd::store(to.pairs[r] + i * kLanes / 2,
                  join_lanes(whole_numbers(x[i], fit.to_int), whole_numbers(x[i + 1], fit.to_int)));
  }

  template <class Elements, int kR>
  void sum_block(const Runs& runs, const Rounded& weights, int first_row, std::int64_t at) const {
    constexpr std::int64_t kColumn = Elements::byte_of(Path::kBlock);
    constexpr int kEvery = 2;  // pairs of keys between lines fetched
    const Operand& x = call.v;
    const std::int64_t column = at * kColumn;
    Simd::V acc[kR][2];
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) acc[r][0] = acc[r][1] = Simd::zero();
    for (int i = 0; i < runs.count; ++i) {
      const Run& run = runs.each[i];
      typename Sums::template ValuesAhead<kColumn> ahead(run, x.token, few.dense_values, column);
      const float* p = weights.pairs[first_row] + run.at / 2;
      const std::byte* row = run.rows.data + column;
      const auto add_pair = [&](int s, const std::byte* odd) POLYHEAD_LAMBDA {
        Simd::V value[2];
        Path::template value_pairs<Elements>(value, row + 2 * s * x.token, odd);
#pragma GCC unroll 8
        for (int r = 0; r < kR; ++r) {
          const Simd::V weight = Simd::broadcast(p[r * kPairs + s]);
          acc[r][0] = Path::Dot::dot(value[0], weight, acc[r][0]);
          acc[r][1] = Path::Dot::dot(value[1], weight, acc[r][1]);
        }
      };
      const int pairs = run.keys / 2;
      int s = 0;
      for (; s + kEvery <= pairs; s += kEvery) {
        if (first_row == 0) ahead.template fetch_next<2 * kEvery>();
#pragma GCC unroll 2
        for (int next = s; next < s + kEvery; ++next)
          add_pair(next, row + (2 * next + 1) * x.token);
      }
      for (; s < pairs; ++s) add_pair(s, row + (2 * s + 1) * x.token);
      if (run.keys % 2 != 0) add_pair(s, Path::no_row());
    }
    add_sums<kR>(acc, weights, first_row, at * Path::kBlock);
  }

  template <int kR>
  POLYHEAD_INLINE void add_sums(const Simd::V (&acc)[kR][2], const Rounded& weights, int first_row,
                                std::int64_t d) const {
    const std::int64_t row_floats = Few::pad(call.value_dim);
    float* o = few.memory.added + first_row * row_floats + d;
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
      const Simd::V back = Simd::broadcast(weights.back[first_row + r]);
      for (int i = 0; i < 2 && d + i * kLanes < row_floats; ++i) {
        float* to = o + r * row_floats + i * kLanes;
        Simd::store(to, Simd::fma(Simd::to_float(Simd::bits(acc[r][i])), back, Simd::load(to)));
      }
    }
  }
};
