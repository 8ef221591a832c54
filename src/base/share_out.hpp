// Sharing numbered items out over an executor's tasks.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>

#include "base/float_environment.hpp"
#include "polyhead/executor.h"

namespace polyhead::inline v0::base {

/// Runs body(item, worker) for items 0 .. items - 1 on at most `workers` tasks, which claim items
/// in ascending order and run in a FloatEnvironment. What a body throws ends the run and comes out
/// of it.
template <class Body>
void share_out(Executor& executor, int workers, std::int64_t items, const Body& body) {
  const int tasks = static_cast<int>(std::min<std::int64_t>(workers, items));
  if (tasks <= 1) {
    const FloatEnvironment environment;
    for (std::int64_t item = 0; item < items; ++item) body(item, 0);
    return;
  }
  struct Shared {
    const Body& body;
    std::int64_t items;
    std::atomic<std::int64_t> next{0};
    std::mutex lock;
    std::exception_ptr failure;
  } shared{body, items, {}, {}, {}};
  executor.run(tasks,
               {[](void* context, int worker) {
                  const FloatEnvironment environment;
                  Shared& all = *static_cast<Shared*>(context);
                  try {
                    for (std::int64_t item;
                         (item = all.next.fetch_add(1, std::memory_order_relaxed)) < all.items;) {
                      all.body(item, worker);
                    }
                  } catch (...) {
                    all.next.store(all.items, std::memory_order_relaxed);
                    const std::lock_guard guard(all.lock);
                    if (!all.failure) all.failure = std::current_exception();
                  }
                },
                &shared});
  if (shared.failure) std::rethrow_exception(shared.failure);
}

}  // namespace polyhead::inline v0::base
