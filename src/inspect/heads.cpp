// Head statistics: shares a layer's heads out over workers and turns tiles into measures.
#include "polyhead/heads.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "attention/schedule.hpp"
#include "attention/validate.hpp"
#include "base/ceil_div.hpp"
#include "base/float_environment.hpp"
#include "base/memory.hpp"
#include "base/refuse.hpp"
#include "base/share_out.hpp"
#include "inspect/head_sums.hpp"
#include "kernels/cpu/backend.hpp"

namespace polyhead::inline v0 {
namespace {

using kernels::HeadSweep;
using kernels::HeadTile;
using kernels::kMostTileRows;
using kernels::RowEntries;
using kernels::TileSums;
using kernels::cpu::HeadKernel;

constexpr const char* kCall = "HeadStatistics";
constexpr std::int64_t kMostTokens = 1 << 24;              // positions and classes are exact floats
constexpr std::int64_t kMostBins = std::int64_t{1} << 48;  // of one map, all heads together
constexpr float kLeastThreshold = 1e-4f;  // bounds the entries of a row: its weights sum to 1
constexpr int kMostLeast = 64;

/// Bins of a map as they are kept: no more than tokens.
std::int64_t bins_kept(std::int64_t bins, std::int64_t tokens) {
  return std::min(bins, std::max<std::int64_t>(tokens, 1));
}

void check_map(const HeadStudy& study, const HeadMapSpec& map) {
  if (map.q_bins < 1 || map.kv_bins < 1)
    base::refuse(kCall, "maps: bins (", map.q_bins, ", ", map.kv_bins, ") are not positive");
  if (map.pool != HeadMapSpec::maximum && map.pool != HeadMapSpec::sum) {
    base::refuse(kCall, "maps: pool (", static_cast<int>(map.pool),
                 ") is none, expected maximum or sum");
  }
  const std::int64_t q_bins = bins_kept(map.q_bins, study.q_len);
  const std::int64_t kv_bins = bins_kept(map.kv_bins, study.kv_len);
  if (study.q_heads * q_bins > kMostBins / kv_bins) {
    base::refuse(kCall, "maps: q_heads (", study.q_heads, ") times bins (", q_bins, ", ", kv_bins,
                 ") is more than 2^48, which no memory holds");
  }
}

void check_study(const HeadStudy& study) {
  base::check_size(kCall, "q_heads", study.q_heads, 0, kMostTokens);
  base::check_size(kCall, "q_len", study.q_len, 0, kMostTokens);
  base::check_size(kCall, "kv_len", study.kv_len, 0, kMostTokens);
  const auto keys = static_cast<std::size_t>(study.kv_len);
  if (!study.tokens.empty() && study.tokens.size() != keys)
    base::refuse(kCall, "tokens (", study.tokens.size(), ") are not kv_len (", keys, ")");
  if (!study.delimiters.empty() && study.delimiters.size() != keys)
    base::refuse(kCall, "delimiters (", study.delimiters.size(), ") are not kv_len (", keys, ")");
  if (study.maps.size() > kMaxHeadMaps)
    base::refuse(kCall, "maps (", study.maps.size(), ") are more than ", kMaxHeadMaps);
  for (const HeadMapSpec& map : study.maps) check_map(study, map);
}

/// [kv_len + 1]: -2, then for each key the number of its token in order of first appearance.
std::vector<float> classes_of(std::span<const std::int32_t> tokens) {
  std::vector<float> classes;
  if (tokens.empty()) return classes;
  classes.reserve(tokens.size() + 1);
  classes.push_back(-2.0f);
  std::unordered_map<std::int32_t, float> numbers;
  for (const std::int32_t token : tokens) {
    classes.push_back(numbers.try_emplace(token, static_cast<float>(numbers.size())).first->second);
  }
  return classes;
}

/// One worker's buffers for one tile.
struct Bench {
  TileSums sums;
  std::vector<RowEntries> entries;
  std::vector<std::int32_t> keys;
  std::vector<float> weights, full;
  // A tile's sparse rows as a visitor gets them.
  std::vector<std::int64_t> offsets;
  std::vector<std::int32_t> row_keys;
  std::vector<float> row_weights, rest;
  std::vector<std::pair<std::int32_t, float>> order;
};

}  // namespace

struct HeadStatistics::State {
  HeadStudy study;  // its spans point to the vectors below
  std::vector<std::int32_t> tokens;
  std::vector<float> classes;
  std::vector<std::uint8_t> delimiters;
  std::int64_t seen = 0;
  std::vector<HeadSums> sums;
  std::vector<float> entropy, first, largest, received;
  std::vector<std::int32_t> largest_key;
  std::vector<float> maps[kMaxHeadMaps];
  std::vector<Bench> benches;

  explicit State(const HeadStudy& wanted);
  HeadSweep sweep_of(const AttentionArguments& call, const HeadRowVisitor* visitor) const;
  void run_head(const HeadKernel& kernel, const HeadSweep& sweep, std::int64_t head, Bench& bench,
                std::byte* scratch, HeadRowVisitor* visitor);
  HeadTile tile_of(const HeadSweep& sweep, std::int64_t head, Bench& bench, int rows,
                   HeadRowVisitor* visitor);
  void take_rows(const HeadSweep& sweep, std::int64_t head, std::int64_t first, int rows,
                 const TileSums& tile);

  std::size_t row_at(std::int64_t head, std::int64_t row) const {
    return static_cast<std::size_t>(head * study.q_len + row);
  }
  std::size_t map_size(std::size_t m) const {
    return static_cast<std::size_t>(study.maps[m].q_bins * study.maps[m].kv_bins);
  }
  void check_head(std::int64_t head) const {
    if (head < 0 || head >= study.q_heads)
      base::refuse(kCall, "head (", head, ") is not within 0 .. ", study.q_heads - 1);
  }
};

HeadStatistics::State::State(const HeadStudy& wanted)
    : study(wanted),
      tokens(wanted.tokens.begin(), wanted.tokens.end()),
      classes(classes_of(wanted.tokens)),
      delimiters(wanted.delimiters.begin(), wanted.delimiters.end()) {
  study.tokens = tokens;
  study.delimiters = delimiters;
  const auto heads = static_cast<std::size_t>(study.q_heads);
  sums.resize(heads);
  if (study.rows) {
    const std::size_t rows = heads * static_cast<std::size_t>(study.q_len);
    entropy.resize(rows);
    first.resize(rows);
    largest.resize(rows);
    largest_key.assign(rows, -1);
  }
  if (study.received) received.resize(heads * static_cast<std::size_t>(study.kv_len));
  for (std::size_t m = 0; m < study.maps.size(); ++m) {
    HeadMapSpec& map = study.maps[m];
    map.q_bins = bins_kept(map.q_bins, study.q_len);
    map.kv_bins = bins_kept(map.kv_bins, study.kv_len);
    maps[m].resize(heads * map_size(m));
  }
}

HeadSweep HeadStatistics::State::sweep_of(const AttentionArguments& call,
                                          const HeadRowVisitor* visitor) const {
  const base::FloatEnvironment environment(base::Subnormals::kept);  // small dropout is not 0
  for (const auto& [name, offsets] :
       {std::pair{"q_offsets", &call.q_offsets}, {"kv_offsets", &call.kv_offsets}}) {
    if (offsets->given()) base::refuse(kCall, name, " is given, expected one sequence");
  }
  if (!call.lse.given())
    base::refuse(kCall, "lse is not given, expected the one attention() wrote");
  HeadSweep sweep;
  kernels::AttendCall& attend = sweep.attend;
  attend = door::resolve(call, kCall, door::Purpose::second_pass);
  if (attend.batch != 1) base::refuse(kCall, "batch (", attend.batch, ") is not one sequence");
  if (attend.q_heads != study.q_heads)
    base::refuse(kCall, "q_heads (", attend.q_heads, ") are not the study's (", study.q_heads, ")");
  if (attend.q_len > study.q_len - seen)
    base::refuse(kCall, "q_len (", attend.q_len, ") after ", seen,
                 " rows reaches beyond the study's (", study.q_len, ")");
  if (attend.kv_len > study.kv_len)
    base::refuse(kCall, "kv_len (", attend.kv_len, ") is beyond the study's (", study.kv_len, ")");
  if (attend.score.dropout > 0.0f)
    base::refuse(kCall, "modifiers.dropout (", attend.score.dropout, ") is not 0");
  sweep.first_query = seen;
  sweep.q_total = study.q_len;
  sweep.kv_total = study.kv_len;
  sweep.classes = classes.empty() ? nullptr : classes.data();
  sweep.delimiters = delimiters.empty() ? nullptr : delimiters.data();
  sweep.cross = study.cross;
  for (const HeadMapSpec& map : study.maps) {
    sweep.maps[sweep.map_count++] = {map.q_bins, map.kv_bins, map.pool == HeadMapSpec::maximum};
  }
  if (visitor != nullptr && visitor->sparse) {
    if (!(visitor->threshold >= kLeastThreshold))
      base::refuse(kCall, "visitor.threshold (", visitor->threshold, ") is under ",
                   kLeastThreshold);
    if (visitor->least < 0 || visitor->least > kMostLeast)
      base::refuse(kCall, "visitor.least (", visitor->least, ") is not within 0 .. ", kMostLeast);
    sweep.threshold = visitor->threshold;
    sweep.below_threshold = std::nextafter(sweep.threshold, 0.0f);
    sweep.least = visitor->least;
    // Weights of a row sum to 1 within rounding.
    sweep.capacity = std::min<std::int64_t>(
        study.kv_len, static_cast<std::int64_t>(1.01 / static_cast<double>(sweep.threshold)) + 1);
  }
  return sweep;
}

HeadTile HeadStatistics::State::tile_of(const HeadSweep& sweep, std::int64_t head, Bench& bench,
                                        int rows, HeadRowVisitor* visitor) {
  HeadTile tile;
  tile.sums = &bench.sums;
  if (study.received) tile.received = received.data() + head * study.kv_len;
  for (std::size_t m = 0; m < study.maps.size(); ++m)
    tile.maps[m] = maps[m].data() + static_cast<std::size_t>(head) * map_size(m);
  if (visitor == nullptr) return tile;
  if (visitor->sparse) {
    const auto slots = static_cast<std::size_t>(kMostTileRows * (sweep.capacity + sweep.least));
    bench.keys.resize(slots);
    bench.weights.resize(slots);
    bench.entries.assign(kMostTileRows, {.floor = sweep.least > 0 ? 0.0f : sweep.below_threshold});
    tile.entries = bench.entries.data();
    tile.keys = bench.keys.data();
    tile.weights = bench.weights.data();
  }
  if (visitor->wants_full(head)) {
    bench.full.assign(static_cast<std::size_t>(rows * sweep.attend.kv_len), 0.0f);
    tile.full = bench.full.data();
  }
  return tile;
}

namespace {

/// A tile's sparse rows in key order: those at the threshold, or the largest where they are fewer.
void gather_entries(const HeadSweep& sweep, Bench& bench, int rows) {
  bench.offsets.assign(1, 0);
  bench.row_keys.clear();
  bench.row_weights.clear();
  bench.rest.clear();
  for (int i = 0; i < rows; ++i) {
    const RowEntries& entries = bench.entries[static_cast<std::size_t>(i)];
    const bool enough = entries.count >= sweep.least;
    const std::int64_t at = i * (sweep.capacity + sweep.least) + (enough ? 0 : sweep.capacity);
    bench.order.clear();
    for (std::int64_t j = at; j < at + (enough ? entries.count : entries.most); ++j) {
      bench.order.emplace_back(bench.keys[static_cast<std::size_t>(j)],
                               bench.weights[static_cast<std::size_t>(j)]);
    }
    if (!enough) std::sort(bench.order.begin(), bench.order.end());
    double kept = 0;
    for (const auto& [key, weight] : bench.order) {
      bench.row_keys.push_back(key);
      bench.row_weights.push_back(weight);
      kept += static_cast<double>(weight);
    }
    bench.offsets.push_back(static_cast<std::int64_t>(bench.row_keys.size()));
    const double total =
        static_cast<double>(bench.sums.first[i]) + static_cast<double>(bench.sums.rest[i]);
    const double rest = total - kept;
    bench.rest.push_back(rest < 0 ? 0.0f : static_cast<float>(rest));  // NaN stays
  }
}

}  // namespace

void HeadStatistics::State::take_rows(const HeadSweep& sweep, std::int64_t head,
                                      std::int64_t first_row, int rows, const TileSums& tile) {
  const kernels::Sequence sequence = kernels::sequence_of(sweep.attend, 0);
  for (int i = 0; i < rows; ++i) {
    const std::int64_t query = first_row + i;
    RowPlace place;
    place.q_pos = sequence.q_pos0 + query;
    const bool known = !study.cross && place.q_pos > 0 && place.q_pos < study.kv_len;
    place.copy_of_first =
        known && !tokens.empty() && tokens[static_cast<std::size_t>(place.q_pos)] == tokens[0];
    place.first_is_delimiter = !delimiters.empty() && delimiters[0] != 0;
    sums[static_cast<std::size_t>(head)].take(tile, i, place);
    if (!study.rows) continue;
    const std::size_t at = row_at(head, sweep.first_query + query);
    entropy[at] = HeadSums::entropy_of(tile, i);
    first[at] = HeadSums::first_of(tile, i);
    largest[at] = HeadSums::largest_of(tile, i);
    largest_key[at] = tile.largest_key[i];
  }
}

void HeadStatistics::State::run_head(const HeadKernel& kernel, const HeadSweep& sweep,
                                     std::int64_t head, Bench& bench, std::byte* scratch,
                                     HeadRowVisitor* visitor) {
  // Rows past the sequence's valid length are none of its rows.
  const std::int64_t q_len = kernels::sequence_of(sweep.attend, 0).q_len;
  for (std::int64_t first_row = 0; first_row < q_len; first_row += kernel.rows) {
    const int rows = static_cast<int>(std::min<std::int64_t>(kernel.rows, q_len - first_row));
    const HeadTile tile = tile_of(sweep, head, bench, rows, visitor);
    kernel.run(sweep, head, first_row, rows, tile, scratch);
    take_rows(sweep, head, first_row, rows, bench.sums);
    if (visitor == nullptr || (!tile.entries && !tile.full)) continue;
    HeadRowBlock block;
    block.head = head;
    block.first_query = sweep.first_query + first_row;
    block.rows = rows;
    if (tile.entries) {
      gather_entries(sweep, bench, rows);
      block.offsets = bench.offsets.data();
      block.keys = bench.row_keys.data();
      block.weights = bench.row_weights.data();
      block.rest = bench.rest.data();
    }
    block.full = tile.full;
    block.full_keys = tile.full ? sweep.attend.kv_len : 0;
    visitor->visit(block);
  }
}

HeadStatistics::HeadStatistics(const HeadStudy& study) {
  check_study(study);
  state_ = std::make_unique<State>(study);
}
HeadStatistics::HeadStatistics(HeadStatistics&&) noexcept = default;
HeadStatistics& HeadStatistics::operator=(HeadStatistics&&) noexcept = default;
HeadStatistics::~HeadStatistics() = default;

void HeadStatistics::add(const AttentionArguments& call, const Options& options,
                         HeadRowVisitor* visitor) {
  State& s = *state_;
  const Crew crew = crew_of(kCall, options).for_items(s.study.q_heads);
  const HeadSweep sweep = s.sweep_of(call, visitor);
  const kernels::AttendCall& attend = sweep.attend;
  const kernels::cpu::Backend& backend = kernels::cpu::backend(resolve_isa(options.isa));
  const HeadKernel& kernel = path_of(attend, backend).heads;
  const std::int64_t stride = base::round_up(kernel.scratch_bytes(sweep), base::kCacheLine);
  base::AlignedBuffer<std::byte> memory(static_cast<std::size_t>(crew.workers * stride));
  if (s.benches.size() < static_cast<std::size_t>(crew.workers))
    s.benches.resize(static_cast<std::size_t>(crew.workers));
  base::share_out(*crew.executor, crew.workers, s.study.q_heads,
                  [&](std::int64_t head, int worker) {
                    s.run_head(kernel, sweep, head, s.benches[static_cast<std::size_t>(worker)],
                               memory.data() + worker * stride, visitor);
                  });
  s.seen += attend.q_len;
}

std::int64_t HeadStatistics::heads() const { return state_->study.q_heads; }
std::int64_t HeadStatistics::rows_seen() const { return state_->seen; }

HeadMeasures HeadStatistics::measures(std::int64_t head) const {
  const State& s = *state_;
  s.check_head(head);
  const base::FloatEnvironment environment(base::Subnormals::kept);
  return s.sums[static_cast<std::size_t>(head)].measures(!s.tokens.empty(), !s.delimiters.empty(),
                                                         s.study.cross);
}

HeadRowStatistics HeadStatistics::rows(std::int64_t head) const {
  const State& s = *state_;
  s.check_head(head);
  if (!s.study.rows) return {};
  const std::size_t at = s.row_at(head, 0), n = static_cast<std::size_t>(s.study.q_len);
  return {{s.entropy.data() + at, n},
          {s.first.data() + at, n},
          {s.largest.data() + at, n},
          {s.largest_key.data() + at, n}};
}

std::span<const float> HeadStatistics::received(std::int64_t head) const {
  const State& s = *state_;
  s.check_head(head);
  if (!s.study.received) return {};
  const auto n = static_cast<std::size_t>(s.study.kv_len);
  return {s.received.data() + static_cast<std::size_t>(head) * n, n};
}

std::span<const float> HeadStatistics::map(std::int64_t head, int index) const {
  const State& s = *state_;
  s.check_head(head);
  map_spec(index);
  const auto m = static_cast<std::size_t>(index);
  return {s.maps[m].data() + static_cast<std::size_t>(head) * s.map_size(m), s.map_size(m)};
}

HeadMapSpec HeadStatistics::map_spec(int index) const {
  const State& s = *state_;
  if (index < 0 || static_cast<std::size_t>(index) >= s.study.maps.size())
    base::refuse(kCall, "map (", index, ") is not one of ", s.study.maps.size());
  return s.study.maps[static_cast<std::size_t>(index)];
}

}  // namespace polyhead::inline v0
