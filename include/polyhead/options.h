// How a call runs: which instruction set and which threads.
#pragma once

#include "polyhead/executor.h"
#include "polyhead/isa.h"

#pragma GCC visibility push(default)
namespace polyhead::inline v0 {

/// How: which instruction set and which threads.
struct Options {
  Isa isa = Isa::automatic;
  Executor* executor = nullptr;  ///< null: a pool of `threads`
  /// 0: Executor::shared(); else at most this many of the executor's tasks at once, or a pool of
  /// this many threads, up to ThreadPool::kMost. Negative ones are refused.
  int threads = 0;
};

}  // namespace polyhead::inline v0
#pragma GCC visibility pop
