// Runs the work items of a schedule.
#include "attention/run.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <limits>
#include <mutex>
#include <thread>

#include "attention/items.hpp"
#include "attention/schedule.hpp"
#include "attention/shared_rows.hpp"

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
        memory_(memory) {}

  void work(int worker) noexcept {
    try {
      if (split_keys_)
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
    if (!share_ && !split_keys_) return 0;
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
    const auto front = split_keys_ ? static_cast<std::size_t>(rooms_in_front(share_)) : 0;
    return memory_ + front * room_ + static_cast<std::size_t>(worker) * (scratch_ + rooms * room_);
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
        const WorkItem next = ahead.at(guess).item;
        work.item.next_batch = next.batch;
        work.item.next_kv_head = next.kv_head;
        work.item.next_first_row = next.first_row;
        work.item.next_rows = next.rows;
      }
      work.kernel->attend(call_, work.item, scratch(worker), nullptr);
    }
  }

  /// One KV head of a turn that shares keys: what is shared once, then each sequence's own.
  void take_turn(const Work& work, int worker) {
    const Turn& turn = work.of;
    std::byte *const shared = room(worker, 0), *const running = room(worker, 1);
    std::byte* const own = room(worker, 2);
    const std::int64_t rows = rows_of(call_, schedule_.turns, turn, turn.count);
    const AttendKernel& kernel = shared_kernel(call_, schedule_, rows);
    SharedRows(call_, schedule_.turns, turn, work.item.kv_head, running)
        .attend(kernel, 0, turn.splits, scratch(worker), shared);
    std::int64_t first = 0;
    for (std::int64_t member = 0; member < turn.count; ++member) {
      Work mine = own_work(call_, schedule_, turn, member, work.item.kv_head);
      copy_rows(call_, {&kernel, shared}, first, {mine.kernel, running}, mine.item.rows);
      // One by one, or the sums would be associated differently.
      const std::int64_t end = mine.item.end_split;
      for (std::int64_t& split = mine.item.first_split; split < end; ++split) {
        mine.item.end_split = split + 1;
        mine.kernel->attend(call_, mine.item, scratch(worker), own);
        mine.kernel->merge(call_, mine.item, running, own);
      }
      mine.kernel->finish(call_, mine.item, running, scratch(worker));
      first += mine.item.rows;
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
      attend(claimed, worker);
      if (held.index >= 0 && !join_in_turn(held, worker)) return;
      std::swap(held, claimed);
      if (turn_.load(std::memory_order_acquire) == held.index && !join_in_turn(held, worker))
        return;
    }
    if (held.index >= 0) join_in_turn(held, worker);
  }

  void attend(const Claim& claim, int worker) const {
    const Work& work = claim.work;
    const WorkItem& item = work.item;
    if (work.kind == Work::shared) {
      SharedRows(call_, schedule_.turns, work.of, item.kv_head, room(worker, 2))
          .attend(*work.kernel, item.first_split, item.end_split, scratch(worker), claim.partial);
    } else {
      work.kernel->attend(call_, item, scratch(worker), claim.partial);
    }
  }

  /// Waits until every earlier item has been joined. Their workers are running, since items are
  /// claimed in order.
  bool join_in_turn(Claim& claim, int worker) {
    while (turn_.load(std::memory_order_acquire) != claim.index) {
      if (cancelled_.load(std::memory_order_relaxed)) return false;
      std::this_thread::yield();
    }
    join(claim.work, claim.partial);
    if (claim.work.last_split)
      claim.work.kernel->finish(call_, claim.work.item, memory_, scratch(worker));
    turn_.store(claim.index + 1, std::memory_order_release);
    claim.index = -1;
    return true;
  }

  /// Adds a partial to what its rows have so far.
  void join(const Work& work, const std::byte* partial) const {
    std::byte* const running = work.kind == Work::shared ? memory_ + room_ : memory_;
    if (work.first_split()) {
      if (work.kind != Work::own) {
        std::memcpy(running, partial, room_);
        return;
      }
      const std::int64_t rows = rows_of(call_, schedule_.turns, work.of, work.of.count);
      const PartialRows shared{&shared_kernel(call_, schedule_, rows), memory_ + room_};
      copy_rows(call_, shared, rows_of(call_, schedule_.turns, work.of, work.member),
                {work.kernel, running}, work.item.rows);
    }
    work.kernel->merge(call_, work.item, running, partial);
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
