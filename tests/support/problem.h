// One attention call with its arrays: made from a description and a seed.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "polyhead/attention.h"
#include "support/tensor.h"

namespace polyhead::test {

/// Masks and modifiers that tests loop over. A new one belongs in the list, in name_of and in
/// make_problem.
enum class MaskKind {
  none,
  causal_end,
  causal_start,
  causal_q_start,
  window_left,
  window_right,
  window_both,
  window_causal,
  window_and_first,
  kv_lengths,
  both_lengths,
  prefix,
  prefix_lengths,
  documents,
  boolean_full,
  boolean_broadcast,
  boolean_by_query,
  bits,
  hidden,
  booleans,
  everything
};
inline constexpr int kMaskKinds = static_cast<int>(MaskKind::everything) + 1;

enum class ModifierKind {
  none,
  scale,
  soft_cap,
  bias_full,
  bias_broadcast,
  bias_16_bit,
  bias_hides,
  alibi,
  slopes,
  custom,
  custom_hides,
  sink,
  dropout,
  everything
};
inline constexpr int kModifierKinds = static_cast<int>(ModifierKind::everything) + 1;

enum class LayoutKind { dense, heads_first, gaps };
inline constexpr int kLayoutKinds = 3;

const char* name_of(MaskKind kind);
const char* name_of(ModifierKind kind);

struct Types {
  ElementType q = ElementType::float32, k = ElementType::float32, v = ElementType::float32,
              out = ElementType::float32;
};

struct Case {
  std::int64_t batch = 1, q_len = 8, kv_len = 8, q_heads = 1, kv_heads = 1, head_dim = 16,
               value_dim = 16;
  MaskKind mask = MaskKind::none;
  ModifierKind modifier = ModifierKind::none;
  Types types;
  LayoutKind layout = LayoutKind::dense;
  std::uint64_t seed = 1;
  double q_deviation = 1.0;  ///< scores have about this deviation under the default scale
  bool statistics = false;
};

std::string describe(const Case& c);

/// Owns what the arguments point to. Change the tensors freely; arguments() makes fresh views of
/// them.
class Problem {
 public:
  explicit Problem(const Case& c);
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  const Case& description() const { return case_; }
  AttentionArguments arguments();

  /// Poisons the outputs and runs the call.
  void run(Isa isa, Executor* executor = nullptr);

  Tensor q, k, v, out, lse;
  Tensor entropy, max_weight, max_key;  ///< given if the case wants statistics
  Mask mask;
  Modifiers modifiers;
  Tensor q_start;

  /// A tensor that lives as long as the problem, for masks and modifiers to point to.
  Tensor& keep(Tensor tensor) {
    kept_.push_back(std::move(tensor));
    return kept_.back();
  }

 private:
  void make_mask(MaskKind kind, Random& random);
  void make_modifier(ModifierKind kind, Random& random);

  Case case_;
  std::deque<Tensor> kept_;
  std::vector<std::unique_ptr<TileModifier>> custom_;
};

/// Instruction sets to try: all that run here.
std::vector<Isa> isas();

/// Element types of q, k, v and out that tests loop over.
extern const std::vector<Types> kTypes;
std::string name_of(const Types& types);

}  // namespace polyhead::test
