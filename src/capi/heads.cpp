// Head statistics, behind polyhead_inspect_c.h.
#include "polyhead/heads.h"

#include <initializer_list>
#include <optional>
#include <span>
#include <utility>

#include "capi/convert.hpp"
#include "polyhead/polyhead_inspect_c.h"

struct polyhead_head_statistics {
  polyhead::HeadStatistics statistics;
};

using namespace polyhead::capi;

namespace {

static_assert(POLYHEAD_TARGETS == polyhead::kHeadTargets);
static_assert(POLYHEAD_ROLE_MIXED == polyhead::kHeadRoles - 1);
static_assert(POLYHEAD_MAX_HEAD_MAPS == polyhead::kMaxHeadMaps);

polyhead::HeadMapSpec::Pool to_pool(const char* call, std::int32_t pool) {
  if (pool == POLYHEAD_POOL_MAXIMUM) return polyhead::HeadMapSpec::maximum;
  if (pool == POLYHEAD_POOL_SUM) return polyhead::HeadMapSpec::sum;
  refuse("%s: study.map_pool (%d) is not a POLYHEAD_POOL", call, pool);
}

polyhead::HeadStudy to_study(const char* call, const polyhead_head_study* study) {
  const polyhead_head_study from = read_struct(call, "study", study);
  if (from.kv_len < 0)
    refuse("%s: study.kv_len (%lld) is negative", call, static_cast<long long>(from.kv_len));
  if (from.maps < 0 || from.maps > POLYHEAD_MAX_HEAD_MAPS)
    refuse("%s: study.maps (%d) is not within 0 .. %d", call, from.maps, POLYHEAD_MAX_HEAD_MAPS);
  polyhead::HeadStudy to;
  to.q_heads = from.q_heads;
  to.q_len = from.q_len;
  to.kv_len = from.kv_len;
  const auto keys = static_cast<std::size_t>(from.kv_len);
  if (from.tokens != nullptr) to.tokens = {from.tokens, keys};
  if (from.delimiters != nullptr) to.delimiters = {from.delimiters, keys};
  to.cross = to_bool(call, "study.cross", from.cross);
  to.rows = !to_bool(call, "study.without_rows", from.without_rows);
  to.received = !to_bool(call, "study.without_received", from.without_received);
  for (std::int32_t i = 0; i < from.maps; ++i)
    to.maps.push_back({from.map_q_bins[i], from.map_kv_bins[i], to_pool(call, from.map_pool[i])});
  return to;
}

/// A caller's visitor as the library's.
class CallbackVisitor final : public polyhead::HeadRowVisitor {
 public:
  CallbackVisitor(const char* call, const polyhead_head_row_visitor* visitor, std::int64_t heads)
      : from_(read_struct(call, "visitor", visitor)), heads_(heads) {
    need(call, "visitor.visit", from_.visit);
    check_reserved(call, "visitor.reserved", from_.reserved);
    sparse = to_bool(call, "visitor.sparse", from_.sparse);
    threshold = from_.threshold;
    least = from_.least;
  }

  void visit(const polyhead::HeadRowBlock& block) override {
    const polyhead_head_row_block to = {.struct_bytes = sizeof to,
                                        .head = block.head,
                                        .first_query = block.first_query,
                                        .rows = block.rows,
                                        .offsets = block.offsets,
                                        .keys = block.keys,
                                        .weights = block.weights,
                                        .rest = block.rest,
                                        .full = block.full,
                                        .full_keys = block.full_keys};
    const int code = from_.visit(from_.context, &to);
    if (code != 0) throw CallbackFailed("a row visitor", code);
  }

  bool wants_full(std::int64_t head) const override {
    return from_.full_heads != nullptr && head < heads_ && from_.full_heads[head] != 0;
  }

 private:
  const polyhead_head_row_visitor from_;
  const std::int64_t heads_;
};

template <class T>
void fill_row(polyhead_view* view, std::span<const T> from) {
  fill_view(view, polyhead::ConstView(from.data(), {from.size()}));
}

/// Views that are to be filled, with their names.
void check_views(const char* call,
                 std::initializer_list<std::pair<const char*, polyhead_view*>> views) {
  for (const auto& [name, view] : views) check_written(call, name, need(call, name, view));
}

}  // namespace

const char* polyhead_head_target_name(int32_t target) {
  if (target < 0 || target >= polyhead::kHeadTargets) return nullptr;
  return polyhead::head_target_name(static_cast<polyhead::HeadTarget>(target));
}

const char* polyhead_head_role_name(int32_t role) {
  if (role < 0 || role >= polyhead::kHeadRoles) return nullptr;
  return polyhead::head_role_name(static_cast<polyhead::HeadRole>(role));
}

polyhead_status polyhead_head_statistics_create(const polyhead_head_study* study,
                                                polyhead_head_statistics** statistics) {
  constexpr const char* kCall = "polyhead_head_statistics_create";
  return guarded(kCall, [&] {
    need(kCall, "statistics", statistics);
    *statistics = new polyhead_head_statistics{polyhead::HeadStatistics(to_study(kCall, study))};
  });
}

void polyhead_head_statistics_destroy(polyhead_head_statistics* statistics) { delete statistics; }

polyhead_status polyhead_head_statistics_add(polyhead_head_statistics* statistics,
                                             const polyhead_attention_arguments* call,
                                             const polyhead_options* options,
                                             const polyhead_head_row_visitor* visitor) {
  constexpr const char* kCall = "polyhead_head_statistics_add";
  return guarded(kCall, [&] {
    polyhead::HeadStatistics& to = need(kCall, "statistics", statistics)->statistics;
    const AttentionCall forward(kCall, call);
    std::optional<CallbackVisitor> rows;
    if (visitor != nullptr) rows.emplace(kCall, visitor, to.heads());
    to.add(forward.arguments(), to_options(kCall, options), rows ? &*rows : nullptr);
  });
}

polyhead_status polyhead_head_statistics_measures(const polyhead_head_statistics* statistics,
                                                  int64_t head, polyhead_head_measures* measures) {
  constexpr const char* kCall = "polyhead_head_statistics_measures";
  return guarded(kCall, [&] {
    need(kCall, "statistics", statistics);
    check_written(kCall, "measures", need(kCall, "measures", measures));
    const polyhead::HeadMeasures from = statistics->statistics.measures(head);
    polyhead_head_measures to = {.struct_bytes = 0,
                                 .mean_entropy = from.mean_entropy,
                                 .first = from.first,
                                 .spread = from.spread,
                                 .mean_distance = from.mean_distance,
                                 .mean_largest = from.mean_largest,
                                 .role = static_cast<int32_t>(from.role),
                                 .reserved = 0,
                                 .targets = {}};
    for (int i = 0; i < POLYHEAD_TARGETS; ++i) {
      const polyhead::TargetMass& mass = from.targets[static_cast<std::size_t>(i)];
      to.targets[i] = {.mean = mass.mean,
                       .mean_chance = mass.mean_chance,
                       .share = mass.share,
                       .share_chance = mass.share_chance,
                       .rows = mass.rows};
    }
    write_struct(measures, to);
  });
}

polyhead_status polyhead_head_statistics_rows(const polyhead_head_statistics* statistics,
                                              int64_t head, polyhead_view* entropy,
                                              polyhead_view* first, polyhead_view* largest,
                                              polyhead_view* largest_key) {
  constexpr const char* kCall = "polyhead_head_statistics_rows";
  return guarded(kCall, [&] {
    need(kCall, "statistics", statistics);
    check_views(kCall, {{"entropy", entropy},
                        {"first", first},
                        {"largest", largest},
                        {"largest_key", largest_key}});
    const polyhead::HeadRowStatistics rows = statistics->statistics.rows(head);
    fill_row(entropy, rows.entropy);
    fill_row(first, rows.first);
    fill_row(largest, rows.largest);
    fill_row(largest_key, rows.largest_key);
  });
}

polyhead_status polyhead_head_statistics_received(const polyhead_head_statistics* statistics,
                                                  int64_t head, polyhead_view* received) {
  constexpr const char* kCall = "polyhead_head_statistics_received";
  return guarded(kCall, [&] {
    need(kCall, "statistics", statistics);
    check_views(kCall, {{"received", received}});
    fill_row(received, statistics->statistics.received(head));
  });
}

polyhead_status polyhead_head_statistics_map(const polyhead_head_statistics* statistics,
                                             int64_t head, int32_t index, polyhead_view* map) {
  constexpr const char* kCall = "polyhead_head_statistics_map";
  return guarded(kCall, [&] {
    need(kCall, "statistics", statistics);
    check_views(kCall, {{"map", map}});
    const std::span<const float> from = statistics->statistics.map(head, index);
    const polyhead::HeadMapSpec bins = statistics->statistics.map_spec(index);
    fill_view(map, polyhead::ConstView(from.data(), {bins.q_bins, bins.kv_bins}));
  });
}
