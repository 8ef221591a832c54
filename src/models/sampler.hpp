// Which token comes next.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace polyhead::inline v0::models {

/// In the order in which they apply: logits / temperature, the best `top_k`, then the fewest of
/// those whose probabilities sum to `top_p` or more, then those of them at least `min_p` times as
/// probable as the best (Nguyen et al. 2024), as transformers has it.
struct Sampling {
  float temperature = 0.0f;  ///< 0: always the best token, the first on ties
  std::int64_t top_k = 0;    ///< 0: all
  float top_p = 1.0f;        ///< in (0, 1]; 1: all
  float min_p = 0.0f;        ///< in [0, 1]; 0: all
  std::uint64_t seed = 0;
};

/// Draws tokens. Probabilities are in double; the draws follow from the seed alone, on every
/// machine (SplitMix64, Steele et al. 2014). Used by one caller at a time.
class Sampler {
 public:
  /// Throws InvalidArgument for a temperature, top_k, top_p or min_p out of range.
  explicit Sampler(const Sampling& sampling);

  std::int32_t next(std::span<const float> logits);

 private:
  double draw();
  double keep_probable(std::vector<double>& weights);

  Sampling sampling_;
  std::uint64_t state_;
  std::vector<std::pair<float, std::int32_t>> candidates_;
};

}  // namespace polyhead::inline v0::models
