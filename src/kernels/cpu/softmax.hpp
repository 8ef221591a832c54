// The arithmetic of a softmax row that prefill and decoding share: whatever they compute with it,
// they compute by the same operations. Included inside an ISA namespace after a Simd struct.

/// How a score becomes an exponent of 2: score * unit - max * unit as one fma, (score - max) * unit
/// in two steps (natural units, after modifiers), or as one fma where max * unit is near enough and
/// in two steps where it is not.
enum class Exponent { fused, natural, guarded };

/// Calls `f(form)`, a constant of what `form` is.
template <class F>
POLYHEAD_INLINE void with_exponent(Exponent form, const F& f) {
  switch (form) {
    case Exponent::fused:
      return f(std::integral_constant<Exponent, Exponent::fused>{});
    case Exponent::natural:
      return f(std::integral_constant<Exponent, Exponent::natural>{});
    case Exponent::guarded:
      return f(std::integral_constant<Exponent, Exponent::guarded>{});
  }
}

// max * unit is rounded, and with it all weights of a row; this far, by less than bfloat16 is.
inline constexpr float kMostFused = 0x1p12f;

/// The rules of one element path and one call that prefill and decoding share: whatever is computed
/// from them is computed by the same operations in both.
struct Rules {
  Exponent exponent;
  float q_factor;                 // multiplies q when it is packed
  float score_factor;             // multiplies a score before its modifiers
  float unit;                     // score units to log2
  float log2;                     // what doubles a weight, in score units
  double natural;                 // score units to natural logarithm
  float most_fused = kMostFused;  // |max * unit| up to which the exponent is one fma
  bool modified;
  bool only_bias;  // no modifier but a bias, and nothing left to multiply before it but bfloat16's
  bool rounds;     // weights, to bfloat16

  Rules(const AttendCall& call, bool bfloat16_dot) {
    const Shares scale = shares_of(call.score.scale, bfloat16_dot);
    const double log2_scale = scale.of_score * static_cast<double>(kLog2E);
    modified = call.score.modifies_scores() || !may_be_unit(log2_scale);
    rounds = bfloat16_dot;
    only_bias = call.score.bias.data != nullptr && call.score.soft_cap == 0.0f &&
                !call.score.alibi && call.score.custom_count == 0 &&
                (bfloat16_dot || scale.of_score == 1.0);
    exponent = modified ? Exponent::natural : Exponent::fused;
    // Not by way of double: kernels flush what a conversion makes subnormal, a compiler may omit
    // it.
    score_factor = !modified      ? 1.0f
                   : bfloat16_dot ? call.score.scale
                                  : static_cast<float>(scale.of_score);
    unit = static_cast<float>(modified ? static_cast<double>(kLog2E) : log2_scale);
    q_factor = static_cast<float>(scale.of_q);
    if (!modified && !bfloat16_dot && scale.of_score == 1.0) {
      // Half of log2(e) is less than 1: what does not overflow in natural units does not in these.
      q_factor = static_cast<float>(scale.of_q * static_cast<double>(kLog2E) / 2.0);
      unit = 2.0f;
      most_fused = std::numeric_limits<float>::max();  // nothing is rounded
    }
    natural = modified ? 1.0 : static_cast<double>(unit) * kLn2;
    log2 = 1.0f / unit;
  }

 private:
  /// What of the scale multiplies q, and what its scores.
  struct Shares {
    double of_q, of_score;
  };
  /// All of it q, but for bfloat16 and where that alone might leave the range of float32: then
  /// each about its root.
  static Shares shares_of(float scale, bool bfloat16_dot) {
    const double all = static_cast<double>(scale), size = std::fabs(all);
    if (bfloat16_dot) return {1.0, all};
    if (size == 0.0 || (size >= 0x1p-40 && size <= 0x1p40)) return {all, 1.0};
    int exponent = 0;
    std::frexp(size, &exponent);
    const double root = std::ldexp(1.0, exponent / 2);
    return {std::copysign(root, all), size / root};
  }

  /// Whether differences of scores and what they are multiplied with stay within float32 as far as
  /// a weight can tell them from infinity.
  static bool may_be_unit(double x) { return x >= 0x1p-80 && x <= 0x1p80; }
};

// A difference of scores beyond which every weight is 0, whatever the unit; sums of what it
// multiplies stay finite.
inline constexpr float kFarthest = -0x1p100f;

/// How far `score` is from its reference, at most kFarthest; NaN stays.
POLYHEAD_INLINE Simd::V distance_of(Simd::V score, Simd::V reference) {
  return Simd::max(Simd::broadcast(kFarthest), Simd::sub(score, reference));
}

/// A row that has seen nothing keeps -inf; its exponents must not become inf - inf.
POLYHEAD_INLINE Simd::V reference_of(Simd::V max) {
  return Simd::select(Simd::equal(max, Simd::broadcast(-kInfinity)), Simd::zero(), max);
}

/// What a row's maximum is in its exponents.
template <Exponent kForm>
POLYHEAD_INLINE Simd::V exponent_base(Simd::V max, Simd::V unit) {
  const Simd::V finite = reference_of(max);
  if constexpr (kForm == Exponent::fused)
    return Simd::mul(Simd::sub(Simd::zero(), finite), unit);
  else
    return finite;
}
POLYHEAD_INLINE Simd::M beyond(Simd::V x, float most) {
  return Simd::greater(Simd::abs(x), Simd::broadcast(most));
}

/// The exponent of one score given what `exponent_base` made of the row's maximum.
template <Exponent kForm>
POLYHEAD_INLINE Simd::V exponent_of(Simd::V score, Simd::V base, Simd::V unit) {
  if constexpr (kForm == Exponent::fused) return Simd::fma(score, unit, base);
  const Simd::V apart = Simd::mul(Simd::sub(score, base), unit);
  if constexpr (kForm == Exponent::natural) return apart;
  const Simd::V fused = exponent_base<Exponent::fused>(base, unit);
  return Simd::select(beyond(fused, kMostFused), apart, Simd::fma(score, unit, fused));
}

/// The form for rows whose maxima are max[0 .. vectors * kLanes).
inline Exponent exponent_for(const Rules& rules, const float* max, int vectors) {
  if (rules.exponent != Exponent::fused) return rules.exponent;
  const Simd::V unit = Simd::broadcast(rules.unit);
  for (int v = 0; v < vectors; ++v) {
    const Simd::V most = Simd::load(max + v * Simd::kLanes);
    if (Simd::any(beyond(exponent_base<Exponent::fused>(most, unit), rules.most_fused)))
      return Exponent::guarded;
  }
  return Exponent::fused;
}

/// By how much, in score units, a block's maximum may exceed the reference of a row that has summed
/// `total`. Where weights are rounded, one that would be more than a quarter of that becomes the
/// reference: relative to itself it is 1, which rounding leaves alone.
POLYHEAD_INLINE Simd::V slack(Simd::V total, const Rules& rules) {
  const Simd::V most = Simd::broadcast(kRescaleLog2 * rules.log2);
  if (!rules.rounds) return most;
  // log2(total / 4), at most 0.09 too low: the bits of a float32, less those of 4, are 2^23 times
  // it.
  const Simd::I above = Simd::add_int(Simd::bits(total), Simd::broadcast_int(-0x40800000));
  const Simd::V log2 = Simd::max(Simd::to_float(above), Simd::zero());
  return Simd::min(Simd::mul(log2, Simd::broadcast(0x1p-23f * rules.log2)), most);
}

/// What a new block maximum does to a row: the new reference and the factor for what has been
/// summed so far.
struct Rescale {
  Simd::V max, factor;
  bool needed;
};
POLYHEAD_INLINE Rescale rescale(Simd::V max, Simd::V block_max, Simd::V total, const Rules& rules) {
  const Simd::M grows = Simd::greater(block_max, Simd::add(max, slack(total, rules)));
  if (!Simd::any(grows)) return {max, Simd::broadcast(1.0f), false};
  const Simd::V next = Simd::select(grows, block_max, max);
  const Simd::V factor =
      Simd::exp2(Simd::mul(Simd::sub(max, block_max), Simd::broadcast(rules.unit)));
  return {next, Simd::select(grows, factor, Simd::broadcast(1.0f)), true};
}

/// Folding one split's state into the running one: factors for both and the joint reference.
struct Fold {
  Simd::V max, running, added;
};
POLYHEAD_INLINE Fold fold(Simd::V running, Simd::V added, const Rules& rules) {
  const Simd::V max = Simd::select(Simd::greater(added, running), added, running);
  const Simd::V safe = reference_of(max), unit = Simd::broadcast(rules.unit);
  return {max, Simd::exp2(Simd::mul(Simd::sub(running, safe), unit)),
          Simd::exp2(Simd::mul(Simd::sub(added, safe), unit))};
}

/// One row's end: the sink joins the denominator; the factor for its output, its LSE and
/// statistics.
struct RowEnd {
  float factor = 0.0f, lse = -kInfinity, entropy = 0.0f, max_weight = 0.0f;
};
/// ln(exp(a) + exp(b)); b may be -inf.
inline double join_logs(double a, double b) {
  if (b == -std::numeric_limits<double>::infinity() || a != a) return a;
  const double high = std::max(a, b), low = std::min(a, b);
  return high + std::log1p(std::exp(low - high));
}

/// w = p / z: -sum w ln w = (sum p) ln z / z - (sum p ln p) / z, with p relative to the reference.
inline float entropy_of(double sum, double sum_of_p_ln_p, double z) {
  if (z > std::numeric_limits<double>::max()) return 0.0f;  // a sink beside which all weights are 0
  const double entropy = (sum * std::log(z) - sum_of_p_ln_p) / z;
  return static_cast<float>(entropy < 0.0 ? 0.0 : entropy);  // NaN stays
}

inline RowEnd end_row(const AttendCall& call, const Rules& rules, std::int64_t head, float max,
                      float total, float exact_total, float spread, float best) {
  RowEnd end;
  if (total == 0.0f)
    return end;  // nothing visible: the largest visible score always adds a weight of 1
  const double reference = static_cast<double>(max) * rules.natural;
  double sink = 0.0, logit = -std::numeric_limits<double>::infinity();
  if (call.score.sink) {
    logit = static_cast<double>(call.score.sink[head * call.score.sink_stride]);
    sink = std::exp(logit - reference);
  }
  const double keep = 1.0 - static_cast<double>(call.score.dropout);
  end.factor = static_cast<float>(1.0 / ((static_cast<double>(total) + sink) * keep));
  if (call.lse.data)
    end.lse = static_cast<float>(
        join_logs(reference + std::log(static_cast<double>(exact_total)), logit));
  if (call.entropy.data || call.max_weight.data) {
    const double z = static_cast<double>(exact_total) + sink;
    end.entropy = entropy_of(static_cast<double>(exact_total),
                             static_cast<double>(spread) * rules.natural, z);
    end.max_weight = static_cast<float>(
        std::exp((static_cast<double>(best) - static_cast<double>(max)) * rules.natural) / z);
  }
  return end;
}

inline void write_row_values(const AttendCall& call, const Sequence& s, std::int64_t query,
                             std::int64_t head, const RowEnd& end, std::int64_t max_key) {
  if (call.lse.data) std::memcpy(row_address(call.lse, s, query, head), &end.lse, 4);
  if (call.entropy.data) std::memcpy(row_address(call.entropy, s, query, head), &end.entropy, 4);
  if (call.max_weight.data)
    std::memcpy(row_address(call.max_weight, s, query, head), &end.max_weight, 4);
  if (call.max_key.data) std::memcpy(row_address(call.max_key, s, query, head), &max_key, 8);
}
