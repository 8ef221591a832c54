#include "kernels/reference/attend.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/codes.hpp"
#include "base/element.hpp"
#include "kernels/dropout.hpp"

namespace polyhead::inline v0::kernels::reference {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
// From here on down float32 rounds to -inf: half a step below its lowest, to even. Compared with,
// so that the rounding mode of the calling thread does not matter.
constexpr double kNoFloat = -0x1.ffffffp127;

/// One query row of one head of one sequence.
struct Row {
  const AttendCall& call;
  const Sequence& sequence;
  std::int64_t head, query;

  std::int64_t kv_head() const { return head / call.group(); }
  std::int64_t q_pos() const { return sequence.q_pos0 + query; }
};

double element(const std::byte* sequence_data, const Operand& of, std::int64_t token,
               std::int64_t head, std::int64_t dim) {
  return base::load_float32(sequence_data + token * of.token + head * of.head + dim * of.dim,
                            of.type);
}

// Step 2: the score of a query and a key is their dot product.
double dot_product(const Row& row, std::int64_t key) {
  double sum = 0.0;
  for (std::int64_t d = 0; d < row.call.head_dim; ++d) {
    sum += element(row.sequence.q, row.call.q, row.query, row.head, d) *
           key_element(row.call, row.sequence, row.call.k, row.sequence.k, row.kv_head(), key, d);
  }
  return sum;
}

double bias_of(const Row& row, std::int64_t key) {
  const PairTable& bias = row.call.score.bias;
  return base::load_float32(bias.data + row.sequence.batch * bias.batch + row.head * bias.head +
                                row.query * bias.query + key * bias.key,
                            bias.type);
}

double slope_of(const Row& row) {
  const ScoreSpec& score = row.call.score;
  return score.alibi_slopes != nullptr ? score.alibi_slopes[row.head * score.alibi_stride]
                                       : alibi_slope(row.head, row.call.q_heads);
}

// A user's function sees a tile of one score.
double custom_score(const Row& row, const TileModifier& modifier, std::int64_t key, double score) {
  float one = static_cast<float>(score);
  const std::int64_t q_pos = row.q_pos();
  modifier.apply({&one, 1, 1, row.sequence.batch, key, &row.head, &row.query, &q_pos});
  return one;
}

// Step 3: scaled and modified.
double final_score(const Row& row, std::int64_t key) {
  return modified(row.call, row.sequence, row.head, row.query, key,
                  static_cast<double>(row.call.score.scale) * dot_product(row, key));
}

// Step 5: the sum of the values, each times its weight; what is hidden is not read.
void weigh_values(const Row& row, const std::vector<double>& weights,
                  const std::vector<char>& hidden, double* out) {
  for (std::int64_t d = 0; d < row.call.value_dim; ++d) {
    double sum = 0.0;
    for (std::size_t key = 0; key < weights.size(); ++key) {
      if (hidden[key]) continue;
      sum += weights[key] * key_element(row.call, row.sequence, row.call.v, row.sequence.v,
                                        row.kv_head(), static_cast<std::int64_t>(key), d);
    }
    out[d] = sum;
  }
}

void row_statistics(const std::vector<double>& weights, bool empty, std::size_t at,
                    Result& result) {
  result.max_key[at] = -1;
  if (empty) return;
  for (std::size_t key = 0; key < weights.size(); ++key) {
    const double w = weights[key];
    if (w != 0.0) result.entropy[at] -= w * std::log(w);
    if (w > result.max_weight[at] || result.max_key[at] < 0) {
      if (w == 0.0) continue;
      result.max_weight[at] = w;
      result.max_key[at] = static_cast<std::int64_t>(key);
    }
  }
}

// One row from the scores to the output; `at` is its index [row, head].
void attend_row(const Row& row, std::size_t at, double* dense_weights, Result& result) {
  const std::int64_t kv_len = row.sequence.kv_len;
  std::vector<double> weights(static_cast<std::size_t>(kv_len), kMinusInfinity);
  std::vector<char> hidden(weights.size(), 1);
  for (std::int64_t key = 0; key < kv_len; ++key) {
    if (!visible(row.call, row.sequence, row.head, row.query, key)) continue;
    const double s = final_score(row, key);
    weights[static_cast<std::size_t>(key)] = s;
    hidden[static_cast<std::size_t>(key)] = hides(row.call.score, s);
  }
  result.lse[at] = softmax(row.call.score, row.head, weights);
  const bool empty = result.lse[at] == kMinusInfinity;
  if (empty) hidden.assign(hidden.size(), 1);  // of weights of 0 alone too
  row_statistics(weights, empty, at, result);
  drop_out(row.call, row.sequence, row.head, row.query, weights);
  if (row.call.v.data != nullptr) {
    weigh_values(row, weights, hidden,
                 result.out.data() + at * static_cast<std::size_t>(row.call.value_dim));
  }
  if (dense_weights != nullptr) std::copy(weights.begin(), weights.end(), dense_weights);
}

bool table_says(const PairTable& table, const Sequence& s, std::int64_t head, std::int64_t query,
                std::int64_t key) {
  const std::int64_t at =
      s.batch * table.batch + head * table.head + query * table.query + key * table.key;
  if (table.type == ElementType::boolean) return table.data[at] != std::byte{0};
  return (std::to_integer<unsigned>(table.data[at >> 3]) >> (at & 7) & 1u) != 0;  // at may be < 0
}

}  // namespace

double key_element(const AttendCall& call, const Sequence& s, const Operand& x,
                   const std::byte* first, std::int64_t kv_head, std::int64_t key,
                   std::int64_t dim) {
  const KeyRows row = key_rows(call, s, x, first, kv_head, key);
  if (!base::is_code(x.type)) return base::load_float32(row.data + dim * x.dim, x.type);
  const float scale = row.scales ? row.scales[(dim >> x.scales.shift) * x.scales.block] : 1.0f;
  return base::code_to_float32(row.data, x.type, dim, scale);
}

double modified(const AttendCall& call, const Sequence& sequence, std::int64_t head,
                std::int64_t query, std::int64_t key, double score) {
  const Row row{call, sequence, head, query};
  const ScoreSpec& spec = call.score;
  if (spec.soft_cap != 0.0f) {
    const double cap = spec.soft_cap;
    score = cap * std::tanh(score / cap);
  }
  if (spec.bias.data != nullptr) {
    const double bias = bias_of(row, key);
    score = bias == kMinusInfinity ? bias : score + bias;  // hides the pair, whatever its score is
  }
  if (spec.alibi) score -= slope_of(row) * std::abs(static_cast<double>(row.q_pos() - key));
  for (int i = 0; i < spec.custom_count; ++i)
    score = custom_score(row, *spec.custom[i], key, score);
  // What modifiers take below float32 is -inf there, which hides the pair.
  return spec.may_hide() && score <= kNoFloat ? kMinusInfinity : score;
}

bool hides(const ScoreSpec& spec, double score) {
  return spec.may_hide() && score == kMinusInfinity;
}

// Step 4: the softmax over the visible keys.
double softmax(const ScoreSpec& spec, std::int64_t head, std::vector<double>& scores) {
  double largest = kMinusInfinity;
  for (double s : scores) {
    if (s > largest) largest = s;
  }
  const bool any_nan =
      std::any_of(scores.begin(), scores.end(), [](double s) { return std::isnan(s); });
  if (largest == kMinusInfinity && !any_nan) {
    std::fill(scores.begin(), scores.end(), 0.0);
    return kMinusInfinity;
  }
  const double sink = spec.sink == nullptr ? kMinusInfinity : spec.sink[head * spec.sink_stride];
  largest = std::max(largest, sink);
  double total = std::exp(sink - largest);
  for (double s : scores) total += std::exp(s - largest);
  for (double& s : scores) s = std::exp(s - largest) / total;
  return largest + std::log(total);
}

void drop_out(const AttendCall& call, const Sequence& s, std::int64_t head, std::int64_t query,
              std::vector<double>& weights) {
  const ScoreSpec& score = call.score;
  if (score.dropout == 0.0f) return;
  const std::int64_t id = score.sequence_ids.given() ? score.sequence_ids[s.batch] : s.batch;
  for (std::size_t key = 0; key < weights.size(); ++key) {
    const bool keep = dropout_keeps_pair(score.seed, id, head, s.q_pos0 + query,
                                         static_cast<std::int64_t>(key), score.dropout);
    weights[key] *= keep ? 1.0 / (1.0 - static_cast<double>(score.dropout)) : 0.0;
  }
}

bool visible(const AttendCall& call, const Sequence& s, std::int64_t head, std::int64_t query,
             std::int64_t key) {
  const MaskSpec& mask = call.mask;
  const std::int64_t ahead = key - (s.q_pos0 + query);  // how far the key lies after the query
  if (query >= s.q_len || key >= s.kv_len) return false;
  if (mask.causal && ahead > 0 && key >= s.prefix) return false;
  if (mask.left >= 0 && -ahead > mask.left && key >= mask.kept) return false;
  if (mask.right >= 0 && ahead > mask.right) return false;
  if (mask.q_documents.data != nullptr && mask.q_documents.at(s.batch, s.token0 + query) !=
                                              mask.kv_documents.at(s.batch, s.kv_token0 + key)) {
    return false;
  }
  for (const BooleanTable& table : mask.booleans())
    if (table_says(table, s, head, query, key) == table.hides) return false;
  return true;
}

Result attend(const AttendCall& call, bool want_weights, std::int64_t q_tokens) {
  const bool ragged = call.q_offsets.given();
  const std::int64_t rows = (ragged ? q_tokens : call.batch * call.q_len) * call.q_heads;
  Result result;
  result.out.assign(static_cast<std::size_t>(rows * call.value_dim), 0.0);
  result.lse.assign(static_cast<std::size_t>(rows), kMinusInfinity);
  result.entropy.assign(result.lse.size(), 0.0);
  result.max_weight.assign(result.lse.size(), 0.0);
  result.max_key.assign(result.lse.size(), -1);
  const std::int64_t pairs = call.q_len * call.kv_len;
  if (want_weights)
    result.weights.assign(static_cast<std::size_t>(call.batch * call.q_heads * pairs), 0.0);
  for (std::int64_t b = 0; b < call.batch; ++b) {
    const Sequence sequence = sequence_of(call, b);
    const std::int64_t first_row = ragged ? sequence.token0 : b * call.q_len;
    for (std::int64_t head = 0; head < call.q_heads; ++head) {
      for (std::int64_t query = 0; query < sequence.q_rows; ++query) {
        double* weights = nullptr;
        if (want_weights) {
          weights = result.weights.data() + (b * call.q_heads + head) * pairs + query * call.kv_len;
        }
        const std::int64_t at = (first_row + query) * call.q_heads + head;
        attend_row({call, sequence, head, query}, static_cast<std::size_t>(at), weights, result);
      }
    }
  }
  return result;
}

std::vector<double> received(const AttendCall& call, const std::vector<double>& weights) {
  std::vector<double> mass(static_cast<std::size_t>(call.batch * call.q_heads * call.kv_len), 0.0);
  for (std::int64_t head = 0; head < call.batch * call.q_heads; ++head) {
    for (std::int64_t query = 0; query < call.q_len; ++query) {
      for (std::int64_t key = 0; key < call.kv_len; ++key) {
        mass[static_cast<std::size_t>(head * call.kv_len + key)] +=
            weights[static_cast<std::size_t>((head * call.q_len + query) * call.kv_len + key)];
      }
    }
  }
  return mass;
}

std::vector<double> pooled(const AttendCall& call, const std::vector<double>& weights,
                           std::int64_t q_bins, std::int64_t kv_bins) {
  std::vector<double> map(static_cast<std::size_t>(call.batch * call.q_heads * q_bins * kv_bins),
                          0.0);
  for (std::int64_t head = 0; head < call.batch * call.q_heads; ++head) {
    for (std::int64_t r = 0; r < q_bins; ++r) {
      for (std::int64_t c = 0; c < kv_bins; ++c) {
        double& bin = map[static_cast<std::size_t>((head * q_bins + r) * kv_bins + c)];
        for (std::int64_t query = r * call.q_len / q_bins; query < (r + 1) * call.q_len / q_bins;
             ++query) {
          for (std::int64_t key = c * call.kv_len / kv_bins; key < (c + 1) * call.kv_len / kv_bins;
               ++key) {
            bin +=
                weights[static_cast<std::size_t>((head * call.q_len + query) * call.kv_len + key)];
          }
        }
      }
    }
  }
  return map;
}

}  // namespace polyhead::inline v0::kernels::reference
