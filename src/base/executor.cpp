#include "polyhead/executor.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "base/refuse.hpp"

#if defined(__linux__)
#include <sched.h>
#endif

namespace polyhead::inline v0 {
namespace {

// Set while this thread runs a task of any pool: a run from inside one is done in place, so that it
// cannot wait for a pool that waits for it.
thread_local bool inside_task = false;

void run_serially(int count, Task task) {
  for (int index = 0; index < count; ++index) task(index);
}

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// How long to look for work before falling asleep: calls that follow each other find the workers
// awake, and an idle pool stops using the processor. Being woken takes some 40 us, but a virtual
// processor that was halted is slower for several calls (docs/kernel-notes.md). Where there are
// more threads than processors, looking on keeps others from working.
using Spin = std::chrono::microseconds;
constexpr Spin kSpin{400}, kCrowdedSpin{40};

// Whether `ready` came true in time.
template <class Ready>
bool spin_until(Spin time, Ready ready) {
  const auto deadline = std::chrono::steady_clock::now() + time;
  do {
    for (int i = 0; i < 32; ++i) {
      if (ready()) return true;
      pause_briefly();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return ready();
}

class Serial : public Executor {
 public:
  int concurrency() const override { return 1; }
  void run(int count, Task task) override { run_serially(count, task); }
};

int usable_processors() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
  const unsigned count = std::thread::hardware_concurrency();
  return count > 0 ? static_cast<int>(count) : 1;
}

int default_threads() {
  const char* wanted = std::getenv("POLYHEAD_THREADS");
  if (wanted == nullptr || *wanted == '\0') return usable_processors();
  int threads = 0;
  const char* end = wanted + std::strlen(wanted);
  const auto [stop, error] = std::from_chars(wanted, end, threads);
  if (error != std::errc() || stop != end || threads < 1 || threads > ThreadPool::kMost) {
    base::refuse("POLYHEAD_THREADS", "\"", wanted, "\" is not a whole number from 1 to ",
                 ThreadPool::kMost);
  }
  return threads;
}

}  // namespace

// One run at a time. `claims` holds the run's number (upper half) and how many tasks are still to
// be claimed (lower half). Whoever lowers it by one owns that task, and `call` and `context` read
// between the load and the successful exchange belong to the same run: they change only while
// nothing is left to claim. So no run waits for a worker that is late to notice it: the caller
// takes what the workers do not.
struct ThreadPool::State {
  explicit State(int count)
      : threads(count), spin(count <= usable_processors() ? kSpin : kCrowdedSpin) {}

  const int threads;
  const Spin spin;
  std::mutex turn;  // held by the caller whose run this is
  std::vector<std::thread> workers;

  std::atomic<std::uint64_t> claims{0};
  std::atomic<void (*)(void*, int)> call{nullptr};
  std::atomic<void*> context{nullptr};
  std::atomic<int> unfinished{0};
  std::atomic<std::uint32_t> bell{0};  // rung for every run; idle workers sleep on it
  std::atomic<bool> stop{false};

  bool something_to_claim() const {
    return static_cast<std::uint32_t>(claims.load(std::memory_order_acquire)) != 0;
  }

  // Runs one unclaimed task; false if there is none.
  bool run_one() {
    std::uint64_t seen = claims.load(std::memory_order_acquire);
    while (true) {
      const std::uint32_t left = static_cast<std::uint32_t>(seen);
      if (left == 0) return false;
      const Task task{call.load(std::memory_order_relaxed),
                      context.load(std::memory_order_relaxed)};
      if (claims.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel,
                                       std::memory_order_acquire)) {
        task(static_cast<int>(left - 1));
        if (unfinished.fetch_sub(1, std::memory_order_acq_rel) == 1) unfinished.notify_one();
        return true;
      }
    }
  }

  void work() {
    inside_task = true;
    while (true) {
      while (run_one()) {
      }
      if (spin_until(
              spin, [&] { return something_to_claim() || stop.load(std::memory_order_relaxed); })) {
        if (stop.load()) return;
        continue;
      }
      const std::uint32_t heard = bell.load();
      if (stop.load()) return;
      if (!something_to_claim()) bell.wait(heard);
    }
  }

  void ring() {
    bell.fetch_add(1);
    bell.notify_all();
  }

  // As many as `tasks` can use beside the caller. Fewer threads than asked for are no error: the
  // caller does the rest.
  void start_workers(int tasks) {
    const auto wanted = static_cast<std::size_t>(std::min(tasks, threads) - 1);
    if (workers.size() >= wanted) return;
    try {
      workers.reserve(wanted);
      while (workers.size() < wanted) workers.emplace_back([this] { work(); });
    } catch (const std::system_error&) {
    }
  }
};

ThreadPool::ThreadPool(int threads) {
  if (threads < 1 || threads > kMost)
    base::refuse("ThreadPool", "threads (", threads, ") is not from 1 to ", kMost);
  state_ = std::make_unique<State>(threads);
}

ThreadPool::~ThreadPool() {
  state_->stop = true;
  state_->ring();
  for (std::thread& worker : state_->workers) worker.join();
}

int ThreadPool::concurrency() const { return state_->threads; }

void ThreadPool::run(int count, Task task) {
  if (count <= 1 || state_->threads == 1 || inside_task) return run_serially(count, task);
  State& state = *state_;
  const std::lock_guard<std::mutex> lock(state.turn);
  state.start_workers(count);
  state.call.store(task.call, std::memory_order_relaxed);
  state.context.store(task.context, std::memory_order_relaxed);
  state.unfinished.store(count, std::memory_order_relaxed);
  const std::uint64_t run_number = (state.claims.load(std::memory_order_relaxed) >> 32) + 1;
  state.claims.store(run_number << 32 | static_cast<std::uint32_t>(count));
  state.ring();

  inside_task = true;
  while (state.run_one()) {
  }
  inside_task = false;
  const auto done = [&] { return state.unfinished.load(std::memory_order_acquire) == 0; };
  if (spin_until(state.spin, done)) return;
  for (int left = state.unfinished.load(); left != 0; left = state.unfinished.load())
    state.unfinished.wait(left);
}

Executor& Executor::serial() {
  static Serial serial;
  return serial;
}

// Never destroyed: at exit its threads may still be running, and other static objects may still
// call it.
Executor& Executor::shared() {
  static ThreadPool* pool = new ThreadPool(default_threads());
  return *pool;
}

}  // namespace polyhead::inline v0
