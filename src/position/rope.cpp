// Rotary frequencies and their scalings, in double.
#include "polyhead/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <utility>

#include "base/float_environment.hpp"
#include "base/number_text.hpp"
#include "base/refuse.hpp"
#include "position/rotation.hpp"

namespace polyhead::inline v0 {
namespace position {
namespace {

using base::number_text;
using base::refuse;

void check_positive(const char* call, const char* name, double value) {
  if (!std::isfinite(value) || value <= 0) {
    refuse(call, "rope.", name, " (", number_text(value), ") is not positive and finite");
  }
}

void check_yarn(const char* call, const RopeConfig& config) {
  check_positive(call, "beta_fast", config.beta_fast);
  check_positive(call, "beta_slow", config.beta_slow);
  if (config.beta_fast < config.beta_slow) {
    refuse(call, "rope.beta_fast (", number_text(config.beta_fast),
           ") is less than rope.beta_slow (", number_text(config.beta_slow), ")");
  }
  if (config.base <= 1) {
    refuse(call, "rope.base (", number_text(config.base), ") must be above 1 for yarn");
  }
  if (config.attention_factor) {
    check_positive(call, "attention_factor", *config.attention_factor);
  }
  for (const auto& [name, mscale] :
       {std::pair{"mscale", config.mscale}, {"mscale_all_dim", config.mscale_all_dim}}) {
    if (!std::isfinite(mscale) || mscale < 0) {
      refuse(call, "rope.", name, " (", number_text(mscale), ") is negative or not finite");
    }
  }
}

/// Fields that another scaling would read, or none.
void check_unread(const char* call, const RopeConfig& config) {
  const RopeConfig usual;
  const RopeScaling scaling = config.scaling;
  const bool yarn = scaling == RopeScaling::yarn, llama3 = scaling == RopeScaling::llama3;
  const struct {
    const char* name;
    bool given, read;
    double value;
    const char* needs;
  } fields[] = {
      {"factor", config.factor != usual.factor, scaling != RopeScaling::none, config.factor, "a"},
      {"original_length", config.original_length != 0, scaling != RopeScaling::none,
       static_cast<double>(config.original_length), "a"},
      {"beta_fast", config.beta_fast != usual.beta_fast, yarn, config.beta_fast, "yarn as"},
      {"beta_slow", config.beta_slow != usual.beta_slow, yarn, config.beta_slow, "yarn as"},
      {"truncate", !config.truncate, yarn, 0, "yarn as"},
      {"attention_factor", config.attention_factor.has_value(), yarn,
       config.attention_factor.value_or(0), "yarn as"},
      {"mscale", config.mscale != 0, yarn, config.mscale, "yarn as"},
      {"mscale_all_dim", config.mscale_all_dim != 0, yarn, config.mscale_all_dim, "yarn as"},
      {"low_freq_factor", config.low_freq_factor != usual.low_freq_factor, llama3,
       config.low_freq_factor, "llama3 as"},
      {"high_freq_factor", config.high_freq_factor != usual.high_freq_factor, llama3,
       config.high_freq_factor, "llama3 as"}};
  for (const auto& field : fields) {
    if (!field.given || field.read) continue;
    refuse(call, "rope.", field.name, " (", number_text(field.value), ") is given without ",
           field.needs, " rope.scaling");
  }
}

std::int64_t rotary_dims(const RopeConfig& config, std::int64_t head_dim) {
  return config.rotary_dims == 0 ? head_dim : config.rotary_dims;
}

/// The ramp of yarn: 0 for pairs that keep their frequency, 1 for those divided by the factor.
struct Ramp {
  double low, high;
  double at(double pair) const { return std::clamp((pair - low) / (high - low), 0.0, 1.0); }
};

/// Where the ramp begins and ends: the pairs that turn beta_fast and beta_slow times in
/// original_length positions.
Ramp yarn_ramp(const RopeConfig& config, double dims) {
  const auto pair_of_turns = [&](double turns) {
    return dims *
           std::log(static_cast<double>(config.original_length) / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(config.base));
  };
  double low = pair_of_turns(config.beta_fast), high = pair_of_turns(config.beta_slow);
  if (config.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dims - 1);
  if (low == high) high += 0.001;  // as Hugging Face does: a step, not a division by zero
  return {low, high};
}

double llama3_frequency(const RopeConfig& config, double frequency) {
  const double length = static_cast<double>(config.original_length);
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength > length / config.low_freq_factor) return frequency / config.factor;
  if (wavelength < length / config.high_freq_factor) return frequency;
  const double smooth = (length / wavelength - config.low_freq_factor) /
                        (config.high_freq_factor - config.low_freq_factor);
  return (1 - smooth) * frequency / config.factor + smooth * frequency;
}

double yarn_mscale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

/// All of a configuration that does not depend on the heads it is for.
void check_scaling(const char* call, const RopeConfig& config) {
  if (config.pairing == RopePairing::unstated)
    refuse(call, "rope.pairing is not stated; expected half_split or interleaved");
  if (config.pairing != RopePairing::half_split && config.pairing != RopePairing::interleaved) {
    refuse(call, "rope.pairing (", static_cast<int>(config.pairing),
           ") is no pairing, expected half_split or interleaved");
  }
  check_positive(call, "base", config.base);
  if (!std::isfinite(config.factor) || config.factor < 1) {
    refuse(call, "rope.factor (", number_text(config.factor), ") is not finite and at least 1");
  }
  check_unread(call, config);
  switch (config.scaling) {
    case RopeScaling::none:
    case RopeScaling::linear:
    case RopeScaling::ntk_aware:
      return;
    case RopeScaling::yarn:
    case RopeScaling::llama3:
      break;
    default:
      refuse(call, "rope.scaling (", static_cast<int>(config.scaling),
             ") is no scaling, expected none, linear, ntk_aware, yarn or llama3");
  }
  if (config.original_length <= 0) {
    refuse(call, "rope.original_length (", config.original_length, ") is not positive");
  }
  if (config.scaling == RopeScaling::yarn) return check_yarn(call, config);
  check_positive(call, "low_freq_factor", config.low_freq_factor);
  check_positive(call, "high_freq_factor", config.high_freq_factor);
  if (config.high_freq_factor <= config.low_freq_factor) {
    refuse(call, "rope.high_freq_factor (", number_text(config.high_freq_factor),
           ") is not above rope.low_freq_factor (", number_text(config.low_freq_factor), ")");
  }
}

}  // namespace

void check_rope(const char* call, const RopeConfig& config, std::int64_t head_dim) {
  const base::FloatEnvironment environment(base::Subnormals::kept);  // small divisors are not 0
  check_scaling(call, config);
  const std::int64_t dims = rotary_dims(config, head_dim);
  if (config.rotary_dims == 0 && (head_dim < 0 || head_dim % 2 != 0)) {
    refuse(call, "rope turns all of ", head_dim,
           " dims, expected an even number of them or rope.rotary_dims");
  }
  if (dims < 0 || dims > head_dim || dims % 2 != 0) {
    refuse(call, "rope.rotary_dims (", dims, ") is not an even number from 0 to head_dim (",
           head_dim, ")");
  }
  const std::vector<float>& divisors = config.frequency_divisors;
  if (!divisors.empty() && static_cast<std::int64_t>(divisors.size()) != dims / 2) {
    refuse(call, "rope.frequency_divisors has ", divisors.size(), " elements (expected ", dims / 2,
           ", one a pair)");
  }
  const auto bad = std::ranges::find_if(
      divisors, [](float divisor) { return !std::isfinite(divisor) || divisor <= 0; });
  if (bad != divisors.end()) {
    const std::string name = "frequency_divisors[" + std::to_string(bad - divisors.begin()) + "]";
    check_positive(call, name.c_str(), static_cast<double>(*bad));
  }
}

}  // namespace position

std::vector<double> rope_frequencies(const RopeConfig& config, std::int64_t head_dim) {
  position::check_rope("rope_frequencies", config, head_dim);
  const base::FloatEnvironment environment(base::Subnormals::kept);
  const std::int64_t dims = position::rotary_dims(config, head_dim);
  const double r = static_cast<double>(dims);
  double base = config.base;
  if (config.scaling == RopeScaling::ntk_aware && dims > 2)
    base *= std::pow(config.factor, r / (r - 2));
  position::Ramp ramp{0, 1};
  if (config.scaling == RopeScaling::yarn && dims > 0) ramp = position::yarn_ramp(config, r);

  std::vector<double> frequencies(static_cast<std::size_t>(dims / 2));
  for (std::size_t pair = 0; pair < frequencies.size(); ++pair) {
    const double frequency = std::pow(base, -2.0 * static_cast<double>(pair) / r);
    double& result = frequencies[pair];
    switch (config.scaling) {
      case RopeScaling::none:
      case RopeScaling::ntk_aware:
        result = frequency;
        break;
      case RopeScaling::linear:
        result = frequency / config.factor;
        break;
      case RopeScaling::yarn: {
        const double slow = ramp.at(static_cast<double>(pair));
        result = frequency / config.factor * slow + frequency * (1 - slow);
        break;
      }
      case RopeScaling::llama3:
        result = position::llama3_frequency(config, frequency);
        break;
    }
    if (!config.frequency_divisors.empty())
      result /= static_cast<double>(config.frequency_divisors[pair]);
  }
  return frequencies;
}

double rope_attention_factor(const RopeConfig& config) {
  position::check_scaling("rope_attention_factor", config);
  if (config.scaling != RopeScaling::yarn) return 1.0;
  const base::FloatEnvironment environment(base::Subnormals::kept);
  if (config.attention_factor) return *config.attention_factor;
  if (config.mscale != 0 && config.mscale_all_dim != 0) {
    return position::yarn_mscale(config.factor, config.mscale) /
           position::yarn_mscale(config.factor, config.mscale_all_dim);
  }
  return position::yarn_mscale(config.factor, 1.0);
}

}  // namespace polyhead::inline v0
