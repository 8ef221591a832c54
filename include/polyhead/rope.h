// Rotary position embedding and its scalings.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "polyhead/error.h"
#include "polyhead/types.h"

#pragma GCC visibility push(default)
namespace polyhead::inline v0 {

/// Which two elements of a head are rotated together. With r = rotary_dims, pair i is
/// `half_split`: (i, i + r/2) (Hugging Face safetensors, GPT-NeoX); `interleaved`: (2i, 2i + 1)
/// (GPT-J, GGUF llama).
enum class RopePairing : std::uint8_t { unstated, half_split, interleaved };

/// How the frequencies f_i = base^(-2i/r) are changed for contexts longer than the trained one.
///
/// - linear: f_i / factor
/// - ntk_aware: base becomes base * factor^(r / (r - 2))
/// - yarn: f_i / factor for slow pairs, f_i for fast ones, a ramp between the pairs that turn
///   beta_slow and beta_fast times within original_length; cos and sin are multiplied by the
///   attention factor
/// - llama3: f_i / factor for wavelengths above original_length / low_freq_factor, f_i for those
///   below original_length / high_freq_factor, interpolated between
///
/// Sources: Chen et al. 2023; bloc97 2023; Peng et al. 2023 (YaRN); Llama 3.1 model card.
enum class RopeScaling : std::uint8_t { none, linear, ntk_aware, yarn, llama3 };

/// What a rotary embedding is. Names and defaults are those of Hugging Face configurations.
struct RopeConfig {
  RopePairing pairing = RopePairing::unstated;  ///< must be stated
  double base = 10000.0;                        ///< rope_theta
  /// Only the first ones of each head are rotated; even; 0: all of head_dim.
  std::int64_t rotary_dims = 0;
  RopeScaling scaling = RopeScaling::none;
  double factor = 1.0;                        ///< linear, ntk_aware, yarn, llama3: at least 1
  std::int64_t original_length = 0;           ///< yarn, llama3: original_max_position_embeddings
  double beta_fast = 32.0, beta_slow = 1.0;   ///< yarn
  bool truncate = true;                       ///< yarn: ramp ends rounded outward to whole pairs
  std::optional<double> attention_factor{};   ///< yarn: given outright, else from the two below
  double mscale = 0.0, mscale_all_dim = 0.0;  ///< yarn; 0: not given
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  ///< llama3
  /// f_i / divisor_i on top, one a pair (GGUF rope_freqs, LongRoPE's factors); empty: none.
  std::vector<float> frequency_divisors{};
};

/// The frequencies, in radians a position: rotary_dims / 2 of them, computed in double.
/// Throws InvalidArgument for an impossible configuration, as every function here does.
std::vector<double> rope_frequencies(const RopeConfig& config, std::int64_t head_dim);

/// What cos and sin are multiplied by: 1 except for yarn, where it is `attention_factor`, or
/// m(mscale) / m(mscale_all_dim) with both given, or m(1); m(s) = 0.1 s ln(factor) + 1.
double rope_attention_factor(const RopeConfig& config);

/// Rotates in place: for pair i of each head, with angle = position * f_i and factor a,
///   (x, y) <- (a (x cos - y sin), a (x sin + y cos)).
///
/// - x: [tokens, heads, dim] or [batch, tokens, heads, dim], float32/float16/bfloat16, any strides
/// - positions: int32/int64 [tokens] or [batch, tokens], any values
///
/// Accuracy: angle, cos and sin in double, then rounded to float32; the rotation in float32. So
/// positions of many millions are as good as small ones. Throws InvalidArgument; x is untouched
/// then. Allocates tables, up to 64 tokens of cos and sin in double. Source: Su et al. 2021
/// (RoFormer), eq. 34.
void apply_rope(View x, ConstView positions, const RopeConfig& config);

}  // namespace polyhead::inline v0
#pragma GCC visibility pop
