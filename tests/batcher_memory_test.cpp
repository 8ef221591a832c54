// Memory fails once, at any allocation of any step of a batch: the answers are the same in the end,
// and every page comes back.
#include <gtest/gtest.h>

#include <cstdint>
#include <new>
#include <vector>

#include "models/batcher.hpp"
#include "support/failing_allocation.h"

namespace polyhead {
namespace {

using models::Batcher;
using models::Model;
using models::ModelFile;
using Ids = std::vector<std::int32_t>;

const std::vector<Ids> kPrompts = {{3, 1, 4, 1, 5, 0, 2, 5, 3, 5, 4},
                                   {2, 2, 3},
                                   {3, 1, 4, 1, 5, 0, 2, 5, 1, 1},
                                   {5, 4, 3, 2, 1, 0, 1, 2}};

struct Outcome {
  std::vector<Ids> answers;
  bool failed = false;
};

/// All prompts answered over a pool too small for them together, where the allocation numbered
/// `allocation` of step `step` fails.
Outcome answered(const Model& model, int step, std::int64_t allocation) {
  constexpr std::int64_t kPages = 5;
  constexpr int kMostSteps = 60;
  Batcher batcher(model, {.sequences = 4, .pages = kPages, .page_tokens = 8, .step_tokens = 12});
  for (const Ids& prompt : kPrompts) batcher.submit({prompt, 9, {}});
  Outcome outcome;
  bool more = true;
  for (int i = 0; more && i < kMostSteps; ++i) {
    test::allocations_left = i == step ? allocation : -1;
    try {
      more = batcher.step();
    } catch (const std::bad_alloc&) {
      outcome.failed = true;
    }
    test::allocations_left = -1;
  }
  EXPECT_FALSE(more) << "step " << step << " allocation " << allocation;
  EXPECT_EQ(batcher.cache().free_pages(), kPages);
  for (std::int64_t i = 0; i < std::ssize(kPrompts); ++i)
    outcome.answers.push_back(batcher.answer(i).ids);
  return outcome;
}

TEST(Batcher, GoesOnAfterMemoryFailed) {
  const Model model{ModelFile(POLYHEAD_TEST_DATA "/gguf_models/llama.gguf")};
  const std::vector<Ids> expected = answered(model, -1, -1).answers;
  int failures = 0;
  for (int step = 0; step < 12; ++step) {
    for (std::int64_t allocation = 0;; ++allocation) {
      const Outcome outcome = answered(model, step, allocation);
      if (!outcome.failed) break;
      ++failures;
      ASSERT_EQ(outcome.answers, expected) << "step " << step << " allocation " << allocation;
    }
  }
  EXPECT_GT(failures, 100);
}

}  // namespace
}  // namespace polyhead
