// Allocations that fail, to see what is left behind then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

namespace polyhead::test {

/// How many more allocations of this thread succeed; negative: all. The test program's operator new
/// (no_allocation_test.cpp) counts it down to zero and throws then.
extern thread_local std::int64_t allocations_left;

/// The most bytes that an allocation of this thread may have; larger ones fail.
extern thread_local std::size_t largest_allocation;

/// Calls `call` as often as it allocates, with each of its allocations failing once and
/// `check` after each failure, until it succeeds. Returns how often it failed.
template <class Call, class Check>
int failing_each_allocation(const Call& call, const Check& check) {
  for (int failures = 0;; ++failures) {
    allocations_left = failures;
    try {
      call();
      allocations_left = -1;
      return failures;
    } catch (const std::bad_alloc&) {
      allocations_left = -1;
      check();
    }
  }
}

}  // namespace polyhead::test
