// Plans: what they serve, what they refuse, and what they say of themselves.
#include <gtest/gtest.h>

#include <climits>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "polyhead/attention.h"
#include "polyhead/kv_cache.h"
#include "support/problem.h"
#include "support/random.h"
#include "support/refusal.h"
#include "support/slice.h"

namespace polyhead::test {
namespace {

constexpr Limits kLimits = {.batch = 2,
                            .q_len = 40,
                            .kv_len = 90,
                            .q_heads = 4,
                            .kv_heads = 2,
                            .head_dim = 16,
                            .value_dim = 24};

Case within_limits() {
  Case c;
  c.batch = 2;
  c.q_len = 30;
  c.kv_len = 80;
  c.q_heads = 4;
  c.kv_heads = 2;
  c.head_dim = 16;
  c.value_dim = 24;
  return c;
}

TEST(Plan, ServesEverySizeUpToItsLimits) {
  for (Isa isa : isas()) {
    const Plan plan(kLimits, {.isa = isa});
    Workspace workspace = plan.make_workspace();
    for (std::int64_t batch : {0, 1, 2}) {
      for (std::int64_t q_len : {0, 1, 7, 40}) {
        for (std::int64_t kv_len : {0, 1, 90}) {
          Case c = within_limits();
          c.batch = batch;
          c.q_len = q_len;
          c.kv_len = kv_len;
          Problem p(c);
          p.run(isa);
          const Outputs expected(p);
          p.out.poison();
          p.lse.poison();
          plan.run(p.arguments(), workspace);
          EXPECT_EQ(differing_bits(expected, Outputs(p)), 0)
              << isa_name(isa) << ": " << describe(c);
        }
      }
    }
  }
}

TEST(Plan, RefusesWhatItWasNotMadeFor) {
  const Plan plan(kLimits);
  Workspace workspace = plan.make_workspace();
  const auto message = [&](const std::function<void(Case&)>& change) {
    Case c = within_limits();
    change(c);
    Problem p(c);
    const Outputs before(p);
    const std::string found = refusal_of([&] { plan.run(p.arguments(), workspace); });
    if (found == "accepted") return found;
    EXPECT_EQ(p.out.bytes(), before.out.bytes());
    return found;
  };
  EXPECT_EQ(message([](Case&) {}), "accepted");
  EXPECT_EQ(message([](Case& c) { c.batch = 3; }),
            "attention: batch (3) exceeds the plan's limit of 2");
  EXPECT_EQ(message([](Case& c) { c.q_len = 41; }),
            "attention: q_len (41) exceeds the plan's limit of 40");
  EXPECT_EQ(message([](Case& c) { c.kv_len = 91; }),
            "attention: kv_len (91) exceeds the plan's limit of 90");
  EXPECT_EQ(message([](Case& c) { c.q_heads = 6; }),
            "attention: q_heads (6) exceeds the plan's limit of 4");
  EXPECT_EQ(message([](Case& c) { c.kv_heads = 4; }),
            "attention: kv_heads (4) exceeds the plan's limit of 2");
  EXPECT_EQ(message([](Case& c) { c.head_dim = 8; }),
            "attention: head_dim (8) is not the plan's 16");
  EXPECT_EQ(message([](Case& c) { c.types.q = bf16; }),
            "attention: q is bfloat16, the plan was made for float32");
  EXPECT_EQ(message([](Case& c) { c.types.v = f16; }),
            "attention: v is float16, the plan was made for float32");
}

TEST(Plan, ServesKeysAndValuesOfTwoTypes) {
  Limits limits = kLimits;
  limits.kv_type = bf16;
  limits.v_type = f16;
  Case c = within_limits();
  c.types.k = bf16;
  c.types.v = f16;
  for (Isa isa : isas()) {
    const Plan plan(limits, {.isa = isa});
    EXPECT_NE(plan.describe().find("q float32, k bfloat16, v float16"), std::string::npos);
    Workspace workspace = plan.make_workspace();
    Problem p(c);
    p.run(isa);
    const Outputs expected(p);
    p.out.poison();
    plan.run(p.arguments(), workspace);
    EXPECT_EQ(differing_bits(expected, Outputs(p)), 0) << isa_name(isa);
    Case other = c;
    other.types.v = bf16;
    Problem refused(other);
    EXPECT_EQ(refusal_of([&] { plan.run(refused.arguments(), workspace); }),
              "attention: v is bfloat16, the plan was made for float16");
  }
}

TEST(Plan, RefusesImpossibleLimits) {
  const auto message = [](const std::function<void(Limits&, Options&)>& change) {
    Limits limits = kLimits;
    Options options;
    change(limits, options);
    return refusal_of([&] { Plan(limits, options); });
  };
  EXPECT_EQ(message([](auto&, auto&) {}), "accepted");
  EXPECT_EQ(message([](auto& limits, auto&) { limits.batch = -1; }),
            "plan: batch (-1) is not within 0 .. 281474976710656");
  EXPECT_EQ(message([](auto& limits, auto&) { limits.head_dim = 769; }),
            "plan: head_dim (769) is not within 0 .. 768");
  EXPECT_EQ(message([](auto&, auto& options) { options.threads = -1; }),
            "plan: threads (-1) is negative");
  EXPECT_EQ(message([](auto&, auto& options) { options.threads = INT_MAX; }),
            "plan: threads (2147483647) is more than 4096");
  EXPECT_EQ(message([](auto&, auto& options) {
              options.threads = INT_MAX;
              options.executor = &Executor::serial();
            }),
            "accepted");
  EXPECT_EQ(message([](auto& limits, auto&) { limits.q_type = ElementType::int32; }),
            "plan: q_type is int32, expected float32, float16 or bfloat16");
  EXPECT_EQ(
      message([](auto& limits, auto&) { limits.kv_type = ElementType::boolean; }),
      "plan: kv_type is boolean, expected float32, float16, bfloat16, int8, int4, float8_e4m3 or "
      "float8_e5m2");
  EXPECT_EQ(message([](auto& limits, auto&) { limits.q_type = ElementType::int8; }),
            "plan: q_type is int8, expected float32, float16 or bfloat16");
  EXPECT_EQ(message([](auto& limits, auto&) { limits.v_type = ElementType::int8; }),
            "plan: v_type is int8, expected float32, float16 or bfloat16 beside a kv_type of "
            "float32");
  EXPECT_EQ(message([](auto& limits, auto&) {
              limits.kv_type = ElementType::int8;
              limits.v_type = f16;
            }),
            "plan: v_type is float16, expected int8 as kv_type: codes are of one type");
}

TEST(Plan, ServesCachesOfAnyType) {
  Random random(5);
  for (const ElementType type : {f32, f16, bf16, ElementType::int8, ElementType::int4,
                                 ElementType::float8_e4m3, ElementType::float8_e5m2}) {
    KvCacheConfig config;
    config.batch = 2;
    config.kv_heads = 2;
    config.head_dim = 40;
    config.type = type;
    config.capacity = 90;
    KvCache cache(config);
    Tensor k(f32, {2, 90, 2, 40}), q(f32, {2, 1, 4, 40}), out(f32, {2, 1, 4, 40});
    k.fill_normal(random);
    q.fill_normal(random);
    cache.append(k.const_view(), k.const_view());
    AttentionArguments call;
    call.q = q.const_view();
    call.kv = cache.view();
    call.out = out.view();
    Limits limits = kLimits;
    limits.head_dim = limits.value_dim = 40;
    limits.kv_type = type;
    for (Isa isa : isas()) {
      attention(call, {.isa = isa});
      const std::vector<std::byte> expected = out.bytes();
      out.poison();
      const Plan plan(limits, {.isa = isa});
      Workspace workspace = plan.make_workspace();
      plan.run(call, workspace);
      EXPECT_EQ(out.bytes(), expected) << isa_name(isa) << " " << element_name(type);
      limits.kv_type = type == f16 ? bf16 : f16;
      const Plan other(limits, {.isa = isa});
      Workspace of_other = other.make_workspace();
      EXPECT_EQ(refusal_of([&] { other.run(call, of_other); }),
                std::string("attention: kv.k is ") + element_name(type) +
                    ", the plan was made for " + element_name(limits.kv_type));
      limits.kv_type = type;
    }
  }
}

TEST(Plan, RefusesAnotherPlansSmallerWorkspace) {
  Limits small = kLimits;
  small.head_dim = small.value_dim = 1;
  const Plan plan(kLimits), other(small);
  Workspace workspace = other.make_workspace();
  Problem p(within_limits());
  ASSERT_LT(workspace.bytes(), plan.make_workspace().bytes());
  EXPECT_NE(refusal_of([&] { plan.run(p.arguments(), workspace); }).find("workspace"),
            std::string::npos);
}

TEST(Plan, MovesAndDescribesItself) {
  for (Isa isa : isas()) {
    Plan first(kLimits, {.isa = isa});
    const Plan plan = std::move(first);
    Workspace made = plan.make_workspace();
    Workspace workspace = std::move(made);
    Problem p(within_limits());
    EXPECT_NO_THROW(plan.run(p.arguments(), workspace));
    EXPECT_NE(plan.describe().find(isa_name(isa)), std::string::npos) << plan.describe();
    EXPECT_NE(plan.describe(p.arguments()).find("work items"), std::string::npos)
        << plan.describe(p.arguments());
  }
}

TEST(Plan, ThreadsAreNotNegative) {
  Problem p(within_limits());
  EXPECT_EQ(refusal_of([&] { attention(p.arguments(), {.threads = -2}); }),
            "attention: threads (-2) is negative");
}

}  // namespace
}  // namespace polyhead::test
