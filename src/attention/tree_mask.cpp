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
  for (std::size_t i = 0; i < tree.parents.size(); ++i) {
    if (tree.parents[i] < -1 || tree.parents[i] >= static_cast<std::int64_t>(i)) {
      base::refuse(call, which, "parents[", i, "] (", tree.parents[i], ") is not within -1 .. ",
                   static_cast<std::int64_t>(i) - 1);
    }
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
    const std::size_t first = positions_.size();
    for (std::size_t i = 0; i < tree.parents.size(); ++i) {
      std::uint8_t* const row =
          bits_.data() + (s * queries_ + static_cast<std::int64_t>(i)) * row_bytes;
      const auto see = [&](std::int64_t key) {
        row[key / 8] = static_cast<std::uint8_t>(row[key / 8] | 1 << key % 8);
      };
      // A token sees what the one it follows does, and itself.
      const std::int32_t parent = tree.parents[i];
      if (parent >= 0) {
        std::copy_n(bits_.data() + (s * queries_ + parent) * row_bytes, row_bytes, row);
      } else {
        std::fill_n(row, tree.held / 8, std::uint8_t{0xff});
        for (std::int64_t key = tree.held / 8 * 8; key < tree.held; ++key) see(key);
      }
      see(tree.held + static_cast<std::int64_t>(i));
      positions_.push_back(parent < 0 ? tree.held
                                      : positions_[first + static_cast<std::size_t>(parent)] + 1);
    }
  }
}

Mask TreeMask::mask() const {
  const std::int64_t row_bits = (keys_ + 7) / 8 * 8;
  const detail::Layout layout{{sequences_, std::int64_t{1}, queries_, keys_},
                              {queries_ * row_bits, std::int64_t{0}, row_bits, std::int64_t{1}}};
  return boolean({bits_.data(), ElementType::bit, layout});
}

}  // namespace polyhead::inline v0
