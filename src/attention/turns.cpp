#include "attention/turns.hpp"

#include <algorithm>
#include <cstdint>

#include "base/ceil_div.hpp"
#include "kernels/cpu/backend.hpp"

namespace polyhead::inline v0 {

using base::ceil_div;
using kernels::AttendCall;
using kernels::KeyRange;
using kernels::Sequence;
using kernels::cpu::kSplitKeys;

namespace {

/// Whether rows of several sequences may be computed as those of one. User code and dropout ask for
/// the sequence of each pair.
bool rows_are_alike(const AttendCall& call) {
  return call.score.custom_count == 0 && call.score.dropout == 0.0f;
}

/// Of the first `most` keys, a multiple of 8, those at which a row of a boolean mask has `value`
/// without a gap, in eights for a packed one. 0 for rows that are neither dense nor one element.
/// Reads nothing where there are no keys to ask for.
std::int64_t alike(const kernels::PairTable& table, bool value, std::int64_t row,
                   std::int64_t most) {
  if (most == 0) return 0;
  const bool bits = table.type == ElementType::bit;
  if (table.key == 0 && !bits) return (table.data[row] != std::byte{0}) == value ? most : 0;
  if (table.key != 1) return 0;
  const std::byte of_bits{static_cast<unsigned char>(value ? 0xff : 0)};
  const auto differs = [&](std::byte b) {
    return bits ? b != of_bits : (b != std::byte{0}) != value;
  };
  const std::byte* const from = table.data + (bits ? row / 8 : row);
  const std::byte* const gap = std::find_if(from, from + (bits ? most / 8 : most), differs);
  return bits ? (gap - from) * 8 : gap - from;
}

/// Of the first `most` keys of a sequence those before any of another document than a query's.
std::int64_t of_all_documents(const AttendCall& call, const Sequence& s, std::int64_t most) {
  if (!call.mask.q_documents.data) return most;
  const auto id = [&](std::int64_t query) {
    return call.mask.q_documents.at(s.batch, s.token0 + query);
  };
  for (std::int64_t query = 1; query < s.q_len; ++query)
    if (id(query) != id(0)) return 0;
  std::int64_t key = 0;
  while (key < most && call.mask.kv_documents.at(s.batch, s.kv_token0 + key) == id(0)) ++key;
  return key;
}

/// Of the first `most` keys of a sequence those before any that a boolean mask does not show to all
/// queries.
std::int64_t shown_to_all(const AttendCall& call, const kernels::BooleanTable& table,
                          const Sequence& s, std::int64_t most) {
  const std::int64_t heads = table.head == 0 ? 1 : call.q_heads;
  const std::int64_t queries = table.query == 0 ? 1 : s.q_len;
  for (std::int64_t head = 0; head < heads; ++head) {
    for (std::int64_t query = 0; query < queries; ++query)
      most = alike(table, !table.hides,
                   s.batch * table.batch + head * table.head + query * table.query, most);
  }
  return most;
}

/// Splits from the first one on that all queries of a sequence see in full.
std::int64_t splits_in_full(const AttendCall& call, const Sequence& s) {
  const KeyRange first = structural_range(call.mask, s, s.q_pos0);
  const KeyRange last = structural_range(call.mask, s, s.q_pos0 + s.q_len - 1);
  if (first.begin > 0 || last.begin > 0) return 0;
  const std::int64_t splits = std::min(first.end, last.end) / kSplitKeys;
  std::int64_t keys = of_all_documents(call, s, splits * kSplitKeys);
  for (const kernels::BooleanTable& table : call.mask.booleans())
    keys = shown_to_all(call, table, s, keys / 8 * 8);
  return keys / kSplitKeys;
}

/// Whether the order counts: sequences may be of unequal work, or share keys.
bool is_arranged(const AttendCall& call) {
  const bool uneven = call.q_offsets.given() || call.q_lengths.given() || call.kv_lengths.given();
  return uneven && call.batch <= Turns::kMost;
}

std::int64_t work_of(const Sequence& s) { return s.q_len * (s.kv_len + kernels::cpu::kKeyBlock); }

}  // namespace

/// Finds equal beginnings in a page table. Sorted by what they could share, sequences with equal
/// beginnings stand side by side.
class PrefixSearch {
 public:
  PrefixSearch(const AttendCall& call, Turns& turns, std::int64_t most_rows)
      : call_(call),
        turns_(turns),
        count_(call.batch),
        most_rows_(most_rows),
        order_(turns.list<std::int32_t>(Turns::kSequences)),
        rows_(turns.list<std::int64_t>(Turns::kRows)),
        entries_(turns.list<std::int64_t>(Turns::kPages)),
        common_(turns.list<std::int64_t>(Turns::kCommon)) {
    for (std::int64_t b = 0; b < count_; ++b) {
      const Sequence s = kernels::sequence_of(call, b);
      rows_[b] = std::min(s.q_len * call.group(), most_rows + 1);
      const bool whole = rows_[b] > 0 && rows_[b] <= most_rows;
      entries_[b] = whole ? splits_in_full(call, s) * pages_a_split() : 0;
    }
  }

  void run() {
    std::sort(order_, order_ + count_, [&](std::int32_t a, std::int32_t b) {
      const auto order_of = std::lexicographical_compare_three_way(
          table(a), table(a) + entries_[a], table(b), table(b) + entries_[b]);
      return std::is_eq(order_of) ? a < b : std::is_lt(order_of);
    });
    for (std::int64_t i = 1; i < count_; ++i) {
      const std::int32_t a = order_[i - 1], b = order_[i];
      const auto differ =
          std::mismatch(table(a), table(a) + entries_[a], table(b), table(b) + entries_[b]);
      common_[i] = (differ.first - table(a)) / pages_a_split();
    }
    cut();
  }

 private:
  const std::int32_t* table(std::int64_t b) const {
    return call_.pages.data + b * call_.pages.stride;
  }
  std::int64_t pages_a_split() const { return kSplitKeys >> call_.pages.shift; }

  /// Turns of as many rows as one item takes. A cut costs what the sequences on its two sides have
  /// in common, which is then computed on both; of the cuts that cost least those that leave the
  /// smallest turns, since these even out best.
  void cut() {
    using Cost = Turns::Cost;
    // Of all cuts before a place in the order, and of the turn that ends there.
    Cost* const least = turns_.list<Cost>(Turns::kLeast);
    auto* const begin = turns_.list<std::int32_t>(Turns::kBegin);
    least[0] = {};
    for (std::int64_t end = 1; end <= count_; ++end) {
      std::int64_t rows = 0;
      for (std::int64_t from = end - 1; from >= 0; --from) {
        rows += rows_[order_[from]];
        if (from < end - 1 && (rows > most_rows_ || common_[from + 1] == 0)) break;
        const Cost cost{least[from].common + (from > 0 ? common_[from] : 0),
                        least[from].squares + rows * rows};
        if (from < end - 1 && cost >= least[end]) continue;
        least[end] = cost;
        begin[end] = static_cast<std::int32_t>(from);
      }
    }
    for (std::int64_t end = count_; end > 0; end = begin[end]) add(begin[end], end);
  }

  /// A turn of sequences [begin, end) of the order.
  void add(std::int64_t begin, std::int64_t end) {
    Turn& turn = turns_.list<Turn>(Turns::kTurns)[turns_.count_++];
    turn = {begin, end - begin, turns_.stretch_count_, 0};
    if (turn.count > 1) branch(turn, begin, end, 0);
  }

  /// Stretches of sequences [begin, end) of the order, which have their first splits behind them.
  void branch(Turn& turn, std::int64_t begin, std::int64_t end, std::int32_t first_split) {
    Stretch& mine = turns_.list<Stretch>(Turns::kStretches)[turns_.stretch_count_++];
    ++turn.stretches;
    mine.first = static_cast<std::int16_t>(begin - turn.first);
    mine.count = static_cast<std::int16_t>(end - begin);
    mine.first_split = first_split;
    if (!mine.shared()) {
      const Sequence s = kernels::sequence_of(call_, order_[begin]);
      mine.end_split = static_cast<std::int32_t>(ceil_div(s.kv_len, kSplitKeys));
      return;
    }
    const std::int64_t common = *std::min_element(common_ + begin + 1, common_ + end);
    mine.end_split = static_cast<std::int32_t>(common);
    for (std::int64_t from = begin, to = begin + 1; from < end; from = to++) {
      while (to < end && common_[to] > common) ++to;
      branch(turn, from, to, mine.end_split);
    }
  }

  const AttendCall& call_;
  Turns& turns_;
  const std::int64_t count_, most_rows_;
  std::int32_t* const order_;
  // Of each sequence its rows, and the entries of the page table that it could share; of each place
  // in the order the splits shared with the one before.
  std::int64_t *const rows_, *const entries_, *const common_;
};

std::size_t Turns::room_bytes(const AttendCall& call) {
  return is_arranged(call) ? room_bytes(call.batch) : 0;
}

void Turns::arrange(const AttendCall& call, std::int64_t most_rows, std::byte* room) {
  count_ = call.batch;
  if (!is_arranged(call)) return;
  room_ = call.batch > kWithin ? room : nullptr;
  each_ = static_cast<std::size_t>(call.batch + 1);
  auto* const sequences = list<std::int32_t>(kSequences);
  Turn* const turns = list<Turn>(kTurns);
  for (std::int64_t b = 0; b < call.batch; ++b) {
    sequences[b] = static_cast<std::int32_t>(b);
    turns[b] = {b, 1, 0, 0};
  }
  if (call.pages.given() && call.batch > 1 && call.kv_heads > 0 && rows_are_alike(call)) {
    count_ = 0;
    PrefixSearch(call, *this, most_rows).run();
  }
  auto* const work = list<std::int64_t>(kWork);  // by a turn's first sequence
  for (std::int64_t t = 0; t < count_; ++t) {
    std::int64_t& sum = work[turns[t].first] = 0;
    for (std::int64_t i = 0; i < turns[t].count; ++i)
      sum += work_of(kernels::sequence_of(call, sequence(turns[t], i)));
  }
  std::sort(turns, turns + count_, [&](const Turn& a, const Turn& b) {
    return work[a.first] != work[b.first] ? work[a.first] > work[b.first] : a.first < b.first;
  });
}

}  // namespace polyhead::inline v0
