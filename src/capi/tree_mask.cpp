// Trees of drafted tokens behind polyhead_c.h.
#include "polyhead/tree_mask.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "capi/handles.hpp"

using namespace polyhead::capi;

namespace {

polyhead::DraftTree to_tree(const char* call, const std::string& name,
                            const polyhead_draft_tree* tree) {
  const polyhead_draft_tree from = read_struct(call, name.c_str(), tree);
  return {.held = from.held,
          .parents = to_span(call, (name + ".parents").c_str(), from.parents, from.count),
          .window = from.window,
          .first_tokens = from.first_tokens};
}

}  // namespace

polyhead_status polyhead_draft_tree_branch(const polyhead_draft_tree* tree, int64_t last,
                                           int64_t* places, int64_t* count) {
  constexpr const char* kCall = "polyhead_draft_tree_branch";
  return guarded(kCall, [&] {
    need(kCall, "count", count);
    const std::vector<std::int64_t> found = to_tree(kCall, "tree", tree).branch(last);
    if (!found.empty()) std::ranges::copy(found, need(kCall, "places", places));
    *count = std::ssize(found);
  });
}

polyhead_status polyhead_tree_mask_create(const polyhead_draft_tree* const* trees,
                                          int64_t sequences, polyhead_tree_mask** mask) {
  constexpr const char* kCall = "polyhead_tree_mask_create";
  return guarded(kCall, [&] {
    need(kCall, "mask", mask);
    if (sequences < 0)
      refuse("%s: sequences (%lld) is negative", kCall, static_cast<long long>(sequences));
    if (sequences > 0) need(kCall, "trees", trees);
    std::vector<polyhead::DraftTree> to;
    for (int64_t s = 0; s < sequences; ++s) {
      const std::string name = "trees[" + std::to_string(s) + "]";
      to.push_back(to_tree(kCall, name, trees[s]));
    }
    *mask = new polyhead_tree_mask{polyhead::TreeMask(to)};
  });
}

void polyhead_tree_mask_destroy(polyhead_tree_mask* mask) { delete mask; }

polyhead_status polyhead_tree_mask_visible(const polyhead_tree_mask* mask, polyhead_view* visible) {
  constexpr const char* kCall = "polyhead_tree_mask_visible";
  return guarded(kCall, [&] {
    need(kCall, "mask", mask);
    check_written(kCall, "visible", need(kCall, "visible", visible));
    fill_view(visible, mask->mask.mask().visible);
  });
}

polyhead_status polyhead_tree_mask_positions(const polyhead_tree_mask* mask,
                                             polyhead_view* positions) {
  constexpr const char* kCall = "polyhead_tree_mask_positions";
  return guarded(kCall, [&] {
    need(kCall, "mask", mask);
    check_written(kCall, "positions", need(kCall, "positions", positions));
    const std::span<const std::int64_t> of = mask->mask.positions();
    fill_view(positions, polyhead::ConstView(of.data(), {of.size()}));
  });
}
