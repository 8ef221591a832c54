// Head statistics: roles come out of the patterns that they are named for, chance out of even
// weights, and nothing out of texts too short to measure.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "polyhead/heads.h"
#include "support/heads_text.h"
#include "support/problem.h"

namespace polyhead::test {
namespace {

/// A causal layer whose heads are pushed, by a bias, to what each role is about.
TEST(HeadRoles, EachRoleComesOutOfItsPattern) {
  constexpr std::int64_t kTokens = 60;
  Text text(kTokens, 5, 20);
  for (std::size_t i = 0; i < text.tokens.size(); ++i)
    text.tokens[i] = static_cast<std::int32_t>(i % 20);
  for (std::size_t i = 0; i < text.delimiters.size(); ++i) text.delimiters[i] = i % 11 == 3;
  Case c;
  c.q_len = c.kv_len = kTokens;
  c.q_heads = kHeadRoles;
  c.mask = MaskKind::causal_end;
  c.q_deviation = 0.1;
  Problem p(c);
  std::vector<float> bias(static_cast<std::size_t>(kHeadRoles * kTokens * kTokens), 0.0f);
  for (int head = 0; head < kHeadRoles; ++head) {
    for (std::int64_t q = 0; q < kTokens; ++q) {
      for (std::int64_t key = 0; key <= q; ++key) {
        bool wanted = false;
        switch (static_cast<HeadRole>(head)) {
          case HeadRole::resting:
            wanted = key == 0;
            break;
          case HeadRole::induction:
            wanted = key == q - 19;
            break;
          case HeadRole::duplicate:
            wanted = key == q - 20;
            break;
          case HeadRole::previous:
            wanted = key == q - 1;
            break;
          case HeadRole::self:
            wanted = key == q;
            break;
          case HeadRole::local:
            wanted = q - key >= 3 && q - key <= 7;
            break;
          case HeadRole::delimiter:
            wanted = key % 11 == 3 && q - key > 8;
            break;
          case HeadRole::broad:
            break;
          case HeadRole::mixed:
            wanted = q % 20 - key % 20 == 11 || (key == 0 && q > 0);
            break;
        }
        if (wanted) bias[static_cast<std::size_t>((head * kTokens + q) * kTokens + key)] = 14.0f;
      }
    }
  }
  p.modifiers.bias = {bias.data(), {std::int64_t{1}, std::int64_t{kHeadRoles}, kTokens, kTokens}};
  p.run(Isa::automatic);
  HeadStatistics heads(study_of(c, text));
  heads.add(p.arguments());
  for (int head = 0; head < kHeadRoles; ++head) {
    EXPECT_STREQ(head_role_name(heads.measures(head).role),
                 head_role_name(static_cast<HeadRole>(head)));
  }
}

TEST(HeadRoles, RulesAreTestedInOrder) {
  HeadMeasures m;
  for (TargetMass& target : m.targets) target.share = 0.5;
  m.first = 0.99;
  m.spread = 1;
  EXPECT_EQ(head_role(m), HeadRole::resting);
  m.first = 0.98;
  for (int t = 0; t < kHeadTargets; ++t) {
    EXPECT_EQ(head_role(m), static_cast<HeadRole>(t + 1));
    m.targets[static_cast<std::size_t>(t)].share = t % 2 == 0 ? 0.39 : std::nan("");
  }
  EXPECT_EQ(head_role(m), HeadRole::broad);
  m.spread = 0.74;
  EXPECT_EQ(head_role(m), HeadRole::mixed);
  m.first = m.spread = std::nan("");
  EXPECT_EQ(head_role(m), HeadRole::mixed);
}

// Equal weights on all visible keys are what chance means.
TEST(HeadRoles, EvenWeightsGiveChanceAndFullSpread) {
  Case c;
  c.q_len = c.kv_len = 90;
  c.mask = MaskKind::causal_end;
  Problem p(c);
  for_each_index(p.q.extents(), [&](const Index& at) { p.q.set(at, 0.0); });
  const Text text(c.kv_len);
  for (Isa isa : isas()) {
    p.run(isa);
    HeadStatistics heads(study_of(c, text));
    heads.add(p.arguments(), {.isa = isa});
    const HeadMeasures m = heads.measures(0);
    EXPECT_NEAR(m.spread, 1.0, 1e-5);
    EXPECT_EQ(m.role, HeadRole::broad);
    for (const TargetMass& target : m.targets) {
      EXPECT_GT(target.rows, 0);
      EXPECT_NEAR(target.mean, target.mean_chance, 1e-5);
      EXPECT_NEAR(target.share, target.share_chance, 1e-5);
    }
  }
}

TEST(HeadRoles, OneTokenAndNoTokensAreNotMeasurable) {
  for (const std::int64_t n : {0, 1}) {
    Case c;
    c.q_len = c.kv_len = n;
    c.mask = MaskKind::causal_end;
    Problem p(c);
    p.run(Isa::automatic);
    const Text text(n);
    HeadStatistics heads(study_of(c, text));
    heads.add(p.arguments());
    const HeadMeasures m = heads.measures(0);
    EXPECT_TRUE(std::isnan(m.first));
    EXPECT_TRUE(std::isnan(m.spread));
    for (const TargetMass& target : m.targets) {
      EXPECT_EQ(target.rows, 0);
      EXPECT_TRUE(std::isnan(target.mean));
      EXPECT_TRUE(std::isnan(target.share));
    }
    EXPECT_EQ(m.role, HeadRole::mixed);
    if (n == 1) {
      EXPECT_EQ(m.mean_entropy, 0.0);
    }
  }
}

}  // namespace
}  // namespace polyhead::test
