// Who runs the work: threads are the caller's choice, and never change a result.
#pragma once

#include <memory>

#pragma GCC visibility push(default)
namespace polyhead::inline v0 {

/// A function of a task index, borrowed for the length of one Executor::run.
struct Task {
  void (*call)(void* context, int index);
  void* context;
  void operator()(int index) const { call(context, index); }
};

/// Runs tasks 0 .. count-1, each once, in any order and on any threads, and returns when all are
/// done. The library never passes more tasks than concurrency(), its tasks never throw, and results
/// do not depend on how they are run. Adapting a pool takes these two functions.
class Executor {
 public:
  virtual ~Executor() = default;
  virtual int concurrency() const = 0;  ///< less than 1 counts as 1
  virtual void run(int count, Task task) = 0;

  /// Everything in the caller's thread.
  static Executor& serial();

  /// The library's own pool, shared by all callers and started when first used. Its size is the
  /// environment variable POLYHEAD_THREADS where set, else the number of processors this process
  /// may use.
  static Executor& shared();
};

/// A small pool of `threads` threads (the caller's among them: threads - 1 are started when first
/// needed). Runs of several callers at once take turns.
class ThreadPool : public Executor {
 public:
  /// The most threads of a pool: more than machines have.
  static constexpr int kMost = 4096;

  /// Throws InvalidArgument unless threads is from 1 to kMost.
  explicit ThreadPool(int threads);
  ~ThreadPool() override;
  int concurrency() const override;
  void run(int count, Task task) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace polyhead::inline v0
#pragma GCC visibility pop
