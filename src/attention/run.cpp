// Runs the work items of a schedule.
#include "attention/run.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <limits>
#include <mutex>
#include <new>
#include <thread>

#include "attention/items.hpp"
#include "attention/schedule.hpp"
#include "attention/shared_rows.hpp"
#include "base/float_environment.hpp"

namespace polyhead::inline v0 {
namespace {

using kernels::AttendCall;
using kernels::Sequence;
using kernels::cpu::AttendKernel;
using kernels::cpu::WorkItem;

/// One run: what its workers share.
class Run {
 public:
  Run(const AttendCall& call, const Schedule& schedule, std::byte* memory)
      : call_(call),
        schedule_(schedule),
        share_(schedule.turns.share()),
        split_keys_(schedule.key_splits > 1),
        scratch_(most(&AttendKernel::scratch_bytes)),
        room_(room_bytes()),
        memory_(memory) {
    for (std::int64_t head = 0; schedule_.split_major && head < call_.kv_heads; ++head)
      new (&splits_in(head)) std::atomic<std::int64_t>(0);
  }

  void work(int worker) noexcept {
    const base::FloatEnvironment environment;
    try {
      if (schedule_.split_major)
        work_by_split(worker);
      else if (split_keys_)
        work_in_order(worker);
      else
        work_freely(worker);
    } catch (...) {
      const std::lock_guard lock(failure_lock_);
      if (!failure_) failure_ = std::current_exception();
      cancelled_.store(true);
    }
  }

  void rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  /// A worker's rooms, keys not split; kRows is the same one where they are.
  enum : std::size_t { kAll, kRunning, kRows };

  struct Claim {
    std::int64_t index = -1;
    Work work;
    std::byte* partial = nullptr;
  };

  std::size_t most(std::int64_t (*AttendKernel::*bytes)(const AttendCall&)) const {
    std::size_t all = 0;
    for (const AttendKernel* kernel :
         {schedule_.kernel, schedule_.few, share_ ? schedule_.shared_few : nullptr,
          share_ ? schedule_.shared_many : nullptr}) {
      if (kernel != nullptr) all = std::max(all, aligned((kernel->*bytes)(call_)));
    }
    return all;
  }

  std::size_t room_bytes() const {
    if (!share_ && !split_keys_ && !schedule_.split_major) return 0;
    const std::size_t partial = most(&AttendKernel::partial_bytes);
    if (!share_) return partial;
    const std::int64_t rows = schedule_.shared_many->rows(call_);
    return std::max(partial, aligned(SharedRows::bytes(call_, rows)));
  }

  bool claim(std::int64_t& index) {
    if (cancelled_.load(std::memory_order_relaxed)) return false;
    index = next_.fetch_add(1, std::memory_order_relaxed);
    return index < schedule_.items;
  }

  std::byte* scratch(int worker) const {
    const auto rooms = static_cast<std::size_t>(rooms_a_worker(share_));
    return memory_ + in_front() + static_cast<std::size_t>(worker) * (scratch_ + rooms * room_);
  }

  std::size_t in_front() const {
    if (schedule_.split_major) return static_cast<std::size_t>(call_.kv_heads) * head_room(room_);
    return split_keys_ ? static_cast<std::size_t>(rooms_in_front(share_)) * room_ : 0;
  }

  /// Of all turns, the splits that were joined in a head's room.
  std::atomic<std::int64_t>& splits_in(std::int64_t head) const {
    return *reinterpret_cast<std::atomic<std::int64_t>*>(memory_ + static_cast<std::size_t>(head) *
                                                                       head_room(room_));
  }
  std::byte* room_of(std::int64_t head) const {
    return reinterpret_cast<std::byte*>(&splits_in(head)) + kCounterBytes;
  }

  std::byte* room(int worker, std::size_t which) const {
    return scratch(worker) + scratch_ + which * room_;
  }

  void work_freely(int worker) {
    Cursor cursor(call_, schedule_), ahead(call_, schedule_);
    for (std::int64_t index; claim(index);) {
      Work work = cursor.at(index);
      if (work.kind == Work::turn) {
        take_turn(work, worker);
        continue;
      }
      if (const std::int64_t guess = index + schedule_.workers; guess < schedule_.items) {
        work.item.guess(ahead.at(guess).item);
      }
      work.kernel->attend(call_, work.item, scratch(worker), nullptr);
    }
  }

  /// Each head's splits go on from one another in its room. A split waits for the one before it,
  /// which was claimed as many items earlier as there are heads.
  void work_by_split(int worker) {
    Cursor cursor(call_, schedule_), ahead(call_, schedule_);
    for (std::int64_t index; claim(index);) {
      Work work = cursor.at(index);
      if (const std::int64_t guess = index + schedule_.workers; guess < schedule_.items)
        work.item.guess(ahead.at(guess).item);
      std::atomic<std::int64_t>& splits = splits_in(work.item.kv_head);
      const std::int64_t before = index / call_.kv_heads;
      while (splits.load(std::memory_order_acquire) != before) {
        if (cancelled_.load(std::memory_order_relaxed)) return;
        std::this_thread::yield();
      }
      std::byte* const running = room_of(work.item.kv_head);
      attend(work, work.first_split ? work.kernel->attend : work.kernel->proceed, worker, running);
      if (work.last_split) work.kernel->finish(call_, work.item, running, scratch(worker));
      splits.store(before + 1, std::memory_order_release);
    }
  }

  /// One KV head of a turn that shares keys, stretch by stretch.
  void take_turn(const Work& turn, int worker) {
    std::byte* const all = room(worker, kAll);
    for (int i = 0; i < turn.of.stretches; ++i) {
      const Stretch& part = schedule_.turns.stretch(turn.of, i);
      Work work = stretch_work(call_, schedule_, turn.of, part, turn.item.kv_head);
      if (i == 0) {
        attend(work, work.kernel->attend, worker, all);
        continue;
      }
      std::byte* const running = room(worker, kRunning);
      take_up(work, all, running);
      attend(work, work.kernel->proceed, worker, running);
      lay_down(work, running, all, worker);
    }
  }

  /// What all rows of a turn have so far, as its stretches take it up and lay it down.
  PartialRows rows_so_far(const Work& work, std::byte* all) const {
    const Turns& turns = schedule_.turns;
    const std::int64_t rows = Members::all(turns, work.of).rows(call_);
    return {&shared_kernel(call_, schedule_, rows), all,
            Members::before(turns, work.of, work.part).rows(call_)};
  }
  void take_up(const Work& work, std::byte* all, std::byte* running) const {
    copy_all_rows(call_, rows_so_far(work, all), {work.kernel, running}, work.item.rows);
  }
  /// Nothing follows a member's own keys: its rows are finished.
  void lay_down(const Work& work, std::byte* running, std::byte* all, int worker) const {
    if (work.part.shared())
      copy_rows(call_, {work.kernel, running}, rows_so_far(work, all), work.item.rows);
    else
      work.kernel->finish(call_, work.item, running, scratch(worker));
  }

  /// Splits of a work item, by the kernel's attend or proceed.
  void attend(const Work& work, SharedRows::Attend* with, int worker, std::byte* to) const {
    const WorkItem& item = work.item;
    if (work.kind == Work::stretch && work.part.shared()) {
      SharedRows(call_, Members::of(schedule_.turns, work.of, work.part), item.end_split,
                 item.kv_head, room(worker, kRows))
          .attend(with, item, scratch(worker), to);
    } else {
      with(call_, item, scratch(worker), to);
    }
  }

  /// Computes partial results in any order and joins them in index order, holding at most one
  /// finished one back.
  void work_in_order(int worker) {
    Cursor cursor(call_, schedule_);
    Claim held, claimed;
    held.partial = room(worker, 0);
    claimed.partial = room(worker, 1);
    while (claim(claimed.index)) {
      claimed.work = cursor.at(claimed.index);
      attend(claimed.work, claimed.work.kernel->attend, worker, claimed.partial);
      if (held.index >= 0 && !join_in_turn(held, worker)) return;
      std::swap(held, claimed);
      if (turn_.load(std::memory_order_acquire) == held.index && !join_in_turn(held, worker))
        return;
    }
    if (held.index >= 0) join_in_turn(held, worker);
  }

  /// Waits until every earlier item has been joined. Their workers are running, since items are
  /// claimed in order.
  bool join_in_turn(Claim& claim, int worker) {
    while (turn_.load(std::memory_order_acquire) != claim.index) {
      if (cancelled_.load(std::memory_order_relaxed)) return false;
      std::this_thread::yield();
    }
    join(claim.work, claim.partial, worker);
    turn_.store(claim.index + 1, std::memory_order_release);
    claim.index = -1;
    return true;
  }

  /// Adds a partial to what its rows have so far, and finishes them after the last one.
  void join(const Work& work, const std::byte* partial, int worker) const {
    const bool stretch = work.kind == Work::stretch;
    const bool root = stretch && work.part.first_split == 0;
    std::byte *const all = memory_ + room_, *const running = root ? all : memory_;
    if (work.first_split && (!stretch || root)) {
      std::memcpy(running, partial, room_);
    } else {
      if (work.first_split) take_up(work, all, running);
      work.kernel->merge(call_, work.item, running, partial);
    }
    if (!work.last_split || root) return;
    if (stretch)
      lay_down(work, running, all, worker);
    else
      work.kernel->finish(call_, work.item, running, scratch(worker));
  }

  const AttendCall& call_;
  const Schedule& schedule_;
  const bool share_, split_keys_;
  const std::size_t scratch_, room_;
  std::byte* memory_;
  std::atomic<std::int64_t> next_{0}, turn_{0};
  std::atomic<bool> cancelled_{false};
  std::mutex failure_lock_;
  std::exception_ptr failure_;
};

void zero_rows(const AttendCall& call, const Sequence& s, std::int64_t first, std::int64_t last) {
  const kernels::Operand& out = call.out;
  const auto bytes = static_cast<std::size_t>(element_bytes(out.type));
  const float lse = -std::numeric_limits<float>::infinity(), zero = 0.0f;
  const std::int64_t no_key = -1;
  for (std::int64_t query = first; query < last; ++query) {
    for (std::int64_t head = 0; head < call.q_heads; ++head) {
      std::byte* row = s.out + query * out.token + head * out.head;
      for (std::int64_t d = 0; d < call.value_dim; ++d) std::memset(row + d * out.dim, 0, bytes);
      if (call.lse.data) std::memcpy(row_address(call.lse, s, query, head), &lse, 4);
      if (call.entropy.data) std::memcpy(row_address(call.entropy, s, query, head), &zero, 4);
      if (call.max_weight.data) std::memcpy(row_address(call.max_weight, s, query, head), &zero, 4);
      if (call.max_key.data) std::memcpy(row_address(call.max_key, s, query, head), &no_key, 8);
    }
  }
}

}  // namespace

void run_schedule(const AttendCall& call, const Schedule& schedule, Executor& executor,
                  std::byte* memory) {
  if (call.q_lengths.given()) {
    for (std::int64_t b = 0; b < call.batch; ++b) {
      const Sequence s = kernels::sequence_of(call, b);
      zero_rows(call, s, s.q_len, s.q_rows);
    }
  }
  if (schedule.items == 0) return;
  Run run(call, schedule, memory);
  if (schedule.workers == 1) {
    run.work(0);
  } else {
    executor.run(
        schedule.workers,
        {[](void* context, int worker) { static_cast<Run*>(context)->work(worker); }, &run});
  }
  run.rethrow();
}

}  // namespace polyhead::inline v0
