#include "polyhead/tree_mask.h"

#include <algorithm>
#include <limits>
#include <string>

#include "base/refuse.hpp"

namespace polyhead::inline v0 {
namespace {

constexpr const char* kCall = "TreeMask";
constexpr std::int64_t kMostTokens = std::int64_t{1} << 40;  // held: sizes in bits stay in 64 bits

/// `which` begins the names of its fields.
void check(const char* call, const std::string& which, const DraftTree& tree) {
  if (tree.held < 0 || tree.held > kMostTokens)
    base::refuse(call, which, "held (", tree.held, ") is not within 0 .. 2^40");
  if (tree.window < 0) base::refuse(call, which, "window (", tree.window, ") is negative");
  if (tree.first_tokens < 0)
    base::refuse(call, which, "first_tokens (", tree.first_tokens, ") is negative");
  if (tree.first_tokens > 0 && tree.window == 0)
    base::refuse(call, which, "first_tokens (", tree.first_tokens, ") is given without a window");
  for (std::size_t i = 0; i < tree.parents.size(); ++i) {
    if (tree.parents[i] < -1 || tree.parents[i] >= static_cast<std::int64_t>(i)) {
      base::refuse(call, which, "parents[", i, "] (", tree.parents[i], ") is not within -1 .. ",
                   static_cast<std::int64_t>(i) - 1);
    }
  }
}

void add_positions(const DraftTree& tree, std::vector<std::int64_t>& to) {
  const std::size_t first = to.size();
  for (const std::int32_t parent : tree.parents)
    to.push_back(parent < 0 ? tree.held : to[first + static_cast<std::size_t>(parent)] + 1);
}

/// Sets bits [first, end) of a row.
void show(std::uint8_t* row, std::int64_t first, std::int64_t end) {
  const auto set = [&](std::int64_t key) {
    row[key / 8] = static_cast<std::uint8_t>(row[key / 8] | 1 << key % 8);
  };
  for (; first < end && first % 8 != 0; ++first) set(first);
  for (; first < end && end % 8 != 0; --end) set(end - 1);
  if (first < end) std::fill_n(row + first / 8, (end - first) / 8, std::uint8_t{0xff});
}

/// What token `last` of a draft sees: held tokens, those that it follows and itself, of its window
/// and the first ones. `positions` are those of the draft.
void show_branch(const DraftTree& tree, std::span<const std::int64_t> positions, std::size_t last,
                 std::uint8_t* row) {
  const std::int64_t oldest =
      tree.window == 0 ? 0 : std::max<std::int64_t>(0, positions[last] - tree.window + 1);
  show(row, 0, std::min(tree.first_tokens, tree.held));
  show(row, std::min(oldest, tree.held), tree.held);
  for (auto at = static_cast<std::int64_t>(last); at >= 0;) {
    const auto i = static_cast<std::size_t>(at);
    if (positions[i] >= oldest || positions[i] < tree.first_tokens)
      show(row, tree.held + at, tree.held + at + 1);
    at = tree.parents[i];
  }
}

}  // namespace

std::vector<std::int64_t> DraftTree::branch(std::int64_t last) const {
  constexpr const char* kName = "DraftTree::branch";
  check(kName, "", *this);
  const std::int64_t drafted = std::ssize(parents);
  if (last < -1 || last >= drafted)
    base::refuse(kName, "last (", last, ") is not within -1 .. ", drafted - 1);
  std::vector<std::int64_t> places;
  for (std::int64_t at = last; at >= 0; at = parents[static_cast<std::size_t>(at)])
    places.push_back(held + at);
  std::ranges::reverse(places);
  return places;
}

TreeMask::TreeMask(std::span<const DraftTree> trees)
    : sequences_(static_cast<std::int64_t>(trees.size())) {
  for (const DraftTree& tree : trees) {
    check(kCall, std::string("trees[").append(std::to_string(&tree - trees.data())).append("]."),
          tree);
    const auto drafted = static_cast<std::int64_t>(tree.parents.size());
    queries_ = std::max(queries_, drafted);
    keys_ = std::max(keys_, tree.held + drafted);
  }
  const std::int64_t row_bytes = (keys_ + 7) / 8, rows = sequences_ * queries_;
  if (row_bytes > 0 && rows > std::numeric_limits<std::int64_t>::max() / row_bytes)
    base::refuse(kCall, rows, " rows of ", keys_, " keys overflow 64 bits");
  bits_.resize(static_cast<std::size_t>(rows * row_bytes));
  for (std::int64_t s = 0; s < sequences_; ++s) {
    const DraftTree& tree = trees[static_cast<std::size_t>(s)];
    add_positions(tree, positions_);
    const auto own = std::span(positions_).last(tree.parents.size());
    std::uint8_t* row = bits_.data() + s * queries_ * row_bytes;
    for (std::size_t i = 0; i < own.size(); ++i, row += row_bytes) show_branch(tree, own, i, row);
  }
}

Mask TreeMask::mask() const {
  const std::int64_t row_bits = (keys_ + 7) / 8 * 8;
  const detail::Layout layout{{sequences_, std::int64_t{1}, queries_, keys_},
                              {queries_ * row_bits, std::int64_t{0}, row_bits, std::int64_t{1}}};
  return boolean({bits_.data(), ElementType::bit, layout});
}

}  // namespace polyhead::inline v0
