#include "attention/items.hpp"

#include <algorithm>
#include <limits>

#include "attention/shared_rows.hpp"

namespace polyhead::inline v0 {

using kernels::AttendCall;
using kernels::cpu::AttendKernel;
using kernels::cpu::WorkItem;

namespace {

constexpr std::int64_t kAllSplits =
    std::numeric_limits<std::int64_t>::max() / kernels::cpu::kSplitKeys;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Splits that each sequence of a turn has to itself where keys are split: one at least, in which
/// it is finished.
std::int64_t own_splits(const Schedule& schedule, const Turn& turn) {
  return std::max<std::int64_t>(1, schedule.key_splits - turn.splits);
}

}  // namespace

Cut cut_of(const AttendCall& call, const Schedule& schedule, std::int64_t batch) {
  const std::int64_t rows = kernels::sequence_of(call, batch).q_len * call.group();
  Cut cut{schedule.kernel, rows, schedule.rows_per_item, 0};
  if (schedule.few != nullptr && rows <= schedule.few->rows(call))
    cut.kernel = schedule.few, cut.rows_per_item = schedule.few->rows(call);
  cut.tiles = ceil_div(rows, cut.rows_per_item);
  return cut;
}

const AttendKernel& shared_kernel(const AttendCall& call, const Schedule& schedule,
                                  std::int64_t rows) {
  const AttendKernel* few = schedule.shared_few;
  return few != nullptr && rows <= few->rows(call) ? *few : *schedule.shared_many;
}

Work own_work(const AttendCall& call, const Schedule& schedule, const Turn& of, std::int64_t member,
              std::int64_t kv_head) {
  const std::int64_t batch = schedule.turns.sequence(of, member);
  const Cut cut = cut_of(call, schedule, batch);
  const std::int64_t kv_len = kernels::sequence_of(call, batch).kv_len;
  Work work;
  work.kind = Work::own;
  work.kernel = cut.kernel;
  work.of = of;
  work.member = member;
  work.item.batch = batch;
  work.item.kv_head = kv_head;
  work.item.rows = cut.rows;
  work.item.first_split = of.splits;
  work.item.end_split = ceil_div(kv_len, kernels::cpu::kSplitKeys);
  return work;
}

std::int64_t items_a_head(const Schedule& schedule, const Turn& turn, const Cut& first) {
  if (turn.splits == 0) return first.tiles * schedule.key_splits;
  return schedule.key_splits > 1 ? turn.splits + turn.count * own_splits(schedule, turn) : 1;
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
}

Work Cursor::at(std::int64_t index) {
  while (index >= base_ + count_) {
    base_ += count_;
    enter(at_ + 1);
  }
  return turn_.splits > 0 ? of_several(index - base_) : of_one(index - base_);
}

Work Cursor::of_one(std::int64_t index) const {
  const std::int64_t split = index % schedule_.key_splits, rest = index / schedule_.key_splits;
  const std::int64_t tile = cut_.tiles - 1 - rest % cut_.tiles;
  const bool split_keys = schedule_.key_splits > 1;
  Work work;
  work.kernel = cut_.kernel;
  work.last_split = split == schedule_.key_splits - 1;
  WorkItem& item = work.item;
  item.batch = schedule_.turns.sequence(turn_, 0);
  item.kv_head = rest / cut_.tiles;
  item.first_row = tile * cut_.rows_per_item;
  item.rows = std::min(cut_.rows_per_item, cut_.rows - item.first_row);
  item.first_split = split_keys ? split : 0;
  item.end_split = split_keys ? split + 1 : kAllSplits;
  return work;
}

Work Cursor::of_several(std::int64_t index) const {
  const std::int64_t kv_head = index / items_a_head_, part = index % items_a_head_;
  Work work;
  if (schedule_.key_splits > 1 && part >= turn_.splits) {
    const std::int64_t own = own_splits(schedule_, turn_), mine = (part - turn_.splits) % own;
    work = own_work(call_, schedule_, turn_, (part - turn_.splits) / own, kv_head);
    work.item.first_split += mine;
    work.item.end_split = work.item.first_split + 1;
    work.last_split = mine == own - 1;
    return work;
  }
  work.kind = schedule_.key_splits > 1 ? Work::shared : Work::turn;
  work.of = turn_;
  work.item.kv_head = kv_head;
  if (work.kind == Work::turn) return work;
  work.item.rows = rows_of(call_, schedule_.turns, turn_, turn_.count);
  work.item.first_split = part;
  work.item.end_split = part + 1;
  work.kernel = &shared_kernel(call_, schedule_, work.item.rows);
  work.last_split = false;
  return work;
}

}  // namespace polyhead::inline v0
