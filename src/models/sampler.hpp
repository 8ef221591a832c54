// Which token comes next.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace polyhead::inline v0::models {

/// In the order in which they apply: logits of tokens that are there already divided by
/// `repeat_penalty` where they are above 0 and multiplied with it where not (Keskar et al. 2019),
/// logits / temperature, the best `top_k`, then the fewest of those whose probabilities sum to
/// `top_p` or more, then those of them at least `min_p` times as probable as the best (Nguyen et
/// al. 2024), as transformers has it.
struct Sampling {
  float temperature = 0.0f;  ///< 0: always the best token, the first on ties
  std::int64_t top_k = 0;    ///< 0: all
  float top_p = 1.0f;        ///< in (0, 1]; 1: all
  float min_p = 0.0f;        ///< in [0, 1]; 0: all
  std::uint64_t seed = 0;
  float repeat_penalty = 1.0f;   ///< above 0; 1: none
  std::int64_t repeat_last = 0;  ///< tokens that it looks back to; 0: all
};

/// Draws tokens. Probabilities are in double; the draws follow from the seed alone, on every
/// machine (SplitMix64, Steele et al. 2014). Used by one caller at a time.
class Sampler {
 public:
  /// Throws InvalidArgument for a number out of range.
  explicit Sampler(const Sampling& sampling);

  /// `before` are the tokens of prompt and answer so far. Throws InvalidArgument for logits without
  /// a largest one.
  std::int32_t next(std::span<const float> logits, std::span<const std::int32_t> before = {});

 private:
  std::span<const float> penalised(std::span<const float> logits,
                                   std::span<const std::int32_t> before);
  double draw();
  double keep_probable(std::vector<double>& weights);

  Sampling sampling_;
  std::uint64_t state_;
  std::vector<float> penalised_;
  std::vector<std::pair<float, std::int32_t>> candidates_;
};

}  // namespace polyhead::inline v0::models
