// Sequences whose keys begin on the same pages: the bits that each has alone, and the shared keys
// read once.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "polyhead/attention.h"
#include "polyhead/paged_cache.h"
#include "polyhead/tree_mask.h"
#include "support/effort.h"
#include "support/forest.h"
#include "support/paged.h"
#include "support/problem.h"
#include "support/random.h"
#include "support/tensor.h"

namespace polyhead::test {
namespace {

/// Decode steps and a chunk over one prefix of two splits, two of them sharing one split more, one
/// that ends with the prefix, and one that shares nothing.
std::vector<Branch> mixed() {
  return {{-1, 0, 2 * kSplit + 70, 1}, {0, 2 * kSplit, 5, 1},     {0, 2 * kSplit + 64, 1100, 3},
          {2, 3 * kSplit, 200, 1},     {-1, 0, 1500, 2},          {0, 2 * kSplit + 10, 1, 1},
          {0, 2 * kSplit, 40, 30},     {0, 2 * kSplit - 3, 3, 1}, {0, 2 * kSplit, 0, 1}};
}

/// The instruction sets that a case runs on: all, or, with little effort, another one each time.
std::vector<Isa> isas_in_turn() {
  static std::size_t turn = 0;
  const std::vector<Isa> all = isas();
  if (effort() != Effort::smoke) return all;
  return {all[turn++ % all.size()]};
}

/// That it shares keys, and gives the bits that each sequence has alone.
void expect_same_bits(Forest& forest, const std::string& what) {
  ThreadPool pool(3);
  for (Isa isa : isas_in_turn()) {
    const auto expected = forest.run_alone(isa);
    EXPECT_LT(forest.keys(isa).together, forest.keys(isa).apart) << what;
    EXPECT_TRUE(forest.run({.isa = isa, .executor = &Executor::serial()}) == expected)
        << isa_name(isa) << " " << what;
    EXPECT_TRUE(forest.run({.isa = isa, .executor = &pool}) == expected)
        << isa_name(isa) << " threads " << what;
  }
}

/// Shapes of few rows and of more than a decode kernel takes, on each path of elements.
std::vector<Shape> some_shapes() {
  std::vector<Shape> shapes;
  for (const auto& [q_heads, kv_heads] : {std::pair{6, 2}, {3, 3}, {40, 2}}) {
    for (const ElementType kv : {f32, bf16, ElementType::int8}) {
      Shape shape;
      shape.q_heads = q_heads;
      shape.kv_heads = kv_heads;
      shape.kv = kv;
      shape.q = kv == f32 ? f32 : bf16;
      shapes.push_back(shape);
    }
  }
  return shapes;
}

std::string name_of(const Shape& shape) {
  return std::string(element_name(shape.kv)) + " " + std::to_string(shape.q_heads) + "/" +
         std::to_string(shape.kv_heads);
}

TEST(SharedPrefix, GivesEachSequenceTheBitsItHasAlone) {
  std::vector<std::unique_ptr<ThreadPool>> pools;
  for (int threads : {2, 5}) pools.push_back(std::make_unique<ThreadPool>(threads));
  int turn = 0;
  for (const ElementType kv : {f32, f16, bf16, ElementType::int8, ElementType::int4,
                               ElementType::float8_e4m3, ElementType::float8_e5m2}) {
    for (const auto& [q_heads, kv_heads] : {std::pair{4, 2}, {3, 3}, {8, 1}, {40, 2}}) {
      if (effort() == Effort::smoke && (turn + q_heads) % 3 != 0) continue;
      Shape shape;
      shape.q_heads = q_heads;
      shape.kv_heads = kv_heads;
      shape.head_dim = turn % 2 == 0 ? 24 : 64;
      shape.value_dim = turn % 2 == 0 ? 20 : 64;
      shape.page_tokens = std::int64_t{8} << turn % 6;
      shape.kv = kv;
      shape.q = kv == bf16 || turn % 3 == 1 ? bf16 : f32;
      Forest forest(shape, mixed());
      forest.arguments.modifiers.soft_cap = turn % 4 == 3 ? 20.0f : 0.0f;
      if (turn % 5 == 4) forest.arguments.lse = {};
      for (Isa isa : isas_in_turn()) {
        const auto expected = forest.run_alone(isa);
        ASSERT_LT(forest.keys(isa).together, forest.keys(isa).apart);
        EXPECT_TRUE(forest.run({.isa = isa, .executor = &Executor::serial()}) == expected)
            << isa_name(isa) << " " << element_name(kv) << " " << q_heads << "/" << kv_heads;
        EXPECT_TRUE(
            forest.run({.isa = isa, .executor = pools[static_cast<std::size_t>(turn) % 2].get()}) ==
            expected)
            << isa_name(isa) << " threads " << element_name(kv) << " " << q_heads << "/"
            << kv_heads;
      }
      ++turn;
    }
  }
}

TEST(SharedPrefix, OfLatents) {
  for (const ElementType kv : {f32, bf16, ElementType::int8}) {
    for (const std::int64_t q_heads : {3, 16, 40}) {
      for (const std::int64_t page_tokens : {8, 64}) {
        Shape shape;
        shape.q_heads = q_heads;
        shape.kv_heads = 1;
        shape.head_dim = 40;
        shape.value_dim = 32;
        shape.page_tokens = page_tokens;
        shape.kv = kv;
        shape.q = kv == f32 ? f32 : bf16;
        shape.values_in_keys = true;
        Forest forest(shape, mixed());
        expect_same_bits(forest, name_of(shape) + " latents");
      }
    }
  }
}

// Beginnings of many lengths, each branching off an earlier one at any place.
TEST(SharedPrefix, AnyForest) {
  Random random(11);
  ThreadPool pool(3);
  const int rounds = effort() == Effort::smoke ? 3 : 12;
  for (int round = 0; round < rounds; ++round) {
    std::vector<Branch> branches;
    std::vector<std::int64_t> lengths;
    const int count = static_cast<int>(2 + random.below(9));
    for (int b = 0; b < count; ++b) {
      Branch branch{-1, 0, 1 + random.below(2600), 1 + random.below(3)};
      if (b > 0 && random.below(5) != 0) {
        branch.from = static_cast<int>(random.below(b));
        branch.shared = random.below(lengths[static_cast<std::size_t>(branch.from)] + 1);
        branch.own = branch.q_len + random.below(900);
      }
      branch.own = std::max(branch.own, branch.q_len);
      lengths.push_back(branch.shared + branch.own);
      branches.push_back(branch);
    }
    Shape shape;
    shape.page_tokens = std::int64_t{8} << random.below(6);
    shape.kv = random.below(2) == 0 ? f32 : ElementType::int8;
    Forest forest(shape, branches);
    for (Isa isa : isas_in_turn()) {
      const auto expected = forest.run_alone(isa);
      EXPECT_TRUE(forest.run({.isa = isa, .executor = &Executor::serial()}) == expected) << round;
      EXPECT_TRUE(forest.run({.isa = isa, .executor = &pool}) == expected) << round;
    }
  }
}

TEST(SharedPrefix, ReadsSharedKeysOnce) {
  // Eight sequences over a prefix of three splits, 100 tokens of their own each.
  std::vector<Branch> branches = {{-1, 0, 3 * kSplit + 100, 1}};
  for (int i = 1; i < 8; ++i) branches.push_back({0, 3 * kSplit, 100, 1});
  for (const int workers : {1, 2, 7}) {
    const KeysRead keys = Forest({}, branches).keys(Isa::portable, workers);
    EXPECT_EQ(keys.apart, 8 * (3 * kSplit + 100));
    EXPECT_EQ(keys.together, 3 * kSplit + 8 * 100);
  }
  // Two halves that share two splits more among themselves: what all share is still read once.
  for (int i = 0; i < 8; ++i) branches[static_cast<std::size_t>(i)].own = 2 * kSplit + 100;
  branches[0].own = 5 * kSplit + 100;
  for (int i = 1; i < 4; ++i) branches[static_cast<std::size_t>(i)] = {0, 5 * kSplit, 100, 1};
  for (int i = 5; i < 8; ++i) branches[static_cast<std::size_t>(i)] = {4, 5 * kSplit, 100, 1};
  for (const int workers : {1, 7}) {
    EXPECT_EQ(Forest({}, branches).keys(Isa::portable, workers).together,
              (3 + 2 * 2) * kSplit + 8 * 100);
  }
  // Each branches off the one before, a split further on.
  branches = {{-1, 0, 6 * kSplit, 1}};
  for (int i = 1; i < 6; ++i) branches.push_back({0, (6 - i) * kSplit, 10, 1});
  EXPECT_EQ(Forest({}, branches).keys(Isa::portable).together, 6 * kSplit + 5 * 10);
  // A prefix that ends within a split is shared up to it.
  EXPECT_EQ(Forest({}, {{-1, 0, 1600, 1}, {0, 1599, 1, 1}}).keys(Isa::portable).together,
            kSplit + 2 * (1600 - kSplit));
  EXPECT_EQ(Forest({}, {{-1, 0, 1000, 1}, {0, 999, 1, 1}}).keys(Isa::portable).together, 2000);
}

// Sequences whose rows are more than one item takes are cut where they have least in common.
TEST(SharedPrefix, IsCutWhereLeastIsShared) {
  Shape shape;
  shape.kv_heads = 1;
  shape.q_heads = 8;
  const std::int64_t most =
      kernels::cpu::backend(Isa::portable)
          .float32.prefill.rows(door::resolve(Forest(shape, {{-1, 0, 8, 1}}).arguments));
  // Two groups that share three splits each and one between them; a third would fit one item with
  // either, but not both.
  const std::int64_t third = most / shape.q_heads / 3;
  ASSERT_GE(third, 2);
  const std::int64_t first = 2 * third, second = third + 1;
  std::vector<Branch> branches = {{-1, 0, 3 * kSplit + 1, 1}};
  while (std::ssize(branches) < first) branches.push_back({0, 3 * kSplit, 1, 1});
  branches.push_back({0, kSplit, 2 * kSplit + 1, 1});
  while (std::ssize(branches) < first + second)
    branches.push_back({static_cast<int>(first), 3 * kSplit, 1, 1});
  Forest forest(shape, branches);
  EXPECT_EQ(forest.keys(Isa::portable).together, 2 * 3 * kSplit + first + second);
  EXPECT_TRUE(forest.run({.isa = Isa::portable}) == forest.run_alone(Isa::portable));
}

// Where rows of different sequences do not mean the same, each computes all of its keys.
TEST(SharedPrefix, IsLeftWhereSequencesDiffer) {
  const std::vector<Branch> branches = {{-1, 0, 1100, 1}, {0, 1099, 1, 1}, {0, 1090, 300, 1}};
  Forest forest({}, branches);
  const auto shares = [&] {
    const auto expected = forest.run_alone(Isa::portable);
    EXPECT_TRUE(forest.run({.isa = Isa::portable}) == expected);
    const KeysRead keys = forest.keys(Isa::portable);
    return keys.together < keys.apart;
  };
  EXPECT_TRUE(shares());
  forest.arguments.mask = causal(Align::end) & window(1390, 0);
  forest.arguments.mask.align = Align::end;
  EXPECT_TRUE(shares());  // every query sees all of the first split
  forest.arguments.mask = window(700, 0);
  forest.arguments.mask.align = Align::end;
  EXPECT_FALSE(shares());
  forest.arguments.mask = causal(Align::end);
  forest.arguments.modifiers.dropout = {.probability = 0.25f, .seed = 3, .sequence_ids = {}};
  const KeysRead dropped = forest.keys(Isa::portable);
  EXPECT_EQ(dropped.together, dropped.apart);
  forest.arguments.modifiers.dropout = {};
  struct Nothing : TileModifier {
    void apply(const ScoreTile&) const override {}
  } nothing;
  forest.arguments.modifiers.custom[0] = &nothing;
  EXPECT_FALSE(shares());
}

/// Adds what a place says, its sequence too, and hides some pairs if told to. A call of one
/// sequence alone is told which it is.
struct OfPlace : ScoreModifier<OfPlace> {
  std::int64_t sequence = -1;
  bool hides = false;
  float operator()(float score, ScoreAt at) const {
    const std::int64_t b = sequence < 0 ? at.batch : sequence;
    const std::int64_t place = 5 * b + 3 * at.head + 2 * at.query + at.q_pos + 7 * at.kv_pos;
    return hides && place % 11 == 0 ? -INFINITY : score + 0.125f * static_cast<float>(place % 9);
  }
};

// User code and dropout ask for the sequence of each pair, so that each computes all of its keys:
// what it has alone, on the pages that others hold too.
TEST(SharedPrefix, UnderDropoutAndScoresOfOnesOwn) {
  const std::vector<Branch> branches = mixed();
  std::vector<std::int64_t> ids;
  while (ids.size() < branches.size()) ids.push_back((std::int64_t{5} << 32) - 3 * std::ssize(ids));
  ThreadPool pool(3);
  int turn = 0;
  for (const Shape& shape : some_shapes()) {
    Forest forest(shape, branches);
    const int kind = (turn + turn / 3) % 3;  // another one for each number of heads and each type
    ++turn;
    OfPlace scores;
    scores.hides = kind == 2;
    Modifiers& modifiers = forest.arguments.modifiers;
    if (kind != 0) modifiers.custom[1] = &scores;
    if (kind != 1) modifiers.dropout = {0.25f, 9, ConstView(ids.data(), {std::ssize(ids)})};
    for (Isa isa : isas_in_turn()) {
      const auto expected = forest.run([&] {
        for (std::size_t b = 0; b < branches.size(); ++b) {
          scores.sequence = static_cast<std::int64_t>(b);
          attention(forest.alone(b), {.isa = isa, .executor = &Executor::serial()});
        }
      });
      scores.sequence = -1;
      const std::string what =
          std::string(isa_name(isa)) + " " + name_of(shape) + " " + std::to_string(kind);
      EXPECT_EQ(forest.keys(isa).together, forest.keys(isa).apart) << what;
      EXPECT_TRUE(forest.run({.isa = isa, .executor = &Executor::serial()}) == expected) << what;
      EXPECT_TRUE(forest.run({.isa = isa, .executor = &pool}) == expected) << what;
    }
  }
}

// Each row's bias is its own: one a sequence, one a query, and rows that hide whole splits.
TEST(SharedPrefix, UnderABias) {
  constexpr std::int64_t kLongest = 3 * kSplit + 200;
  const auto branches = mixed();
  Random random(5);
  int turn = 0;
  for (const Shape& shape : some_shapes()) {
    Forest forest(shape, branches);
    const bool a_sequence = turn % 2 == 0;
    Tensor bias(turn % 3 == 2 ? bf16 : f32,
                {a_sequence ? std::ssize(branches) : 1, turn % 4 == 3 ? 1 : shape.q_heads,
                 a_sequence ? 1 : 30, kLongest});
    ++turn;
    for_each_index(bias.extents(), [&](const Index& at) {
      const bool hidden = (at[0] + at[1] + at[2]) % 3 == 1 && at[3] < kSplit + 40;
      bias.set(at, hidden ? -INFINITY : random.uniform() - 0.5);
    });
    forest.arguments.modifiers.bias = bias.const_view();
    if (turn % 2 == 0) forest.arguments.modifiers.alibi.use_default_slopes = true;
    expect_same_bits(forest, name_of(shape));
  }
}

TEST(SharedPrefix, WithRowStatistics) {
  for (const Shape& shape : some_shapes()) {
    Forest forest(shape, mixed());
    forest.want_statistics();
    expect_same_bits(forest, name_of(shape));
  }
}

// Keys of a query's own document are shared as far as they reach without a gap.
TEST(SharedPrefix, WithinDocuments) {
  const std::vector<Branch> branches = {
      {-1, 0, 2 * kSplit + 70, 1}, {0, 2 * kSplit, 5, 2}, {0, 2 * kSplit, 9, 1}};
  Tensor of_queries(ElementType::int64, {4}), of_keys(ElementType::int64, {3, 2 * kSplit + 70});
  const auto spared = [&](std::int64_t gap_of_third, std::int64_t second_query) {
    for (std::int64_t i = 0; i < 4; ++i) of_queries.set({i}, i == 2 ? second_query : 7);
    for_each_index(of_keys.extents(), [&](const Index& at) {
      of_keys.set(at, at[0] == 2 && at[1] == gap_of_third ? 8 : 7);
    });
    Forest forest({}, branches);
    forest.arguments.mask =
        causal(Align::end) & documents(of_queries.const_view(), of_keys.const_view());
    expect_same_bits(forest, std::to_string(gap_of_third));
    const KeysRead keys = forest.keys(Isa::portable);
    return keys.apart - keys.together;
  };
  EXPECT_EQ(spared(2 * kSplit, 7), 4 * kSplit);
  EXPECT_EQ(spared(2 * kSplit - 1, 7), 3 * kSplit);
  EXPECT_EQ(spared(3, 7), 2 * kSplit);
  EXPECT_EQ(spared(2 * kSplit, 8), 2 * kSplit);
}

// Keys that a mask hides from some sequence are shared up to there.
TEST(SharedPrefix, WithHiddenKeys) {
  const std::vector<Branch> branches = {
      {-1, 0, 2 * kSplit + 70, 1}, {0, 2 * kSplit, 5, 2}, {0, 2 * kSplit, 9, 1}};
  for (const auto& [gap, spared] : {std::pair{2 * kSplit, 4 * kSplit},
                                    {2 * kSplit - 1, 3 * kSplit},
                                    {std::int64_t{3}, 2 * kSplit}}) {
    Tensor hides(ElementType::boolean, {3, 1, 1, 2 * kSplit + 70});
    hides.fill([&](const Index& at) { return at[0] == 2 && at[3] == gap ? 1.0 : 0.0; });
    const std::int64_t row = (2 * kSplit + 70 + 7) / 8;
    Tensor bits(ElementType::boolean, {3, row});
    bits.fill([](const Index&) { return 0.0; });
    bits.bytes()[static_cast<std::size_t>(2 * row + gap / 8)] = std::byte{1} << (gap % 8);
    const ConstView packed(
        bits.bytes().data(), ElementType::bit,
        detail::Layout({std::int64_t{3}, std::int64_t{1}, std::int64_t{1}, 2 * kSplit + 70},
                       {row * 8, std::int64_t{0}, std::int64_t{0}, std::int64_t{1}}));
    Tensor nothing(ElementType::boolean, {1, 1, 1, 1});
    nothing.fill([](const Index&) { return 0.0; });
    const Mask shown = hidden(nothing.const_view());
    for (const Mask& mask : {hidden(hides.const_view()), hidden(packed),
                             shown & hidden(hides.const_view()), hidden(packed) & shown}) {
      Forest forest({}, branches);
      forest.arguments.mask = causal(Align::end) & mask;
      expect_same_bits(forest, std::to_string(gap));
      const KeysRead keys = forest.keys(Isa::portable);
      EXPECT_EQ(keys.apart - keys.together, spared);
    }
  }
}

// A query's distance to a shared key is its own, and so is each head's slope.
TEST(SharedPrefix, UnderAlibi) {
  const std::vector<float> slopes = {0.5f, -0.01f, 0.125f, 0.03f, 0.25f, 0.02f};
  int turn = 0;
  for (const Shape& shape : some_shapes()) {
    Forest forest(shape, mixed());
    if (turn++ % 2 == 0 && shape.q_heads <= 6)
      forest.arguments.modifiers.alibi.slopes = ConstView(slopes.data(), {shape.q_heads});
    else
      forest.arguments.modifiers.alibi.use_default_slopes = true;
    expect_same_bits(forest, name_of(shape));
  }
}

// Trees of drafted tokens over one prompt: their masks show the prompt to all. A mask that hides
// some of it from one sequence leaves the others their share.
TEST(SharedPrefix, UnderTrees) {
  const std::vector<Branch> branches = {
      {-1, 0, 2 * kSplit + 100, 4}, {0, 2 * kSplit + 90, 12, 3}, {0, 2 * kSplit + 50, 10, 4}};
  const std::vector<std::int32_t> parents[] = {{-1, 0, 0, 1}, {-1, -1, 1}, {-1, 0, 1, 1}};
  for (const std::int64_t third : {2 * kSplit + 56, 2 * kSplit - 9, kSplit - 9}) {
    const TreeMask tree(std::vector<DraftTree>{
        {2 * kSplit + 96, parents[0]}, {2 * kSplit + 99, parents[1]}, {third, parents[2]}});
    const std::int64_t splits = 2 + third / kSplit;  // spared, of the three sequences'
    Forest forest({}, branches);
    forest.arguments.mask = tree.mask();
    for (Isa isa : isas_in_turn()) {
      const KeysRead keys = forest.keys(isa);
      EXPECT_EQ(keys.apart - keys.together, splits * kSplit) << third;
      const auto expected = forest.run_alone(isa);
      EXPECT_TRUE(forest.run({.isa = isa}) == expected) << isa_name(isa) << " " << third;
    }
  }
}

// Rows of q and their places under ALiBi and in a bias may need more room than any partial.
TEST(SharedPrefix, APlanKeepsRoomForPlaces) {
  Shape shape;
  shape.q_heads = 8;
  shape.kv_heads = 1;
  shape.head_dim = 64;
  shape.value_dim = 8;
  std::vector<Branch> branches = {{-1, 0, kSplit + 8, 1}};
  while (branches.size() < 48) branches.push_back({0, kSplit, 8, 1});
  Forest forest(shape, branches);
  forest.arguments.modifiers.alibi.use_default_slopes = true;
  const float bias[] = {0.5f};
  forest.arguments.modifiers.bias =
      ConstView(bias, {std::int64_t{1}, std::int64_t{1}, std::int64_t{1}, std::int64_t{1}});
  ThreadPool pool(2);
  const Plan plan({.batch = 48,
                   .q_len = 1,
                   .kv_len = kSplit + 8,
                   .q_heads = 8,
                   .kv_heads = 1,
                   .head_dim = 64,
                   .value_dim = 8},
                  {.executor = &pool});
  Workspace workspace = plan.make_workspace();
  const auto expected = forest.run_alone(Isa::automatic);
  EXPECT_TRUE(forest.run([&] { plan.run(forest.arguments, workspace); }) == expected);
}

TEST(SharedPrefix, APlanServesIt) {
  const std::vector<Branch> branches = {{-1, 0, 2100, 1}, {0, 2099, 1, 1}, {0, 2090, 300, 1}};
  Forest forest({}, branches);
  ThreadPool pool(2);
  for (Executor* executor : {&Executor::serial(), static_cast<Executor*>(&pool)}) {
    const Plan plan({.batch = 3,
                     .q_len = 1,
                     .kv_len = 2390,
                     .q_heads = 4,
                     .kv_heads = 2,
                     .head_dim = 24,
                     .value_dim = 20},
                    {.executor = executor});
    Workspace workspace = plan.make_workspace();
    const auto expected = forest.run_alone(Isa::automatic);
    EXPECT_TRUE(forest.run([&] { plan.run(forest.arguments, workspace); }) == expected);
    EXPECT_NE(plan.describe(forest.arguments).find("prefixes shared: 2494 keys read"),
              std::string::npos)
        << plan.describe(forest.arguments);
  }
}

}  // namespace
}  // namespace polyhead::test
