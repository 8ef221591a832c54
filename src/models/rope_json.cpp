#include "models/rope_json.hpp"

#include <cmath>
#include <tuple>

#include "base/limits.hpp"

namespace polyhead::inline v0::models {
namespace {

using formats::quote;

constexpr const char* kOriginal = "original_max_position_embeddings";

void refuse_partial(const Fields& from) {
  if (from.real("partial_rotary_factor", 1.0) != 1.0)
    from.refuse("partial_rotary_factor", "is not 1");
}

/// Whether two readings of one file rotate alike.
bool same(const RopeConfig& a, const RopeConfig& b) {
  const auto all = [](const RopeConfig& r) {
    return std::tie(r.base, r.scaling, r.factor, r.original_length, r.beta_fast, r.beta_slow,
                    r.truncate, r.attention_factor, r.mscale, r.mscale_all_dim, r.low_freq_factor,
                    r.high_freq_factor, r.frequency_divisors);
  };
  return all(a) == all(b);
}

class Reader {
 public:
  Reader(const Fields& fields, RopeOf layers, std::int64_t context)
      : fields_(fields), layers_(layers), made_for_(context), context_(context) {}

  RopeConfig read() {
    const bool local = layers_ == RopeOf::gemma_local;
    RopeConfig plain;
    plain.pairing = RopePairing::half_split;
    plain.base = local ? fields_.positive("rope_local_base_freq", 10000.0)
                       : fields_.positive("rope_theta", gemma() ? 1e6 : 10000.0);
    refuse_partial(fields_);
    RopeConfig newer = parameters(plain);
    if (local || !fields_.has("rope_scaling")) return newer;
    const Fields scaling = fields_.object("rope_scaling");
    if (gemma() && scaling.has("type") && !scaling.has("rope_type")) {
      scaling.refuse("type", "is given without " + scaling.full_name("rope_type") +
                                 " (expected both: versions of Transformers differ in what it is)");
    }
    // gemma3 adds its older field to the newer one; in others one of them would be dropped.
    const bool adds =
        !fields_.has("rope_parameters") || (gemma() && newer.scaling == RopeScaling::none);
    RopeConfig older = scaled(scaling, adds ? newer : plain);
    if (!adds && !same(newer, older)) {
      fields_.refuse("rope_scaling", "and " + fields_.full_name("rope_parameters") +
                                         " are given and differ (expected one of them)");
    }
    return older;
  }

  std::int64_t context() const { return context_; }

 private:
  bool gemma() const { return layers_ != RopeOf::all; }

  RopeConfig parameters(const RopeConfig& plain) {
    if (!fields_.has("rope_parameters")) return plain;
    const Fields all = fields_.object("rope_parameters");
    if (gemma()) {
      const char* const type =
          layers_ == RopeOf::gemma_local ? "sliding_attention" : "full_attention";
      return all.has(type) ? scaled(all.object(type), plain) : plain;
    }
    for (const char* type : {"full_attention", "sliding_attention"}) {
      if (all.has(type)) all.refuse(type, "is given (by layer type only in gemma3)");
    }
    return scaled(all, plain);
  }

  /// Beside the scaling or, of architectures with one embedding, at the top.
  std::int64_t original_length(const Fields& from) const {
    if (gemma() || !fields_.has(kOriginal)) return from.integer(kOriginal, made_for_);
    const std::int64_t top = fields_.integer(kOriginal);
    const std::int64_t nested = from.integer(kOriginal, top);
    if (nested != top) {
      from.refuse(kOriginal, "is " + std::to_string(nested) + ", and " +
                                 fields_.full_name(kOriginal) + " is " + std::to_string(top) +
                                 " (expected one of them)");
    }
    return top;
  }

  RopeConfig scaled(const Fields& from, RopeConfig rope) {
    refuse_partial(from);
    rope.base = from.positive("rope_theta", rope.base);
    const std::string type = from.text("rope_type", from.text("type", "default"));
    if (type == "default") return rope;
    if (type == "longrope") return longrope(from, rope);
    const auto require = [&](const char* name) {
      if (!from.has(name)) from.refuse(name, "is missing (rope_type " + quote(type) + ")");
    };
    if (type != "linear" && type != "llama3" && type != "yarn" && type != "dynamic") {
      from.refuse("rope_type", "is " + quote(type) + " (expected default, linear, llama3, yarn, " +
                                   "longrope or dynamic)");
    }
    require("factor");
    // Dynamic NTK changes frequencies only beyond max_position_embeddings, the context here.
    if (type == "dynamic") return rope;
    rope.factor = from.real("factor", 1.0);
    if (type == "linear") {
      rope.scaling = RopeScaling::linear;
      return rope;
    }
    rope.original_length = original_length(from);
    if (type == "yarn") return yarn(from, rope);
    rope.scaling = RopeScaling::llama3;
    require("low_freq_factor");
    require("high_freq_factor");
    rope.low_freq_factor = from.real("low_freq_factor", rope.low_freq_factor);
    rope.high_freq_factor = from.real("high_freq_factor", rope.high_freq_factor);
    return rope;
  }

  static RopeConfig yarn(const Fields& from, RopeConfig rope) {
    rope.scaling = RopeScaling::yarn;
    rope.beta_fast = from.real("beta_fast", rope.beta_fast);
    rope.beta_slow = from.real("beta_slow", rope.beta_slow);
    rope.truncate = from.boolean("truncate", rope.truncate);
    rope.mscale = from.real("mscale", rope.mscale);
    rope.mscale_all_dim = from.real("mscale_all_dim", rope.mscale_all_dim);
    if (from.has("attention_factor")) rope.attention_factor = from.real("attention_factor", 1.0);
    return rope;
  }

  /// LongRoPE has one divisor a pair for texts up to the original length and others for longer
  /// ones, where a token's rotation depends on how long its text becomes. A token here has the same
  /// bits in any text, so the original length is the context. Source: Ding et al. 2024.
  RopeConfig longrope(const Fields& from, RopeConfig rope) {
    const std::int64_t length = original_length(from);
    if (length < 2) from.refuse(kOriginal, "is not at least 2");
    const double stretch =
        from.real("factor", static_cast<double>(made_for_) / static_cast<double>(length));
    const double factor =
        stretch <= 1.0 ? 1.0
                       : std::sqrt(1.0 + std::log(stretch) / std::log(static_cast<double>(length)));
    rope.frequency_divisors =
        from.reals("short_factor", static_cast<std::size_t>(base::kMaxDim / 2));
    rope.scaling = RopeScaling::yarn;  // of factor 1: frequencies as they are, cos and sin times
    rope.attention_factor = from.real("attention_factor", factor);
    rope.original_length = length;
    context_ = std::min(made_for_, length);
    return rope;
  }

  const Fields& fields_;
  RopeOf layers_;
  std::int64_t made_for_, context_;
};

}  // namespace

RopeConfig rope_from_json(const Fields& fields, RopeOf layers, ModelConfig& config) {
  Reader reader(fields, layers, config.context_length);
  RopeConfig rope = reader.read();
  config.context_length = reader.context();
  return rope;
}

}  // namespace polyhead::inline v0::models
