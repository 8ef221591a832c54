#include "attention/items.hpp"

#include <algorithm>
#include <limits>

#include "attention/shared_rows.hpp"
#include "base/ceil_div.hpp"

namespace polyhead::inline v0 {

using base::ceil_div;
using kernels::AttendCall;
using kernels::cpu::AttendKernel;
using kernels::cpu::kSplitKeys;
using kernels::cpu::WorkItem;

namespace {

constexpr std::int64_t kAllSplits = std::numeric_limits<std::int64_t>::max() / kSplitKeys;

// Where keys are split: one at least, in which rows are finished.
std::int64_t items_of(const Stretch& stretch) { return std::max(1, stretch.splits()); }
std::int64_t items_a_tile(const Cut& cut) { return std::max<std::int64_t>(1, cut.splits.count); }

}  // namespace

SplitsSeen splits_seen(const AttendCall& call, std::int64_t batch) {
  const kernels::Sequence s = kernels::sequence_of(call, batch);
  SplitsSeen seen;
  if (s.q_len == 0) return seen;
  // Later queries see no earlier keys, and earlier ones no later.
  const std::int64_t begin = structural_range(call.mask, s, s.q_pos0).begin;
  const std::int64_t end = structural_range(call.mask, s, s.q_pos0 + s.q_len - 1).end;
  seen.first = begin / kSplitKeys;
  seen.kept = std::min(ceil_div(std::min(call.mask.kept, end), kSplitKeys), seen.first);
  seen.count = seen.kept + ceil_div(end, kSplitKeys) - seen.first;
  return seen;
}

Cut cut_of(const AttendCall& call, const Schedule& schedule, std::int64_t batch) {
  const std::int64_t rows = kernels::sequence_of(call, batch).q_len * call.group();
  Cut cut{schedule.kernel, rows, schedule.rows_per_item, 0, {}};
  if (schedule.few != nullptr && rows <= schedule.few->rows(call))
    cut.kernel = schedule.few, cut.rows_per_item = schedule.few->rows(call);
  cut.tiles = ceil_div(rows, cut.rows_per_item);
  if (schedule.key_splits > 1 || schedule.split_major) cut.splits = splits_seen(call, batch);
  return cut;
}

const AttendKernel& shared_kernel(const AttendCall& call, const Schedule& schedule,
                                  std::int64_t rows) {
  const AttendKernel* few = schedule.shared_few;
  return few != nullptr && rows <= few->rows(call) ? *few : *schedule.shared_many;
}

Work stretch_work(const AttendCall& call, const Schedule& schedule, const Turn& of,
                  const Stretch& part, std::int64_t kv_head) {
  const Members members = Members::of(schedule.turns, of, part);
  Work work;
  work.kind = Work::stretch;
  work.of = of;
  work.part = part;
  work.item.batch = members.sequence(members.first);
  work.item.kv_head = kv_head;
  work.item.rows = members.rows(call);
  work.item.first_split = part.first_split;
  work.item.end_split = part.end_split;
  work.item.beside_others = schedule.workers > 1;
  work.kernel = part.shared() ? &shared_kernel(call, schedule, work.item.rows)
                              : cut_of(call, schedule, work.item.batch).kernel;
  return work;
}

std::int64_t items_a_head(const Schedule& schedule, const Turn& turn, const Cut& first) {
  if (!turn.shares()) return first.tiles * items_a_tile(first);
  if (schedule.key_splits == 1) return 1;
  std::int64_t items = 0;
  for (int i = 0; i < turn.stretches; ++i) items += items_of(schedule.turns.stretch(turn, i));
  return items;
}

Cursor::Cursor(const AttendCall& call, const Schedule& schedule)
    : call_(call), schedule_(schedule) {
  enter(0);
}

void Cursor::enter(std::int64_t at) {
  at_ = at;
  turn_ = schedule_.turns[at];
  cut_ = cut_of(call_, schedule_, schedule_.turns.sequence(turn_, 0));
  items_a_head_ = items_a_head(schedule_, turn_, cut_);
  count_ = items_a_head_ * call_.kv_heads;
  stretch_ = 0;
  stretch_base_ = 0;
}

Work Cursor::at(std::int64_t index) {
  while (index >= base_ + count_) {
    base_ += count_;
    enter(at_ + 1);
  }
  index -= base_;
  if (turn_.shares()) return of_several(index);
  return schedule_.split_major ? of_split(index) : of_one(index);
}

Work Cursor::of_sequence() const {
  Work work;
  work.kernel = cut_.kernel;
  work.item.batch = schedule_.turns.sequence(turn_, 0);
  work.item.beside_others = schedule_.workers > 1;
  return work;
}

Work Cursor::of_split(std::int64_t index) const {
  const std::int64_t split = index / call_.kv_heads;
  Work work = of_sequence();
  work.first_split = split == 0;
  work.last_split = split == items_a_head_ - 1;
  WorkItem& item = work.item;
  item.kv_head = index % call_.kv_heads;
  item.rows = cut_.rows;
  item.first_split = cut_.splits[split];
  item.end_split = item.first_split + 1;
  return work;
}

Work Cursor::of_one(std::int64_t index) const {
  const std::int64_t items = items_a_tile(cut_), split = index % items, rest = index / items;
  const std::int64_t tile = cut_.tiles - 1 - rest % cut_.tiles;
  const bool split_keys = schedule_.key_splits > 1;
  Work work = of_sequence();
  work.first_split = split == 0;
  work.last_split = split == items - 1;
  WorkItem& item = work.item;
  item.kv_head = rest / cut_.tiles;
  item.first_row = tile * cut_.rows_per_item;
  item.rows = std::min(cut_.rows_per_item, cut_.rows - item.first_row);
  item.first_split = split_keys ? cut_.splits[split] : 0;
  item.end_split = split_keys ? item.first_split + 1 : kAllSplits;
  return work;
}

Work Cursor::of_several(std::int64_t index) {
  const std::int64_t kv_head = index / items_a_head_, item = index % items_a_head_;
  if (schedule_.key_splits == 1) {
    Work work;
    work.kind = Work::turn;
    work.of = turn_;
    work.item.kv_head = kv_head;
    return work;
  }
  if (item < stretch_base_) stretch_ = 0, stretch_base_ = 0;  // the next KV head
  const auto here = [&] { return schedule_.turns.stretch(turn_, stretch_); };
  for (; item >= stretch_base_ + items_of(here()); ++stretch_) stretch_base_ += items_of(here());
  Work work = stretch_work(call_, schedule_, turn_, here(), kv_head);
  work.first_split = item == stretch_base_;
  work.last_split = item + 1 == stretch_base_ + items_of(here());
  work.item.first_split += item - stretch_base_;
  work.item.end_split = work.item.first_split + 1;
  return work;
}

}  // namespace polyhead::inline v0
