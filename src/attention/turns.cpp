#include "attention/turns.hpp"

#include <algorithm>
#include <compare>

#include "kernels/cpu/backend.hpp"

namespace polyhead::inline v0 {

using kernels::AttendCall;
using kernels::KeyRange;
using kernels::Sequence;
using kernels::cpu::kSplitKeys;

namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Whether rows of several sequences may be computed as those of one: of all that changes the
/// scores of keys that all of them see, only ALiBi may depend on more than the head.
bool rows_are_alike(const AttendCall& call) {
  const kernels::ScoreSpec& score = call.score;
  return !score.bias.data && score.custom_count == 0 && score.dropout == 0.0f &&
         !call.mask.q_documents.data && !call.entropy.data && !call.max_weight.data &&
         !call.max_key.data;
}

/// Of the first `most` keys, a multiple of 8, those that a row of a boolean mask shows without a
/// gap, in eights for a packed one. 0 for rows that are not dense.
std::int64_t shown(const kernels::PairTable& table, std::int64_t row, std::int64_t most) {
  const bool bits = table.type == ElementType::bit;
  if (table.key != 1) return 0;
  const std::byte* const from = table.data + (bits ? row / 8 : row);
  const std::byte *const end = from + (bits ? most / 8 : most),
                         *const gap = std::find_if(from, end, [&](std::byte b) {
                           return bits ? b != std::byte{0xff} : b == std::byte{0};
                         });
  return bits ? (gap - from) * 8 : gap - from;
}

/// Of the first `most` keys of a sequence those before any that a boolean mask hides from a query.
std::int64_t shown_to_all(const AttendCall& call, const Sequence& s, std::int64_t most) {
  const kernels::PairTable& table = call.mask.visible;
  if (!table.data) return most;
  const std::int64_t heads = table.head == 0 ? 1 : call.q_heads;
  const std::int64_t queries = table.query == 0 ? 1 : s.q_len;
  for (std::int64_t head = 0; head < heads; ++head) {
    for (std::int64_t query = 0; query < queries; ++query)
      most = shown(table, s.batch * table.batch + head * table.head + query * table.query, most);
  }
  return most;
}

/// Splits from the first one on that all queries of a sequence see in full.
std::int64_t splits_in_full(const AttendCall& call, const Sequence& s) {
  const KeyRange first = structural_range(call.mask, s, s.q_pos0);
  const KeyRange last = structural_range(call.mask, s, s.q_pos0 + s.q_len - 1);
  if (first.begin > 0 || last.begin > 0) return 0;
  const std::int64_t splits = std::min(first.end, last.end) / kSplitKeys;
  return shown_to_all(call, s, splits * kSplitKeys) / kSplitKeys;
}

std::int64_t work_of(const Sequence& s) { return s.q_len * (s.kv_len + kernels::cpu::kKeyBlock); }

}  // namespace

/// Finds equal beginnings in a page table. Sorted by what they could share, sequences with equal
/// beginnings stand side by side.
class PrefixSearch {
 public:
  PrefixSearch(const AttendCall& call, Turns& turns, std::int64_t most_rows)
      : call_(call), turns_(turns), count_(call.batch), most_rows_(most_rows) {
    for (std::int64_t b = 0; b < count_; ++b) {
      const Sequence s = kernels::sequence_of(call, b);
      rows_[b] = s.q_len * call.group();
      const bool whole = rows_[b] > 0 && rows_[b] <= most_rows;
      entries_[b] = whole ? splits_in_full(call, s) * pages_a_split() : 0;
    }
  }

  void run() {
    std::int16_t* const order = turns_.sequences_;
    std::sort(order, order + count_, [&](std::int16_t a, std::int16_t b) {
      const auto order_of = std::lexicographical_compare_three_way(
          table(a), table(a) + entries_[a], table(b), table(b) + entries_[b]);
      return std::is_eq(order_of) ? a < b : std::is_lt(order_of);
    });
    for (std::int64_t i = 1; i < count_; ++i) {
      const std::int16_t a = order[i - 1], b = order[i];
      const auto differ =
          std::mismatch(table(a), table(a) + entries_[a], table(b), table(b) + entries_[b]);
      common_[i] = (differ.first - table(a)) / pages_a_split();
    }
    group(0, count_);
    std::int64_t groups = turns_.count_;
    std::copy_n(turns_.turns_, groups, groups_);
    turns_.count_ = 0;
    for (std::int64_t g = 0; g < groups; ++g) cut(groups_[g]);
  }

 private:
  const std::int32_t* table(std::int64_t b) const {
    return call_.pages.data + b * call_.pages.stride;
  }
  std::int64_t pages_a_split() const { return kSplitKeys >> call_.pages.shift; }

  void add(const Turn& turn) { turns_.turns_[turns_.count_++] = turn; }

  /// Groups sequences [begin, end) of the order: all together by what all share, or in smaller
  /// groups by what these share, whichever spares more splits. Returns how many that are.
  std::int64_t group(std::int64_t begin, std::int64_t end) {
    if (end - begin <= 1) {
      if (begin < end) add({begin, 1, 0});
      return 0;
    }
    const std::int64_t common = *std::min_element(common_ + begin + 1, common_ + end);
    const std::int64_t together = (end - begin - 1) * common, mark = turns_.count_;
    std::int64_t apart = 0, from = begin;
    for (std::int64_t i = begin + 1; i <= end; ++i) {
      if (i < end && common_[i] > common) continue;
      apart += group(from, i);
      from = i;
    }
    if (together == 0 || together < apart) return apart;
    turns_.count_ = mark;
    add({begin, end - begin, common});
    return together;
  }

  /// Turns of a group: about equal numbers of rows, as many as one item takes.
  void cut(const Turn& group) {
    if (group.splits == 0) return add(group);
    std::int64_t rows = 0;
    for (std::int64_t i = 0; i < group.count; ++i) rows += rows_[turns_.sequence(group, i)];
    const std::int64_t even = ceil_div(rows, ceil_div(rows, most_rows_));
    Turn turn{group.first, 0, group.splits};
    rows = 0;
    for (std::int64_t i = 0; i < group.count; ++i) {
      const std::int64_t more = rows_[turns_.sequence(group, i)];
      if (turn.count > 0 && (rows >= even || rows + more > most_rows_)) {
        close(turn);
        turn = {group.first + i, 0, group.splits};
        rows = 0;
      }
      ++turn.count;
      rows += more;
    }
    close(turn);
  }

  void close(Turn turn) {
    if (turn.count == 1) turn.splits = 0;
    turns_.share_ = turns_.share_ || turn.splits > 0;
    add(turn);
  }

  const AttendCall& call_;
  Turns& turns_;
  const std::int64_t count_, most_rows_;
  std::int64_t rows_[Turns::kMost];
  std::int64_t entries_[Turns::kMost];  // of the page table that a sequence could share
  std::int64_t common_[Turns::kMost];   // splits shared with the one before in the order
  Turn groups_[Turns::kMost];
};

Turns::Turns(const AttendCall& call, std::int64_t most_rows) {
  count_ = call.batch;
  const bool uneven = call.q_offsets.given() || call.q_lengths.given() || call.kv_lengths.given();
  if (!uneven || call.batch > kMost) return;
  listed_ = true;
  for (std::int64_t b = 0; b < call.batch; ++b) {
    sequences_[b] = static_cast<std::int16_t>(b);
    turns_[b] = {b, 1, 0};
  }
  if (call.pages.given() && call.batch > 1 && call.kv_heads > 0 && rows_are_alike(call)) {
    count_ = 0;
    PrefixSearch(call, *this, most_rows).run();
  }
  std::int64_t work[kMost];  // by a turn's first sequence
  for (std::int64_t t = 0; t < count_; ++t) {
    std::int64_t& sum = work[turns_[t].first] = 0;
    for (std::int64_t i = 0; i < turns_[t].count; ++i)
      sum += work_of(kernels::sequence_of(call, sequence(turns_[t], i)));
  }
  std::sort(turns_, turns_ + count_, [&](const Turn& a, const Turn& b) {
    return work[a.first] != work[b.first] ? work[a.first] > work[b.first] : a.first < b.first;
  });
}

}  // namespace polyhead::inline v0
