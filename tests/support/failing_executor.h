// An executor that fails in the middle of a call.
#pragma once

#include <stdexcept>

#include "polyhead/executor.h"

namespace polyhead::test {

/// Throws std::runtime_error at the run that brings `left` to 0.
class FailingExecutor : public Executor {
 public:
  int concurrency() const override { return 2; }
  void run(int count, Task task) override {
    if (--left == 0) throw std::runtime_error("no more");
    for (int i = 0; i < count; ++i) task(i);
  }
  int left = 1 << 20;
};

}  // namespace polyhead::test
