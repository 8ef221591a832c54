// Head measures by their definitions, one pair at a time in double precision.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "polyhead/heads.h"

namespace polyhead::test {

inline bool on_target(HeadTarget target, std::int64_t i, std::int64_t j,
                      const std::vector<std::int32_t>& tokens,
                      const std::vector<std::uint8_t>& delimiters) {
  const std::int64_t n = static_cast<std::int64_t>(tokens.size());
  const auto same = [&](std::int64_t a, std::int64_t b) {
    return a >= 0 && b >= 0 && a < n && b < n &&
           tokens[static_cast<std::size_t>(a)] == tokens[static_cast<std::size_t>(b)];
  };
  switch (target) {
    case HeadTarget::induction:
      return j < i && same(j - 1, i);
    case HeadTarget::duplicate:
      return j < i && same(j, i);
    case HeadTarget::previous:
      return j == i - 1;
    case HeadTarget::self:
      return j == i;
    case HeadTarget::local:
      return j >= i - 8 && j < i;
    case HeadTarget::delimiter:
      return delimiters[static_cast<std::size_t>(j)] != 0;
  }
  return false;
}

/// weights [q_len][kv_len]; a pair is visible where its weight is not 0 (in double, no weight of
/// moderate scores becomes 0). Query row r is at position q_pos0 + r.
inline HeadMeasures reference_measures(const double* weights, std::int64_t kv_len,
                                       std::int64_t q_len, std::int64_t q_pos0,
                                       const std::vector<std::int32_t>& tokens,
                                       const std::vector<std::uint8_t>& delimiters, bool cross) {
  const double unknown = std::numeric_limits<double>::quiet_NaN();
  const auto ratio = [&](double a, double b) { return b > 0 ? a / b : unknown; };
  HeadMeasures m;
  double entropy = 0, first = 0, first_rows = 0, largest = 0, seeing = 0, far = 0, mass = 0;
  double spread = 0, spread_most = 0;
  for (std::int64_t r = 0; r < q_len; ++r) {
    const double* w = weights + r * kv_len;
    double rest = 0, seen = 0, rest_seen = 0, top = 0, spent = 0;
    for (std::int64_t j = 0; j < kv_len; ++j) {
      if (w[j] == 0) continue;
      entropy -= w[j] * std::log(w[j]);
      seen += 1;
      top = w[j] > top ? w[j] : top;
      if (j == 0) continue;
      rest += w[j];
      rest_seen += 1;
      far += w[j] * std::abs(static_cast<double>(q_pos0 + r - j));
    }
    mass += rest;
    if (seen > 0) {
      seeing += 1;
      largest += top;
    }
    if (w[0] > 0 && rest_seen > 0) {
      first += w[0];
      first_rows += 1;
    }
    if (rest_seen >= 2) {
      for (std::int64_t j = 1; j < kv_len; ++j) {
        if (w[j] > 0) spent -= w[j] / rest * std::log(w[j] / rest);
      }
      spread += rest * spent;
      spread_most += rest * std::log(rest_seen);
    }
  }
  m.mean_entropy = ratio(entropy, static_cast<double>(q_len));
  m.first = ratio(first, first_rows);
  m.spread = ratio(spread, spread_most);
  m.mean_distance = cross ? unknown : ratio(far, mass);
  m.mean_largest = ratio(largest, seeing);
  for (int t = 0; t < kHeadTargets; ++t) {
    const auto target = static_cast<HeadTarget>(t);
    TargetMass& to = m.targets[static_cast<std::size_t>(t)];
    double sum = 0, chance = 0, part = 0, whole = 0, whole_chance = 0;
    for (std::int64_t r = 0; r < q_len; ++r) {
      if (cross && target != HeadTarget::delimiter) continue;
      const double* w = weights + r * kv_len;
      double on = 0, on_count = 0, outside = 0, outside_count = 0, rest = 0, count = 0;
      for (std::int64_t j = 0; j < kv_len; ++j) {
        if (w[j] == 0) continue;
        count += 1;
        const bool hit = on_target(target, q_pos0 + r, j, tokens, delimiters);
        on += hit ? w[j] : 0;
        on_count += hit;
        if (j == 0) continue;
        rest += w[j];
        outside += hit ? w[j] : 0;
        outside_count += hit;
      }
      const double others = count - (w[0] > 0);
      if (on_count > 0 && count >= 2) {
        ++to.rows;
        sum += on;
        chance += on_count / count;
      }
      if (outside_count > 0 && others >= 2) {
        part += outside;
        whole += rest;
        whole_chance += rest * outside_count / others;
      }
    }
    to.mean = ratio(sum, static_cast<double>(to.rows));
    to.mean_chance = ratio(chance, static_cast<double>(to.rows));
    to.share = ratio(part, whole);
    to.share_chance = ratio(whole_chance, whole);
  }
  return m;
}

inline void expect_near(double found, double expected, double bound, const std::string& what) {
  if (std::isnan(expected))
    EXPECT_TRUE(std::isnan(found)) << what << ": " << found << " is measurable";
  else
    EXPECT_NEAR(found, expected, bound) << what;
}

/// `bound`: the relative error of a weight; `longest`: of all distances between a query and a key.
inline void expect_measures(const HeadMeasures& found, const HeadMeasures& expected, double bound,
                            double longest, const std::string& what) {
  // Errors of weights are relative, so a mass of at most 1 errs by at most the bound; -w ln w by
  // (1 + |ln w|) times that and w times the exponent's own error.
  const double information = bound * (2 + std::log(longest + 1));
  expect_near(found.mean_entropy, expected.mean_entropy, information, what + " entropy");
  expect_near(found.first, expected.first, bound, what + " first");
  expect_near(found.spread, expected.spread, 2 * information / std::log(2.0), what + " spread");
  expect_near(found.mean_distance, expected.mean_distance, 2 * bound * longest, what + " distance");
  expect_near(found.mean_largest, expected.mean_largest, bound, what + " largest");
  for (int t = 0; t < kHeadTargets; ++t) {
    const auto target = static_cast<HeadTarget>(t);
    const std::string name = what + " " + head_target_name(target);
    EXPECT_EQ(found[target].rows, expected[target].rows) << name;
    expect_near(found[target].mean, expected[target].mean, bound, name);
    expect_near(found[target].mean_chance, expected[target].mean_chance, 1e-12, name + " chance");
    expect_near(found[target].share, expected[target].share, 2 * bound, name + " share");
    expect_near(found[target].share_chance, expected[target].share_chance, 2 * bound,
                name + " share by chance");
  }
}

}  // namespace polyhead::test
