// How calls are cut into work: no work on splits of keys that no query sees, and the same bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "attention/items.hpp"
#include "attention/validate.hpp"
#include "polyhead/attention.h"
#include "polyhead/paged_cache.h"
#include "support/problem.h"
#include "support/random.h"
#include "support/tensor.h"

namespace polyhead::test {
namespace {

constexpr std::int64_t kSplit = kernels::cpu::kSplitKeys;

/// Two sequences of the same keys; queries of heads that share a KV head.
struct Sequences {
  static constexpr std::int64_t kHeads = 2, kDim = 8;
  Tensor q, k, out, lse;
  std::vector<std::int64_t> q_start, lengths;

  Sequences(std::int64_t q_len, std::int64_t kv_len, ElementType type = f32)
      : q(type, {2, q_len, kHeads, kDim}),
        k(type, {2, kv_len, 1, kDim}),
        out(f32, {2, q_len, kHeads, kDim}),
        lse(f32, {2, q_len, kHeads}) {
    Random random(q_len + kv_len);
    for (Tensor* tensor : {&q, &k})
      for_each_index(tensor->extents(), [&](const Index& at) { tensor->set(at, random.normal()); });
  }

  AttentionArguments arguments(const Mask& mask) {
    AttentionArguments call;
    call.mask = mask;
    call.q = q.const_view();
    call.k = call.v = k.const_view();
    call.out = out.view();
    call.lse = lse.view();
    if (!lengths.empty()) call.mask = call.mask & polyhead::lengths(ConstView(lengths.data(), {2}));
    if (!q_start.empty())
      call.q_start = ConstView(q_start.data(), {2});
    else if (call.mask.causal || call.mask.windowed)
      call.mask.align = Align::end;
    return call;
  }

  std::pair<std::vector<std::byte>, std::vector<std::byte>> run(const Mask& mask, Isa isa,
                                                                Executor& executor) {
    out.poison();
    lse.poison();
    attention(arguments(mask), {.isa = isa, .executor = &executor});
    return {out.bytes(), lse.bytes()};
  }
};

const Mask kMasks[] = {
    Mask{},
    causal(),
    window(700, 0),
    window(700, 2000),
    window(0, 0),
    window_and_first(100, 0, 4),
    window_and_first(1500, 3, 1100),
    causal() & prefix(2500),
};

TEST(Schedule, SplitsThatAnyQuerySeesAndNoneOutsideThem) {
  for (const Mask& mask : kMasks) {
    for (const std::int64_t q_len : {1, 3, 40}) {
      for (const std::int64_t start : {0, 500, 1000, 3000, 5000, 5999}) {
        Sequences sequences(q_len, 6000);
        sequences.lengths = {6000, 4097};
        sequences.q_start = {start, start / 2};
        const kernels::AttendCall call = door::resolve(sequences.arguments(mask));
        for (std::int64_t b = 0; b < 2; ++b) {
          const kernels::Sequence s = kernels::sequence_of(call, b);
          std::vector<std::int64_t> expected, found;
          for (std::int64_t split = 0; split * kSplit < s.kv_len; ++split) {
            const std::int64_t from = split * kSplit, to = std::min(from + kSplit, s.kv_len);
            bool seen = false;
            for (std::int64_t query = 0; query < q_len; ++query) {
              const auto range = kernels::structural_range(call.mask, s, s.q_pos0 + query);
              seen = seen || std::max(from, range.begin) < std::min(to, range.end) ||
                     from < std::min(call.mask.kept, range.end);
            }
            if (seen) expected.push_back(split);
          }
          const SplitsSeen seen = splits_seen(call, b);
          for (std::int64_t i = 0; i < seen.count; ++i) found.push_back(seen[i]);
          EXPECT_EQ(found, expected) << q_len << " queries from " << start << " of " << b;
        }
      }
    }
  }
}

TEST(Schedule, HiddenSplitsAreNoItems) {
  const Plan plan({.batch = 2,
                   .q_len = 1,
                   .kv_len = 9000,
                   .q_heads = 2,
                   .kv_heads = 1,
                   .head_dim = 8,
                   .value_dim = 8},
                  {.threads = 2});
  const auto described = [&](const Mask& mask, std::vector<std::int64_t> lengths = {}) {
    Sequences sequences(1, 9000);
    sequences.lengths = std::move(lengths);
    return plan.describe(sequences.arguments(mask));
  };
  const auto expect = [&](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  expect(described({}), ", 18 work items of up to 2 rows, keys in 9 splits");
  expect(described(window(300, 0)), ", 2 work items of up to 2 rows, 2 workers");
  expect(described(window(1000, 0)), ", 4 work items of up to 2 rows, keys in 2 splits");
  expect(described(window_and_first(300, 0, 4)), ", 4 work items of up to 2 rows");
  expect(described({}, {500, 9}), ", 2 work items of up to 2 rows, 2 workers");
  expect(described({}, {5000, 9}), ", 6 work items of up to 2 rows, keys in 5 splits");
}

// Rows of an item read each key once: keys are cut before rows are, while there are splits enough.
TEST(Schedule, RowsAreCutLast) {
  const auto rows_of_an_item = [](std::int64_t q_len, std::int64_t kv_len, int workers) {
    Sequences sequences(q_len, kv_len);
    const kernels::AttendCall call = door::resolve(sequences.arguments({}));
    return make_schedule(call, kernels::cpu::backend(Isa::portable), workers, nullptr)
        .rows_per_item;
  };
  EXPECT_EQ(rows_of_an_item(1, 1000, 2), 2);
  EXPECT_EQ(rows_of_an_item(1, 1000, 4), 1) << "two workers had none";
  EXPECT_EQ(rows_of_an_item(1, 2000, 4), 2);
  EXPECT_EQ(rows_of_an_item(1, 5000, 8), 2);
  EXPECT_GE(rows_of_an_item(50, 5000, 2), 100);
  EXPECT_LT(rows_of_an_item(50, 1000, 2), 100);
}

TEST(Schedule, SameBitsWhereSplitsAreHidden) {
  ThreadPool two(2), five(5);
  for (const auto& [type, q_len] : {std::pair{f32, 1}, {f32, 30}, {bf16, 3}, {f16, 1}}) {
    for (const Mask& mask : kMasks) {
      Sequences sequences(q_len, 6000, type);
      sequences.lengths = {6000, 4097};
      for (const bool elsewhere : {false, true}) {
        if (elsewhere) sequences.q_start = {3000, 17};
        for (Isa isa : isas()) {
          const auto expected = sequences.run(mask, isa, Executor::serial());
          EXPECT_TRUE(sequences.run(mask, isa, two) == expected) << isa_name(isa);
          EXPECT_TRUE(sequences.run(mask, isa, five) == expected) << isa_name(isa);
        }
      }
    }
  }
}

// Time does not go by their number: each of these would take hours.
TEST(Schedule, SequencesWithoutRowsOrHeadsTakeNoTime) {
  constexpr std::int64_t kMany = std::int64_t{1} << 40, kDim = 8;
  ThreadPool pool(2);
  for (const auto& [q_len, heads] : {std::pair{0, 2}, {3, 0}}) {
    float untouched = 7.0f;
    const std::initializer_list<std::int64_t> extents{kMany, q_len, heads, kDim};
    AttentionArguments call;
    call.q = call.k = call.v = ConstView(&untouched, extents);
    call.out = View(&untouched, extents);
    attention(call, {.executor = &pool});
    EXPECT_EQ(untouched, 7.0f);
  }
}

// A step in which no sequence has a token, over pages, split by split for all heads.
TEST(Schedule, NoQueriesOverPages) {
  constexpr std::int64_t kKvHeads = 2, kDim = 8, kKeys = 1100, kNone = 0, kOne = 1;
  PagedCacheConfig config;
  config.pages = 80;
  config.page_tokens = 16;
  config.kv_heads = kKvHeads;
  config.head_dim = kDim;
  PagedCache cache(config);
  const std::int64_t sequence = cache.create();
  Tensor rows(f32, {kKeys, kKvHeads, kDim});
  for_each_index(rows.extents(), [&](const Index& at) { rows.set(at, 1.0f); });
  ASSERT_EQ(cache.append(sequence, rows.const_view(), rows.const_view()), PagedCache::Status::ok);
  PagedBatch batch;
  cache.batch({&sequence, 1}, batch);
  const float nothing = 0.0f;
  float untouched = 7.0f;
  const std::int64_t offsets[] = {0, 0};
  AttentionArguments call;
  call.kv = cache.view(0, batch);
  for (const bool ragged : {false, true}) {
    if (ragged) {
      call.q = ConstView(&nothing, {kNone, kKvHeads, kDim});
      call.out = View(&untouched, {kNone, kKvHeads, kDim});
      call.q_offsets = ConstView(offsets, {2});
    } else {
      call.q = ConstView(&nothing, {kOne, kNone, kKvHeads, kDim});
      call.out = View(&untouched, {kOne, kNone, kKvHeads, kDim});
    }
    attention(call, {.executor = &Executor::serial()});
    EXPECT_EQ(untouched, 7.0f);
  }
}

}  // namespace
}  // namespace polyhead::test
