// Score functions and executors of the user's own.
#include <gtest/gtest.h>

#include <cstdint>
#include <stdexcept>
#include <tuple>

#include "polyhead/attention.h"
#include "support/distance.h"
#include "support/problem.h"
#include "support/slice.h"

namespace polyhead::test {
namespace {

struct EveryField : ScoreModifier<EveryField> {
  float operator()(float score, ScoreAt at) const {
    return score + 0.1f * static_cast<float>(at.batch) + 0.01f * static_cast<float>(at.query % 11) +
           0.5f * static_cast<float>(at.kv_pos % 3) + 0.2f * static_cast<float>(at.head) -
           0.03f * static_cast<float>(at.q_pos % 7);
  }
};

TEST(Regression, AScoreFunctionIsToldTheRightPlaces) {
  const EveryField modifier;
  for (Isa isa : isas()) {
    for (const auto& [q_heads, kv_heads, q_len] : {std::tuple{3, 1, 50}, {4, 4, 1}, {6, 2, 130}}) {
      Case c;
      c.batch = 3;
      c.q_heads = q_heads;
      c.kv_heads = kv_heads;
      c.q_len = q_len;
      c.kv_len = 200;
      c.mask = MaskKind::window_causal;
      Problem p(c);
      p.modifiers.custom[1] = &modifier;
      p.run(isa);
      const Distance distance = from_reference(p);
      EXPECT_LE(distance.out, bound(c)) << isa_name(isa) << describe(c);
      EXPECT_LE(distance.lse, bound(c)) << isa_name(isa) << describe(c);
    }
  }
}

struct Refuses : TileModifier {
  void apply(const ScoreTile&) const override { throw std::runtime_error("not today"); }
};

TEST(Regression, AnExceptionOfAScoreFunctionComesOut) {
  const Refuses modifier;
  ThreadPool pool(3);
  for (Executor* executor : {&Executor::serial(), static_cast<Executor*>(&pool)}) {
    Case c;
    c.q_len = c.kv_len = 300;
    c.q_heads = c.kv_heads = 3;
    Problem p(c);
    p.modifiers.custom[0] = &modifier;
    EXPECT_THROW(p.run(Isa::automatic, executor), std::runtime_error);
    p.modifiers.custom[0] = nullptr;
    EXPECT_NO_THROW(p.run(Isa::automatic, executor)) << "the executor still works";
  }
}

struct Broken : Executor {
  int concurrency() const override { return 4; }
  void run(int, Task) override { throw std::runtime_error("no threads left"); }
};

TEST(Regression, AnExceptionOfTheExecutorComesOut) {
  Broken executor;
  Case c;
  c.q_len = c.kv_len = 600;
  c.q_heads = c.kv_heads = 4;
  Problem p(c);
  EXPECT_THROW(p.run(Isa::automatic, &executor), std::runtime_error);
}

// An executor may run tasks in any order, one after the other: nothing may wait for a task that has
// not begun.
struct Backwards : Executor {
  int concurrency() const override { return 4; }
  void run(int count, Task task) override {
    for (int index = count - 1; index >= 0; --index) task(index);
  }
};

TEST(Regression, TasksRunOneAfterTheOtherInAnyOrder) {
  Backwards executor;
  for (std::int64_t q_len : {1, 3, 200}) {
    for (const Types& types : {kTypes[0], kTypes[1]}) {
      Case c;
      c.q_len = q_len;
      c.kv_len = 5000;
      c.q_heads = 2;
      c.types = types;
      Problem p(c);
      p.run(Isa::automatic);
      const Outputs one(p);
      p.run(Isa::automatic, &executor);
      EXPECT_EQ(differing_bits(one, Outputs(p)), 0) << describe(c);
    }
  }
}

}  // namespace
}  // namespace polyhead::test
