// Batches whose lists of turns do not lie within a schedule: shared and ordered as smaller ones.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "polyhead/attention.h"
#include "support/effort.h"
#include "support/forest.h"
#include "support/problem.h"

namespace polyhead::test {
namespace {

/// `count` sequences that begin with one split, every fifth one with a second split of its group's,
/// and have 1 to 7 tokens of their own.
std::vector<Branch> many(int count) {
  std::vector<Branch> list{{-1, 0, kSplit, 1}, {0, kSplit, kSplit, 2}};
  for (int i = 2; i < count; ++i) {
    const int from = i % 5 == 0 ? 1 : 0;
    list.push_back({from, (from + 1) * kSplit, 1 + i % 7, 1 + i % 2});
  }
  return list;
}

TEST(SharedPrefixMany, BatchesShareTheirBeginnings) {
  const Shape shape{.q_heads = 2, .kv_heads = 1, .head_dim = 8, .value_dim = 8};
  for (const int count : {512, 513, 1200}) {
    Forest forest(shape, many(count));
    for (const Isa isa : isas()) {
      if (effort() == Effort::smoke && isa != isas().back()) continue;
      const auto expected = forest.run_alone(isa);
      const KeysRead keys = forest.keys(isa);
      EXPECT_LT(keys.together, keys.apart / 20) << isa_name(isa) << " " << count;
      ThreadPool pool(3);
      EXPECT_TRUE(forest.run({.isa = isa, .executor = &Executor::serial()}) == expected)
          << isa_name(isa) << " " << count;
      EXPECT_TRUE(forest.run({.isa = isa, .executor = &pool}) == expected)
          << isa_name(isa) << " threads " << count;
      Limits limits;
      limits.batch = count + 100;
      limits.q_len = 2;
      limits.kv_len = 3 * kSplit;
      limits.q_heads = 2;
      limits.head_dim = limits.value_dim = 8;
      const Plan plan(limits, {.isa = isa, .executor = &pool});
      Workspace workspace = plan.make_workspace();
      EXPECT_TRUE(forest.run([&] { plan.run(forest.arguments, workspace); }) == expected)
          << isa_name(isa) << " planned " << count;
      EXPECT_NE(plan.describe(forest.arguments)
                    .find("prefixes shared: " + std::to_string(keys.together) + " keys"),
                std::string::npos);
    }
  }
}

}  // namespace
}  // namespace polyhead::test
