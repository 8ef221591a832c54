// Who sees whom in a tree of drafted tokens, as speculative decoding checks them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "polyhead/error.h"
#include "polyhead/mask.h"

#pragma GCC visibility push(default)
namespace polyhead::inline v0 {

/// A tree of drafted tokens at the end of one sequence.
struct DraftTree {
  std::int64_t held = 0;  ///< tokens of the sequence before the draft, which drafted ones see
  /// For each drafted token the one that it follows, counted within the draft and before it; -1
  /// where it follows the last held one.
  std::span<const std::int32_t> parents{};
  /// Keys that a drafted token sees, its own included, as window(window - 1, 0) of its branch
  /// alone: counted by positions in the text. 0: all.
  std::int64_t window = 0;
  std::int64_t first_tokens = 0;  ///< of a window, as Mask::first_tokens

  /// The places in the sequence of a drafted token and of those that it follows, ascending: what
  /// keep() of a cache leaves of the draft where this branch of it is accepted. `last` counts
  /// within the draft; -1 accepts nothing. Throws InvalidArgument.
  std::vector<std::int64_t> branch(std::int64_t last) const;
};

/// The mask under which every token of a draft sees the held tokens, those it follows and itself
/// (of a window, if there is one), so that one call gives what each branch of the tree gives by
/// itself. The draft's keys lie behind the held ones in the order of `parents`, and its queries are
/// all the rows that the call has of the sequence (as a mask of one row, a draft of one token would
/// hold for any number of them).
///
/// Same bits as each branch run by itself after the held tokens, for float32 arithmetic, where the
/// draft ends within the block of 64 keys that it begins in; elsewhere (and in products of bfloat16
/// pairs) equal within the error bound, since the branch's keys then lie in other blocks or pairs.
/// Always the same bits as each query alone under its own row of the mask.
///
/// A token's place in the cache is not its position in the text: rotate q and k by positions(),
/// give a window to the trees, and use no ALiBi or dropout beside it, which count places, as other
/// masks' windows do. A ring's own, which goes with every call over it, leaves all to be seen that
/// a tree's window w shows where it is w + drafted tokens - 1. Owns its table: one bit a (query,
/// key) pair: no other boolean mask goes beside it, but a hidden one does. Source: Miao et al. 2024
/// (SpecInfer).
class TreeMask {
 public:
  explicit TreeMask(const DraftTree& tree) : TreeMask(std::span(&tree, 1)) {}
  /// One tree a sequence of the batch; sequences of a ragged call may differ in all sizes. Throws
  /// InvalidArgument.
  explicit TreeMask(std::span<const DraftTree> trees);

  /// Points into this object: boolean(bits [sequences, 1, longest draft, most keys]).
  Mask mask() const;
  /// Positions in the text, held + depth, of the drafts one after the other: for RoPE.
  std::span<const std::int64_t> positions() const { return positions_; }

 private:
  std::vector<std::uint8_t> bits_;
  std::vector<std::int64_t> positions_;
  std::int64_t sequences_ = 0, queries_ = 0, keys_ = 0;
};

}  // namespace polyhead::inline v0
#pragma GCC visibility pop
