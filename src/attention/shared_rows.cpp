#include "attention/shared_rows.hpp"

#include <cstring>

#include "base/ceil_div.hpp"
#include "polyhead/modifiers.h"

namespace polyhead::inline v0 {

using kernels::AttendCall;
using kernels::Operand;
using kernels::Sequence;
using kernels::cpu::PartialRow;

namespace {

/// The operand of one KV head alone.
void take_head(Operand& x, std::int64_t kv_head) {
  x.data += kv_head * x.head;
  if (x.scales.data) x.scales.data += kv_head * x.scales.head;
}

/// The rows of a sequence that belong to one KV head, dense and in order.
std::byte* gather(const AttendCall& call, const Sequence& s, std::int64_t kv_head, std::byte* to) {
  const Operand& q = call.q;
  const std::int64_t element = element_bytes(q.type), row = call.head_dim * element;
  const std::int64_t piece = q.dim == element ? row : element;
  for (std::int64_t query = 0; query < s.q_len; ++query) {
    for (std::int64_t member = 0; member < call.group(); ++member) {
      const std::byte* from = s.q + query * q.token + (kv_head * call.group() + member) * q.head;
      for (std::int64_t at = 0; at < row; at += piece, to += piece, from += q.dim)
        std::memcpy(to, from, static_cast<std::size_t>(piece));
    }
  }
  return to;
}

/// Bytes of q for `rows` rows, in whole positions.
std::int64_t q_bytes(const AttendCall& call, std::int64_t rows) {
  constexpr std::int64_t kWhole = sizeof(std::int64_t);
  return base::round_up(rows * call.head_dim * element_bytes(call.q.type), kWhole);
}

}  // namespace

std::int64_t SharedRows::bytes(const AttendCall& call, std::int64_t rows) {
  constexpr std::int64_t kPlace = sizeof(std::int64_t), kSlope = sizeof(float);
  return q_bytes(call, rows) + (call.score.bias.data ? rows * kPlace : 0) +
         (call.score.alibi ? rows * (kPlace + kSlope) : 0);
}

std::int64_t Members::rows(const AttendCall& call) const {
  std::int64_t queries = 0;
  for (std::int64_t i = first; i < end; ++i)
    queries += kernels::sequence_of(call, sequence(i)).q_len;
  return queries * call.group();
}

SharedRows::SharedRows(const AttendCall& call, const Members& members, std::int64_t splits,
                       std::int64_t kv_head, std::byte* memory)
    : call_(call) {
  const std::int64_t group = call.group(), element = element_bytes(call.q.type);
  std::byte* at = memory;
  for (std::int64_t i = members.first; i < members.end; ++i)
    at = gather(call, kernels::sequence_of(call, members.sequence(i)), kv_head, at);
  call_.batch = call_.kv_heads = 1;
  call_.q_heads = group;
  call_.q_len = members.rows(call) / group;
  call_.kv_len = splits * kernels::cpu::kSplitKeys;
  call_.q_offsets = call_.kv_offsets = call_.q_lengths = call_.kv_lengths = call_.q_start = {};
  call_.mask = {};
  const std::int64_t row = call.head_dim * element;
  call_.q = {memory, call.q.type, 0, group * row, row, element};
  take_head(call_.k, kv_head);
  take_head(call_.v, kv_head);
  call_.pages.data += members.sequence(members.first) * call.pages.stride;
  // Nothing is written: kernels only fetch what lies there, and ask whether there is an LSE.
  call_.out.batch = call_.out.token = call_.out.head = 0;
  std::byte* after = memory + q_bytes(call, call_.q_len * group);
  if (call.score.bias.data) after = place_bias(call, members, kv_head, after);
  if (call.score.alibi) place_alibi(call, members, kv_head, after);
}

std::byte* SharedRows::place_bias(const AttendCall& call, const Members& members,
                                  std::int64_t kv_head, std::byte* memory) {
  auto* const rows = reinterpret_cast<std::int64_t*>(memory);
  std::int64_t* at = rows;
  const std::int64_t group = call.group();
  for (std::int64_t i = members.first; i < members.end; ++i) {
    const Sequence s = kernels::sequence_of(call, members.sequence(i));
    for (std::int64_t row = 0; row < s.q_len * group; ++row)
      *at++ = kernels::bias_row(call, s.batch, kv_head * group + row % group, row / group);
  }
  call_.bias_rows = rows;
  return reinterpret_cast<std::byte*>(at);
}

void SharedRows::place_alibi(const AttendCall& call, const Members& members, std::int64_t kv_head,
                             std::byte* memory) {
  auto* const positions = reinterpret_cast<std::int64_t*>(memory);
  std::int64_t* at = positions;
  for (std::int64_t i = members.first; i < members.end; ++i) {
    const Sequence s = kernels::sequence_of(call, members.sequence(i));
    for (std::int64_t query = 0; query < s.q_len; ++query) *at++ = s.q_pos0 + query;
  }
  auto* const slopes = reinterpret_cast<float*>(at);
  const std::int64_t group = call.group(), first = kv_head * group;
  for (std::int64_t member = 0; member < group; ++member) {
    slopes[member] = call.score.alibi_slopes != nullptr
                         ? call.score.alibi_slopes[(first + member) * call.score.alibi_stride]
                         : alibi_slope(first + member, call.q_heads);
  }
  call_.q_positions = positions;
  call_.score.alibi_slopes = slopes;
  call_.score.alibi_stride = 1;
}

void SharedRows::attend(Attend* with, const kernels::cpu::WorkItem& of, std::byte* scratch,
                        std::byte* to) const {
  kernels::cpu::WorkItem item;
  item.rows = call_.q_len * call_.group();
  item.first_split = of.first_split;
  item.end_split = of.end_split;
  item.beside_others = of.beside_others;
  with(call_, item, scratch, to);
}

void copy_rows(const AttendCall& call, const PartialRows& from, const PartialRows& to,
               std::int64_t rows) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const PartialRow source = from.kernel->row(call, from.partial, from.first + r);
    const PartialRow target = to.kernel->row(call, to.partial, to.first + r);
    *target.max = *source.max;
    *target.total = *source.total;
    *target.exact_total = *source.exact_total;
    if (source.spread != nullptr && target.spread != nullptr) {
      *target.spread = *source.spread;
      *target.best = *source.best;
      *target.best_key = *source.best_key;
    }
    for (std::int64_t d = 0; d < call.value_dim; ++d)
      target.sums[d * target.step] = source.sums[d * source.step];
  }
}

void copy_all_rows(const AttendCall& call, const PartialRows& from, const PartialRows& to,
                   std::int64_t rows) {
  copy_rows(call, from, to, rows);
  const PartialRows last{from.kernel, from.partial, from.first + rows - 1};
  for (std::int64_t r = rows; r % to.kernel->least_rows != 0; ++r)
    copy_rows(call, last, {to.kernel, to.partial, r}, 1);
}

}  // namespace polyhead::inline v0
