// The five steps of a layer, plainly: in double as the definition, or in float32 with the roundings
// a layer states, as the yardstick of its accuracy.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/element.hpp"
#include "polyhead/layer.h"

namespace polyhead_test {

/// Rows of numbers.
using Matrix = std::vector<std::vector<double>>;

/// Weights as plain [out][in] matrices, already rounded to the layer's weight type.
struct PlainWeights {
  Matrix q, k, v, o;
  std::vector<double> b_q, b_k, b_v, b_o;  // empty: none
  std::vector<double> q_norm, k_norm;
};

inline double rounded(double value, polyhead::ElementType type) {
  std::byte bytes[4];
  polyhead::base::store_float32(bytes, type, static_cast<float>(value));
  return polyhead::base::load_float32(bytes, type);
}

/// Number is double (exact, no roundings) or float (with the layer's roundings).
template <class Number>
class PlainLayer {
 public:
  PlainLayer(const polyhead::LayerConfig& config, const PlainWeights& weights)
      : c_(config), w_(weights) {
    bf16_ = config.weight_type == polyhead::ElementType::bfloat16;
    if (c_.rope) frequencies_ = polyhead::rope_frequencies(*c_.rope, c_.head_dim);
  }

  /// One sequence: x rows after `start` earlier tokens are not known here, so start is 0; kv from
  /// context (x itself for self attention); keys past kv_length are padding.
  Matrix forward(const Matrix& x, const Matrix& context, bool cross) const {
    const Matrix q = dress(product(x, w_.q, w_.b_q), c_.q_heads, w_.q_norm);
    const Matrix k = dress(product(context, w_.k, w_.b_k), c_.kv_heads, w_.k_norm);
    const Matrix v = round_rows(product(context, w_.v, w_.b_v));
    Matrix heads(x.size(),
                 std::vector<double>(static_cast<std::size_t>(c_.q_heads * c_.value_dim)));
    for (std::size_t i = 0; i < x.size(); ++i) {
      for (std::int64_t h = 0; h < c_.q_heads; ++h) attend(q[i], k, v, i, h, cross, heads[i]);
    }
    if (w_.o.empty()) return heads;
    return product(round_rows(heads), w_.o, w_.b_o);
  }

 private:
  Matrix product(const Matrix& x, const Matrix& w, const std::vector<double>& b) const {
    if (w.empty()) return x;  // no projection
    Matrix y;
    for (const auto& row : x) {
      std::vector<double>& to = y.emplace_back();
      for (std::size_t o = 0; o < w.size(); ++o) {
        Number sum = 0;
        for (std::size_t i = 0; i < row.size(); ++i) {
          sum += static_cast<Number>(activation(row[i])) * static_cast<Number>(w[o][i]);
        }
        if (!b.empty()) sum += static_cast<Number>(b[o]);
        to.push_back(sum);
      }
    }
    return y;
  }

  /// x of a bfloat16 layer is rounded in both modes: that is part of its meaning.
  double activation(double value) const {
    return bf16_ ? rounded(value, polyhead::ElementType::bfloat16) : value;
  }

  /// What the layer rounds between its steps, which the definition does not.
  Matrix round_rows(Matrix rows) const {
    if constexpr (sizeof(Number) == 4) {
      const auto type = bf16_ ? polyhead::ElementType::bfloat16 : polyhead::ElementType::float32;
      for (auto& row : rows) {
        for (double& value : row) value = rounded(value, type);
      }
    }
    return rows;
  }

  Matrix dress(Matrix rows, std::int64_t heads, const std::vector<double>& norm) const {
    const std::int64_t dim = c_.head_dim;
    for (std::size_t token = 0; token < rows.size(); ++token) {
      for (std::int64_t h = 0; h < heads; ++h) {
        double* const x = rows[token].data() + h * dim;
        if (c_.qk_norm) {
          Number squares = 0;
          for (std::int64_t d = 0; d < dim; ++d) {
            squares += static_cast<Number>(x[d]) * static_cast<Number>(x[d]);
          }
          const Number root =
              std::sqrt(squares / static_cast<Number>(dim) + static_cast<Number>(c_.norm_eps));
          for (std::int64_t d = 0; d < dim; ++d) {
            x[d] = static_cast<Number>(x[d]) / root *
                   static_cast<Number>(norm[static_cast<std::size_t>(d)]);
          }
        }
        if (c_.rope) turn(x, static_cast<double>(token));
      }
    }
    return round_rows(std::move(rows));
  }

  void turn(double* x, double position) const {
    const auto pairs = static_cast<std::int64_t>(frequencies_.size());
    const double factor = polyhead::rope_attention_factor(*c_.rope);
    for (std::int64_t i = 0; i < pairs; ++i) {
      const bool split = c_.rope->pairing == polyhead::RopePairing::half_split;
      double& a = x[split ? i : 2 * i];
      double& b = x[split ? i + pairs : 2 * i + 1];
      const double angle = position * frequencies_[static_cast<std::size_t>(i)];
      const auto cos = static_cast<Number>(factor * std::cos(angle));
      const auto sin = static_cast<Number>(factor * std::sin(angle));
      const auto old_a = static_cast<Number>(a), old_b = static_cast<Number>(b);
      a = old_a * cos - old_b * sin;
      b = old_a * sin + old_b * cos;
    }
  }

  bool visible(std::int64_t query, std::int64_t key) const {
    const polyhead::Mask& mask = c_.mask;
    if (mask.causal && key > query && key >= mask.prefix_length) return false;
    if (mask.windowed && mask.left >= 0 && key < query - mask.left) return false;
    return !(mask.windowed && mask.right >= 0 && key > query + mask.right);
  }

  void attend(const std::vector<double>& q, const Matrix& k, const Matrix& v, std::size_t query,
              std::int64_t head, bool cross, std::vector<double>& heads) const {
    const std::int64_t kv_head = head / (c_.q_heads / c_.kv_heads);
    const polyhead::Modifiers& m = c_.modifiers;
    const auto scale = static_cast<Number>(
        m.scale ? static_cast<double>(*m.scale) : 1 / std::sqrt(static_cast<double>(c_.head_dim)));
    std::vector<Number> scores(k.size());
    Number largest = -std::numeric_limits<Number>::infinity();
    for (std::size_t key = 0; key < k.size(); ++key) {
      Number s = 0;
      for (std::int64_t d = 0; d < c_.head_dim; ++d) {
        s += static_cast<Number>(q[static_cast<std::size_t>(head * c_.head_dim + d)]) *
             static_cast<Number>(k[key][static_cast<std::size_t>(kv_head * c_.head_dim + d)]);
      }
      s *= scale;
      if (m.soft_cap != 0.0f) {
        const auto cap = static_cast<Number>(m.soft_cap);
        s = cap * std::tanh(s / cap);
      }
      if (m.alibi.given()) {
        s -= static_cast<Number>(polyhead::alibi_slope(head, c_.q_heads)) *
             std::abs(static_cast<Number>(query) - static_cast<Number>(key));
      }
      const bool seen =
          cross || visible(static_cast<std::int64_t>(query), static_cast<std::int64_t>(key));
      scores[key] = seen ? s : -std::numeric_limits<Number>::infinity();
      largest = std::max(largest, scores[key]);
    }
    if (largest == -std::numeric_limits<Number>::infinity()) return;  // zeros
    Number total = 0, summed = 0;
    if (m.sink.given()) {
      const auto sink = static_cast<Number>(static_cast<const float*>(m.sink.data)[head]);
      largest = std::max(largest, sink);
      total = summed = std::exp(sink - largest);
    }
    for (Number& s : scores) {
      s = std::exp(s - largest);
      total += s;
      // The bf16 dot multiplies rounded weights and divides by their sum.
      if (sizeof(Number) == 4 && bf16_) {
        s = static_cast<Number>(rounded(s, polyhead::ElementType::bfloat16));
      }
      summed += s;
    }
    for (std::int64_t d = 0; d < c_.value_dim; ++d) {
      Number sum = 0;
      for (std::size_t key = 0; key < k.size(); ++key) {
        sum += scores[key] *
               static_cast<Number>(v[key][static_cast<std::size_t>(kv_head * c_.value_dim + d)]);
      }
      heads[static_cast<std::size_t>(head * c_.value_dim + d)] = sum / summed;
    }
  }

  polyhead::LayerConfig c_;
  const PlainWeights& w_;
  bool bf16_ = false;
  std::vector<double> frequencies_;
};

}  // namespace polyhead_test
