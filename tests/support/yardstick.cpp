#include "support/yardstick.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/element.hpp"
#include "kernels/dropout.hpp"
#include "kernels/reference/attend.hpp"

namespace polyhead::test {
namespace {

using kernels::AttendCall;
using kernels::Operand;
using kernels::Sequence;

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

float load(const std::byte* data, const Operand& of, std::int64_t token, std::int64_t head,
           std::int64_t dim) {
  return base::load_float32(data + token * of.token + head * of.head + dim * of.dim, of.type);
}

float score_of(const AttendCall& call, const Sequence& s, std::int64_t head, std::int64_t query,
               std::int64_t key) {
  float sum = 0.0f;
  for (std::int64_t d = 0; d < call.head_dim; ++d) {
    sum += load(s.q, call.q, query, head, d) * load(s.k, call.k, key, head / call.group(), d);
  }
  const kernels::ScoreSpec& spec = call.score;
  sum *= spec.scale;
  if (spec.soft_cap != 0.0f) sum = spec.soft_cap * std::tanh(sum / spec.soft_cap);
  if (spec.bias.data != nullptr) {
    sum += base::load_float32(spec.bias.data + s.batch * spec.bias.batch + head * spec.bias.head +
                                  query * spec.bias.query + key * spec.bias.key,
                              spec.bias.type);
  }
  const std::int64_t q_pos = s.q_pos0 + query;
  if (spec.alibi) {
    const float slope = spec.alibi_slopes != nullptr ? spec.alibi_slopes[head * spec.alibi_stride]
                                                     : alibi_slope(head, call.q_heads);
    sum -= slope * static_cast<float>(std::abs(q_pos - key));
  }
  for (int i = 0; i < spec.custom_count; ++i) {
    spec.custom[i]->apply({&sum, 1, 1, s.batch, key, &head, &query, &q_pos});
  }
  return sum;
}

void attend_row(const AttendCall& call, const Sequence& s, std::int64_t head, std::int64_t query,
                WeightRounding rounding, std::int64_t at, TwoPass& result) {
  std::vector<float> p(static_cast<std::size_t>(s.kv_len), kMinusInfinity);
  float largest = kMinusInfinity;
  for (std::int64_t key = 0; key < s.kv_len; ++key) {
    if (!kernels::reference::visible(call, s, head, query, key)) continue;
    const float score = score_of(call, s, head, query, key);
    p[static_cast<std::size_t>(key)] = score;
    largest = std::max(largest, score);
  }
  float& lse = result.lse[static_cast<std::size_t>(at)];
  lse = largest;
  if (largest == kMinusInfinity) return;
  const kernels::ScoreSpec& spec = call.score;
  const float sink = spec.sink == nullptr ? kMinusInfinity : spec.sink[head * spec.sink_stride];
  if (sink - largest > 64.0f) largest = sink;  // beside which exp(sink - largest) would be infinite
  float total = 0.0f, rounded_total = 0.0f, moment = 0.0f;
  for (float& x : p) {
    const float shifted = x - largest;
    x = std::exp(shifted);
    total += x;
    if (x > 0.0f) moment += x * shifted;
    if (rounding == WeightRounding::bfloat16) {
      x = base::bfloat16_bits_to_float32(base::float32_to_bfloat16_bits(x));
    }
    rounded_total += x;
  }
  if (spec.sink != nullptr) {
    const float of_sink = std::exp(sink - largest), keys = total;
    total += of_sink;
    rounded_total += of_sink;
    result.entropy[static_cast<std::size_t>(at)] = (std::log(total) * keys - moment) / total;
  } else {
    result.entropy[static_cast<std::size_t>(at)] = std::log(total) - moment / total;
  }
  lse = largest + std::log(total);
  if (spec.dropout != 0.0f) {
    const std::int64_t id = spec.sequence_ids.given() ? spec.sequence_ids[s.batch] : s.batch;
    for (std::size_t key = 0; key < p.size(); ++key) {
      const bool keep = kernels::dropout_keeps_pair(spec.seed, id, head, s.q_pos0 + query,
                                                    static_cast<std::int64_t>(key), spec.dropout);
      p[key] = keep ? p[key] / (1.0f - spec.dropout) : 0.0f;
    }
  }
  std::vector<float> sums(static_cast<std::size_t>(call.value_dim), 0.0f);
  for (std::int64_t key = 0; key < s.kv_len; ++key) {
    const float weight = p[static_cast<std::size_t>(key)];
    if (weight == 0.0f) continue;
    for (std::int64_t d = 0; d < call.value_dim; ++d) {
      sums[static_cast<std::size_t>(d)] += weight * load(s.v, call.v, key, head / call.group(), d);
    }
  }
  for (std::int64_t d = 0; d < call.value_dim; ++d) {
    std::byte rounded[4];
    base::store_float32(rounded, call.out.type, sums[static_cast<std::size_t>(d)] / rounded_total);
    result.out[static_cast<std::size_t>(at * call.value_dim + d)] =
        base::load_float32(rounded, call.out.type);
  }
}

}  // namespace

TwoPass two_pass(const AttendCall& call, WeightRounding rounding) {
  TwoPass result;
  const std::int64_t rows = call.batch * call.q_len * call.q_heads;
  result.out.assign(static_cast<std::size_t>(rows * call.value_dim), 0.0f);
  result.lse.assign(static_cast<std::size_t>(rows), kMinusInfinity);
  result.entropy.assign(static_cast<std::size_t>(rows), 0.0f);
  for (std::int64_t b = 0; b < call.batch; ++b) {
    const Sequence s = kernels::sequence_of(call, b);
    for (std::int64_t query = 0; query < s.q_len; ++query) {
      for (std::int64_t head = 0; head < call.q_heads; ++head) {
        attend_row(call, s, head, query, rounding, (b * call.q_len + query) * call.q_heads + head,
                   result);
      }
    }
  }
  return result;
}

WeightRounding rounding_of(const AttendCall& call, Isa isa) {
  const bool pairs = isa >= Isa::avx512_bf16, integers = pairs || isa == Isa::avx2;
  if (call.q.type != ElementType::bfloat16) return WeightRounding::none;
  const auto both = [&](ElementType type) { return call.k.type == type && call.v.type == type; };
  for (const ElementType type :
       {ElementType::bfloat16, ElementType::float8_e4m3, ElementType::float8_e5m2}) {
    if (pairs && both(type)) return WeightRounding::bfloat16;
  }
  if (integers && (both(ElementType::int8) || both(ElementType::int4)))
    return WeightRounding::integer;
  return WeightRounding::none;
}

}  // namespace polyhead::test
