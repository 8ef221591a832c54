// From a head's sums to its measures and its role.
#include <cmath>
#include <limits>
#include <numbers>

#include "inspect/head_sums.hpp"

namespace polyhead::inline v0 {
namespace {

double ratio(double part, double whole) {
  return whole > 0 ? part / whole : std::numeric_limits<double>::quiet_NaN();
}

/// Whether key 0 is such a key for a query at `q_pos`, and for queries of its token.
bool first_is(kernels::Target target, std::int64_t q_pos, bool copy, bool delimiter) {
  switch (target) {
    case kernels::induction:
      return false;
    case kernels::duplicate:
      return copy;
    case kernels::previous:
      return q_pos == 1;
    case kernels::self:
      return q_pos == 0;
    case kernels::local:
      return q_pos >= 1 && q_pos <= kernels::kLocalWindow;
    case kernels::delimiter:
      return delimiter;
  }
  return false;
}

}  // namespace

void HeadSums::take(const kernels::TileSums& tile, int row, const RowPlace& place) {
  const double first = tile.first[row], first_seen = tile.first_seen[row];
  const double rest = tile.rest[row], rest_seen = tile.rest_seen[row];
  const double seen = first_seen + rest_seen;
  const double information = static_cast<double>(tile.information[row]) * std::numbers::ln2;
  ++rows;
  entropy += entropy_of(tile, row);
  if (seen > 0) {
    ++seeing_rows;
    largest += static_cast<double>(largest_of(tile, row));
  }
  if (first_seen > 0 && rest_seen > 0) {
    ++first_rows;
    first_mass += first;
  }
  distance += static_cast<double>(tile.distance[row]);
  distance_mass += rest;
  if (rest_seen >= 2 && !(rest <= 0)) {  // NaN too
    // R H = sum over the row's other keys of -w ln(w / R) = information + R ln R.
    spread += information + rest * std::log(rest);
    spread_most += rest * std::log(rest_seen);
  }
  for (int t = 0; t < kernels::kTargets; ++t) {
    Sum& sum = targets[t];
    const double mass = tile.target[t][row], count = tile.target_seen[t][row];
    const bool with_first =
        first_seen > 0 && first_is(static_cast<kernels::Target>(t), place.q_pos,
                                   place.copy_of_first, place.first_is_delimiter);
    if ((count > 0 || with_first) && seen >= 2) {
      ++sum.rows;
      sum.mass += mass + (with_first ? first : 0.0);
      sum.chance += (count + (with_first ? 1.0 : 0.0)) / seen;
    }
    if (count > 0 && rest_seen >= 2) {
      sum.part += mass;
      sum.whole += rest;
      sum.whole_chance += rest * count / rest_seen;
    }
  }
}

float HeadSums::entropy_of(const kernels::TileSums& tile, int row) {
  const double first = tile.first[row];
  const double of_first = first > 0 ? -first * std::log(first) : 0.0;
  // A row of one key has no entropy; rounding may leave a weight just off 1.
  const double sum = static_cast<double>(tile.information[row]) * std::numbers::ln2 + of_first;
  return static_cast<float>(sum > 0 ? sum : (std::isnan(sum) ? sum : 0.0));
}

float HeadSums::first_of(const kernels::TileSums& tile, int row) {
  return std::isnan(tile.rest[row]) ? tile.rest[row] : tile.first[row];  // which may be hidden
}

float HeadSums::largest_of(const kernels::TileSums& tile, int row) {
  const float all = tile.first[row] + tile.rest[row];
  return std::isnan(all) ? all : tile.largest[row];
}

HeadMeasures HeadSums::measures(bool tokens, bool delimiters, bool cross) const {
  const double unknown = std::numeric_limits<double>::quiet_NaN();
  HeadMeasures m;
  m.mean_entropy = rows > 0 ? entropy / static_cast<double>(rows) : unknown;
  m.first = ratio(first_mass, static_cast<double>(first_rows));
  m.spread = ratio(spread, spread_most);
  m.mean_distance = cross ? unknown : ratio(distance, distance_mass);
  m.mean_largest = ratio(largest, static_cast<double>(seeing_rows));
  for (int t = 0; t < kernels::kTargets; ++t) {
    const Sum& sum = targets[t];
    TargetMass& to = m.targets[static_cast<std::size_t>(t)];
    const bool by_token = t == kernels::induction || t == kernels::duplicate;
    if (t == kernels::delimiter ? !delimiters : (cross || (by_token && !tokens))) {
      to = {unknown, unknown, 0, unknown, unknown};
      continue;
    }
    const double n = static_cast<double>(sum.rows);
    to = {ratio(sum.mass, n), ratio(sum.chance, n), sum.rows, ratio(sum.part, sum.whole),
          ratio(sum.whole_chance, sum.whole)};
  }
  m.role = head_role(m);
  return m;
}

HeadRole head_role(const HeadMeasures& measures) {
  if (measures.first >= kRestingFirst) return HeadRole::resting;
  for (int t = 0; t < kHeadTargets; ++t) {
    if (measures.targets[static_cast<std::size_t>(t)].share >= kRoleShare)
      return static_cast<HeadRole>(t + 1);
  }
  return measures.spread >= kBroadSpread ? HeadRole::broad : HeadRole::mixed;
}

static_assert(static_cast<int>(HeadRole::induction) == static_cast<int>(HeadTarget::induction) + 1);
static_assert(static_cast<int>(HeadRole::delimiter) == static_cast<int>(HeadTarget::delimiter) + 1);
static_assert(static_cast<int>(HeadTarget::delimiter) == kernels::delimiter);
static_assert(static_cast<int>(HeadTarget::local) == kernels::local);
static_assert(kLocalKeys == kernels::kLocalWindow && kHeadTargets == kernels::kTargets);

const char* head_role_name(HeadRole role) {
  static constexpr const char* kNames[kHeadRoles] = {"resting",   "induction", "duplicate",
                                                     "previous",  "self",      "local",
                                                     "delimiter", "broad",     "mixed"};
  const auto i = static_cast<std::size_t>(role);
  return i < kHeadRoles ? kNames[i] : "?";
}

const char* head_target_name(HeadTarget target) {
  return head_role_name(static_cast<HeadRole>(static_cast<int>(target) + 1));
}

bool HeadRowVisitor::wants_full(std::int64_t) const { return false; }

}  // namespace polyhead::inline v0
