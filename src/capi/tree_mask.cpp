// Trees of drafted tokens behind polyhead_c.h.
#include "polyhead/tree_mask.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "capi/handles.hpp"

using namespace polyhead::capi;

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
      const polyhead_draft_tree from = read_struct(kCall, name.c_str(), trees[s]);
      to.push_back(
          {from.held, to_span(kCall, (name + ".parents").c_str(), from.parents, from.count)});
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
