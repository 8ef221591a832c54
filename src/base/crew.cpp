#include "base/crew.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>

#include "base/refuse.hpp"

namespace polyhead::inline v0 {
namespace {

// Never destroyed, like Executor::shared().
Executor& pool_of(int threads) {
  static std::mutex& lock = *new std::mutex;
  static auto& pools = *new std::map<int, std::unique_ptr<ThreadPool>>;
  const std::lock_guard guard(lock);
  auto& pool = pools[threads];
  if (!pool) pool = std::make_unique<ThreadPool>(threads);
  return *pool;
}

}  // namespace

Crew crew_of(const char* call, const Options& options) {
  if (options.threads < 0) base::refuse(call, "threads (", options.threads, ") is negative");
  if (options.executor == nullptr && options.threads > ThreadPool::kMost) {
    base::refuse(call, "threads (", options.threads, ") is more than ", ThreadPool::kMost);
  }
  if (options.threads == 1) return {&Executor::serial(), 1};
  Executor& executor = options.executor != nullptr ? *options.executor
                       : options.threads > 0       ? pool_of(options.threads)
                                                   : Executor::shared();
  const int most = std::max(1, executor.concurrency());
  return {&executor, options.threads > 0 ? std::min(options.threads, most) : most};
}

}  // namespace polyhead::inline v0
