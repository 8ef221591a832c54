// What latent attention is, in double, and how near to it a layer has to come.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/element.hpp"
#include "support/latent_model.h"

namespace polyhead::test {

using Matrix = std::vector<std::vector<double>>;

inline double round_to(double value, ElementType type) {
  std::byte bytes[4];
  base::store_float32(bytes, type, static_cast<float>(value));
  return base::load_float32(bytes, type);
}

/// The definition, one sequence, in double; weights rounded to the weight type, and x as a layer
/// of that type reads it.
class Definition {
 public:
  explicit Definition(const LatentModel& model) : m_(model), c_(model.c) {}

  Matrix operator()(const std::vector<float>& x, std::int64_t tokens) const {
    return over(x, latents(rows_of(x, tokens)));
  }

  /// With the latents that a cache holds in the place of its own.
  Matrix over(const std::vector<float>& x, const Matrix& latents) const {
    const std::size_t n = latents.size();
    const Matrix rows = rows_of(x, static_cast<std::int64_t>(n));
    Matrix q = rows;
    if (c_.q_rank > 0) {
      q = times(rows, m_.w_q_down, c_.q_rank);
      for (auto& row : q) norm(row, c_.q_rank, m_.q_norm);
    }
    q = times(q, m_.w_q, c_.heads * query_dim());
    for (std::size_t t = 0; t < n; ++t) {
      for (std::int64_t h = 0; h < c_.heads; ++h) {
        turn(q[t].data() + h * query_dim() + c_.nope_dim, t);
      }
    }
    Matrix only(n);
    for (std::size_t t = 0; t < n; ++t) {
      only[t].assign(latents[t].begin(), latents[t].begin() + c_.kv_rank);
    }
    const Matrix up = times(only, m_.w_kv_up, c_.heads * (c_.nope_dim + c_.value_dim));
    return times(attend(q, latents, up), m_.w_o, c_.model_dim);
  }

 private:
  std::int64_t query_dim() const { return c_.nope_dim + c_.rope_dim; }

  Matrix rows_of(const std::vector<float>& x, std::int64_t tokens) const {
    Matrix rows(static_cast<std::size_t>(tokens));
    auto value = x.begin();
    for (auto& row : rows) {
      for (std::int64_t i = 0; i < c_.model_dim; ++i, ++value) {
        // Only bfloat16 layers round x.
        row.push_back(c_.weight_type == ElementType::bfloat16 ? rounded(*value) : *value);
      }
    }
    return rows;
  }

  Matrix latents(const Matrix& rows) const {
    Matrix latents = times(rows, m_.w_kv_down, c_.kv_rank + c_.rope_dim);
    for (std::size_t t = 0; t < rows.size(); ++t) {
      norm(latents[t], c_.kv_rank, m_.kv_norm);
      turn(latents[t].data() + c_.kv_rank, t);
    }
    return latents;
  }

  double rounded(float value) const {
    return c_.weight_type == ElementType::float32 ? value : round_to(value, c_.weight_type);
  }

  Matrix times(const Matrix& x, const std::vector<float>& w, std::int64_t out) const {
    Matrix y(x.size());
    for (std::size_t t = 0; t < x.size(); ++t) {
      for (std::int64_t o = 0; o < out; ++o) {
        double sum = 0;
        for (std::size_t i = 0; i < x[t].size(); ++i) {
          sum += x[t][i] * rounded(w[static_cast<std::size_t>(o) * x[t].size() + i]);
        }
        y[t].push_back(sum);
      }
    }
    return y;
  }

  void norm(std::vector<double>& row, std::int64_t count, const std::vector<float>& weight) const {
    double squares = 0;
    for (std::int64_t i = 0; i < count; ++i)
      squares += row[static_cast<std::size_t>(i)] * row[static_cast<std::size_t>(i)];
    const double root = std::sqrt(squares / static_cast<double>(count) + c_.norm_eps);
    for (std::int64_t i = 0; i < count; ++i) {
      row[static_cast<std::size_t>(i)] *= weight[static_cast<std::size_t>(i)] / root;
    }
  }

  void turn(double* x, std::size_t position) const {
    if (c_.rope_dim == 0) return;
    const auto frequencies = rope_frequencies(*c_.rope, c_.rope_dim);
    for (std::size_t i = 0; i < frequencies.size(); ++i) {
      const double angle = static_cast<double>(position) * frequencies[i];
      const double a = x[2 * i], b = x[2 * i + 1];
      x[2 * i] = a * std::cos(angle) - b * std::sin(angle);
      x[2 * i + 1] = a * std::sin(angle) + b * std::cos(angle);
    }
  }

  Matrix attend(const Matrix& q, const Matrix& latents, const Matrix& up) const {
    Matrix out(q.size());
    const double scale = 1.0 / std::sqrt(static_cast<double>(query_dim()));
    for (std::size_t t = 0; t < q.size(); ++t) {
      for (std::int64_t h = 0; h < c_.heads; ++h) {
        const std::size_t first = static_cast<std::size_t>(h * (c_.nope_dim + c_.value_dim));
        std::vector<double> scores;
        double largest = -std::numeric_limits<double>::infinity(), total = 0;
        for (std::size_t key = 0; key <= t; ++key) {
          double s = 0;
          const double* const at = q[t].data() + h * query_dim();
          for (std::int64_t d = 0; d < c_.nope_dim; ++d) {
            s += at[d] * up[key][first + static_cast<std::size_t>(d)];
          }
          for (std::int64_t d = 0; d < c_.rope_dim; ++d) {
            s += at[c_.nope_dim + d] * latents[key][static_cast<std::size_t>(c_.kv_rank + d)];
          }
          scores.push_back(s * scale);
          largest = std::max(largest, scores.back());
        }
        for (double& s : scores) total += s = std::exp(s - largest);
        for (std::int64_t d = 0; d < c_.value_dim; ++d) {
          double sum = 0;
          for (std::size_t key = 0; key <= t; ++key) {
            sum += scores[key] * up[key][first + static_cast<std::size_t>(c_.nope_dim + d)];
          }
          out[t].push_back(sum / total);
        }
      }
    }
    return out;
  }

  const LatentModel& m_;
  const LatentConfig& c_;
};
/// Five products between x and y, whose values have a spread of about 1: the float32 roundings of a
/// sum of up to 60 terms, of either sign, add up as the root of 60 does; bfloat16 rounds once after
/// each.
inline constexpr double kFloat32Error = 8 * 5 * 0x1p-23, kBfloat16Error = 5 * 0x1p-8;

inline void expect_near(const std::vector<float>& y, const Matrix& expected, double error,
                        const std::string& what) {
  std::size_t i = 0;
  for (const auto& row : expected) {
    for (const double want : row) {
      ASSERT_LT(i, y.size()) << what;
      ASSERT_NEAR(y[i], want, error * (1 + std::abs(want))) << what << " at " << i;
      ++i;
    }
  }
  EXPECT_EQ(i, y.size()) << what;
}

}  // namespace polyhead::test
