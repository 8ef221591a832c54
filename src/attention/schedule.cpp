#include "attention/schedule.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

namespace polyhead::inline v0 {
namespace {

using kernels::AttendCall;
using kernels::Sequence;
using kernels::cpu::AttendKernel;
using kernels::cpu::Backend;
using kernels::cpu::WorkItem;

constexpr std::int64_t kItemsPerWorker = 4;  // enough to even out unequal items
constexpr int kPartialsPerWorker = 2;        // one being computed, one waiting for its predecessor

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Kernels made for few rows leave user code and per-pair randomness to prefill, which gives the
/// same bits.
bool decodes(const AttendCall& call, const AttendKernel& kernel) {
  return kernel.attend != nullptr && kernel.rows(call) > 0 /* 0: not this layout */ &&
         call.score.custom_count == 0 && call.score.dropout == 0.0f && !call.entropy.data &&
         !call.max_weight.data && !call.max_key.data;
}

void choose_kernels(Schedule& schedule, const AttendCall& call, const Backend& backend) {
  const bool pairs = uses_bfloat16_dot(call, backend);
  const AttendKernel& few = pairs ? backend.decode_bfloat16 : backend.decode_float32;
  const AttendKernel& many = pairs ? backend.prefill_bfloat16 : backend.prefill_float32;
  schedule.kernel = &many;
  if (!decodes(call, few)) return;
  if (call.q_len * call.group() <= few.rows(call))
    schedule.kernel = &few;
  else if (call.q_offsets.given() || call.q_lengths.given())
    schedule.few = &few;
}

/// How the rows of one sequence are cut.
struct Cut {
  const AttendKernel* kernel;
  std::int64_t rows, rows_per_item, tiles;
};

Cut cut_of(const AttendCall& call, const Schedule& schedule, std::int64_t batch) {
  const std::int64_t rows = kernels::sequence_of(call, batch).q_len * call.group();
  Cut cut{schedule.kernel, rows, schedule.rows_per_item, 0};
  if (schedule.few != nullptr && rows <= schedule.few->rows(call))
    cut.kernel = schedule.few, cut.rows_per_item = schedule.few->rows(call);
  cut.tiles = ceil_div(rows, cut.rows_per_item);
  return cut;
}

/// The sequences of an uneven batch by falling work, so that no long one is left for the end. Only
/// the order of items follows from it, no result.
class Order {
 public:
  explicit Order(const AttendCall& call) {
    const bool uneven = call.q_offsets.given() || call.q_lengths.given() || call.kv_lengths.given();
    if (!uneven || call.batch > kMost) return;
    std::int64_t work[kMost];
    count_ = static_cast<int>(call.batch);
    for (int b = 0; b < count_; ++b) {
      const Sequence s = kernels::sequence_of(call, b);
      work[b] = s.q_len * (s.kv_len + kernels::cpu::kKeyBlock);
      by_work_[b] = static_cast<std::int16_t>(b);
    }
    std::sort(by_work_, by_work_ + count_, [&](std::int16_t a, std::int16_t b) {
      return work[a] != work[b] ? work[a] > work[b] : a < b;
    });
  }
  std::int64_t operator[](std::int64_t turn) const { return turn < count_ ? by_work_[turn] : turn; }

 private:
  static constexpr int kMost = 512;  // sequences; larger batches even out by themselves
  int count_ = 0;
  std::int16_t by_work_[kMost];
};

std::size_t aligned(std::int64_t bytes) {
  return static_cast<std::size_t>((bytes + 63) & ~std::int64_t{63});
}

/// Where a worker is in the numbering: items are claimed in ascending order, so it only ever moves
/// forward.
class Cursor {
 public:
  Cursor(const AttendCall& call, const Schedule& schedule, const Order& order)
      : call_(call), schedule_(schedule), order_(order) {
    enter(0);
  }

  WorkItem at(std::int64_t index) {
    while (index >= base_ + count_) {
      base_ += count_;
      enter(turn_ + 1);
    }
    std::int64_t rest = index - base_;
    const std::int64_t split = rest % schedule_.key_splits;
    rest /= schedule_.key_splits;
    const std::int64_t tile = cut_.tiles - 1 - rest % cut_.tiles;
    WorkItem item;
    item.batch = order_[turn_];
    item.kv_head = rest / cut_.tiles;
    item.first_row = tile * cut_.rows_per_item;
    item.rows = std::min(cut_.rows_per_item, cut_.rows - item.first_row);
    const bool split_keys = schedule_.key_splits > 1;
    item.first_split = split_keys ? split : 0;
    item.end_split = split_keys
                         ? split + 1
                         : std::numeric_limits<std::int64_t>::max() / kernels::cpu::kSplitKeys;
    return item;
  }

  /// The kernel of the item last asked for.
  const AttendKernel* kernel() const { return cut_.kernel; }

 private:
  void enter(std::int64_t turn) {
    turn_ = turn;
    cut_ = cut_of(call_, schedule_, order_[turn]);
    count_ = cut_.tiles * call_.kv_heads * schedule_.key_splits;
  }

  const AttendCall& call_;
  const Schedule& schedule_;
  const Order& order_;
  std::int64_t turn_ = 0, base_ = 0, count_ = 0;
  Cut cut_{};
};

std::int64_t count_items(const AttendCall& call, const Schedule& schedule) {
  const bool uneven = call.q_offsets.given() || call.q_lengths.given();
  std::int64_t tiles = 0;
  if (!uneven)
    tiles = call.batch * ceil_div(call.q_len * call.group(), schedule.rows_per_item);
  else
    for (std::int64_t b = 0; b < call.batch; ++b) {
      tiles += cut_of(call, schedule, b).tiles;
    }
  return tiles * call.kv_heads * schedule.key_splits;
}

/// One run: what its workers share.
class Run {
 public:
  Run(const AttendCall& call, const Schedule& schedule, std::byte* memory)
      : call_(call),
        schedule_(schedule),
        order_(call),
        scratch_(most(&AttendKernel::scratch_bytes)),
        partial_(schedule.key_splits > 1 ? most(&AttendKernel::partial_bytes) : 0),
        memory_(memory) {}

  void work(int worker) noexcept {
    try {
      if (schedule_.key_splits > 1)
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
    WorkItem item;
    const AttendKernel* kernel = nullptr;
    std::byte* partial = nullptr;
  };

  std::size_t most(std::int64_t (*AttendKernel::*bytes)(const AttendCall&)) const {
    const std::size_t all = aligned((schedule_.kernel->*bytes)(call_));
    return schedule_.few ? std::max(all, aligned((schedule_.few->*bytes)(call_))) : all;
  }

  bool claim(std::int64_t& index) {
    if (cancelled_.load(std::memory_order_relaxed)) return false;
    index = next_.fetch_add(1, std::memory_order_relaxed);
    return index < schedule_.items;
  }

  std::byte* scratch(int worker) const {
    return memory_ + partial_ +
           static_cast<std::size_t>(worker) * (scratch_ + kPartialsPerWorker * partial_);
  }

  void work_freely(int worker) {
    Cursor cursor(call_, schedule_, order_), ahead(call_, schedule_, order_);
    for (std::int64_t index; claim(index);) {
      WorkItem item = cursor.at(index);
      if (const std::int64_t guess = index + schedule_.workers; guess < schedule_.items) {
        const WorkItem next = ahead.at(guess);
        item.next_batch = next.batch;
        item.next_kv_head = next.kv_head;
        item.next_first_row = next.first_row;
        item.next_rows = next.rows;
      }
      cursor.kernel()->attend(call_, item, scratch(worker), nullptr);
    }
  }

  /// Computes partial results in any order and joins them in index order, holding at most one
  /// finished one back.
  void work_in_order(int worker) {
    Cursor cursor(call_, schedule_, order_);
    std::byte* free = scratch(worker) + scratch_;
    Claim held, claimed;
    held.partial = free + partial_;
    claimed.partial = free;
    while (claim(claimed.index)) {
      claimed.item = cursor.at(claimed.index);
      claimed.kernel = cursor.kernel();
      claimed.kernel->attend(call_, claimed.item, scratch(worker), claimed.partial);
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
    std::byte* running = memory_;
    const std::int64_t split = claim.item.first_split;
    if (split == 0)
      std::memcpy(running, claim.partial, partial_);
    else
      claim.kernel->merge(call_, claim.item, running, claim.partial);
    if (split == schedule_.key_splits - 1)
      claim.kernel->finish(call_, claim.item, running, scratch(worker));
    turn_.store(claim.index + 1, std::memory_order_release);
    claim.index = -1;
    return true;
  }

  const AttendCall& call_;
  const Schedule& schedule_;
  const Order order_;
  const std::size_t scratch_, partial_;
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

Executor& pool_of(int threads) {
  static std::mutex lock;
  static std::map<int, std::unique_ptr<ThreadPool>> pools;
  const std::lock_guard guard(lock);
  auto& pool = pools[threads];
  if (!pool) pool = std::make_unique<ThreadPool>(threads);
  return *pool;
}

}  // namespace

bool uses_bfloat16_dot(const AttendCall& call, const Backend& backend) {
  const auto bfloat16 = [](const kernels::Operand& x) { return x.type == ElementType::bfloat16; };
  return backend.prefill_bfloat16.attend != nullptr && bfloat16(call.q) && bfloat16(call.k) &&
         (call.v.data == nullptr || bfloat16(call.v));
}

Schedule make_schedule(const AttendCall& call, const Backend& backend, int workers) {
  Schedule schedule;
  choose_kernels(schedule, call, backend);
  const std::int64_t rows = call.q_len * call.group();
  const std::int64_t most = schedule.kernel->rows(call), least = schedule.kernel->least_rows;
  // Full items share packed keys; smaller ones keep all workers busy.
  const std::int64_t wanted = workers > 1 ? kItemsPerWorker * workers : 1;
  const std::int64_t heads = std::max<std::int64_t>(1, call.batch * call.kv_heads);
  const std::int64_t even =
      ceil_div(ceil_div(rows, std::max<std::int64_t>(1, ceil_div(wanted, heads))), least) * least;
  // No item much smaller than the others: each fetches what the next one needs, if it lasts.
  const std::int64_t items = ceil_div(rows, std::clamp(even, least, most));
  schedule.rows_per_item =
      std::max(least, ceil_div(ceil_div(rows, std::max<std::int64_t>(1, items)), least) * least);
  schedule.row_tiles = ceil_div(rows, schedule.rows_per_item);
  schedule.items = count_items(call, schedule);
  const std::int64_t splits = ceil_div(call.kv_len, kernels::cpu::kSplitKeys);
  if (workers > 1 && splits > 1 && schedule.items < wanted) {
    schedule.key_splits = splits;
    schedule.items *= splits;
  }
  schedule.workers = static_cast<int>(std::clamp<std::int64_t>(schedule.items, 1, workers));
  return schedule;
}

std::size_t scratch_bytes(const AttendCall& call, const Backend& backend, int workers) {
  std::size_t scratch = 0, partial = 0;
  for (const AttendKernel* kernel : {&backend.prefill_float32, &backend.decode_float32,
                                     &backend.prefill_bfloat16, &backend.decode_bfloat16}) {
    if (kernel->attend == nullptr) continue;
    scratch = std::max(scratch, aligned(kernel->scratch_bytes(call)));
    partial = std::max(partial, aligned(kernel->partial_bytes(call)));
  }
  if (workers == 1) return scratch + partial;
  return partial + static_cast<std::size_t>(workers) * (scratch + kPartialsPerWorker * partial);
}

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

Crew crew_of(const Options& options) {
  if (options.threads == 1) return {&Executor::serial(), 1};
  Executor& executor = options.executor != nullptr ? *options.executor
                       : options.threads > 0       ? pool_of(options.threads)
                                                   : Executor::shared();
  const int most = std::max(1, executor.concurrency());
  return {&executor, options.threads > 0 ? std::min(options.threads, most) : most};
}

}  // namespace polyhead::inline v0
