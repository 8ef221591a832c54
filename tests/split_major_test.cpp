// Decoding over pages, split by split for all heads: the bits of a cache in one piece, one head
// after the other.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "attention/schedule.hpp"
#include "attention/validate.hpp"
#include "polyhead/attention.h"
#include "polyhead/kv_cache.h"
#include "polyhead/paged_cache.h"
#include "support/effort.h"
#include "support/page_major.h"
#include "support/problem.h"
#include "support/random.h"
#include "support/tensor.h"

namespace polyhead::test {
namespace {

/// The same tokens in one piece and on pages, and queries for the last ones.
class Both {
 public:
  Both(const std::vector<std::int64_t>& lengths, std::int64_t q_len, ElementType q, ElementType kv)
      : batch_(std::ssize(lengths)),
        pieces_(config_of(lengths, kv)),
        pages_(paged_of(lengths, kv)) {
    std::vector<std::int64_t> sequences;
    const std::int64_t longest = *std::ranges::max_element(lengths);
    Tensor k(f32, {batch_, longest, kKvHeads, kDim}), v(f32, {batch_, longest, kKvHeads, kDim});
    fill(k);
    fill(v);
    pieces_.append(k.const_view(), v.const_view(), ConstView(lengths.data(), {batch_}));
    for (std::int64_t b = 0; b < batch_; ++b) {
      sequences.push_back(pages_.create());
      const auto rows = [&](const Tensor& of) {
        ConstView view = of.const_view();
        return ConstView(static_cast<const float*>(view.data) + b * longest * kKvHeads * kDim,
                         {lengths[static_cast<std::size_t>(b)], kKvHeads, kDim});
      };
      EXPECT_EQ(pages_.append(sequences.back(), rows(k), rows(v)), PagedCache::Status::ok);
    }
    pages_.batch(sequences, table_);
    heads_together_ = std::make_unique<PageMajor>(pages_.view(0, table_));
    q_ = Tensor(q, {batch_, q_len, kHeads, kDim});
    out_ = Tensor(f32, {batch_, q_len, kHeads, kDim});
    lse_ = Tensor(f32, {batch_, q_len, kHeads});
    fill(q_);
  }

  AttentionArguments arguments(bool on_pages) {
    AttentionArguments a;
    a.q = q_.const_view();
    a.kv = on_pages ? heads_together_->view : pieces_.view();
    a.out = out_.view();
    a.lse = lse_.view();
    a.mask = mask;
    return a;
  }

  std::vector<std::vector<std::byte>> run(bool on_pages, const Options& options) {
    out_.poison();
    lse_.poison();
    attention(arguments(on_pages), options);
    return {out_.bytes(), lse_.bytes()};
  }

  bool split_major(Isa isa, int workers) { return goes_split_major(arguments(true), isa, workers); }
  /// Of the cache itself, in which the pages of a head lie beside each other.
  bool cache_is_split_major() {
    AttentionArguments a = arguments(true);
    a.kv = pages_.view(0, table_);
    return goes_split_major(a, Isa::portable, 1);
  }

  Mask mask = causal(Align::end);

 private:
  static constexpr std::int64_t kHeads = 8, kKvHeads = 4, kDim = 32, kPage = 16;

  static bool goes_split_major(const AttentionArguments& a, Isa isa, int workers) {
    return make_schedule(door::resolve(a), kernels::cpu::backend(isa), workers, nullptr)
        .split_major;
  }

  static KvCacheConfig config_of(const std::vector<std::int64_t>& lengths, ElementType kv) {
    KvCacheConfig config;
    config.batch = std::ssize(lengths);
    config.kv_heads = kKvHeads;
    config.head_dim = kDim;
    config.type = kv;
    config.capacity = *std::ranges::max_element(lengths);
    return config;
  }
  static PagedCacheConfig paged_of(const std::vector<std::int64_t>& lengths, ElementType kv) {
    PagedCacheConfig config;
    config.page_tokens = kPage;
    config.kv_heads = kKvHeads;
    config.head_dim = kDim;
    config.type = kv;
    for (const std::int64_t length : lengths) config.pages += length / kPage + 1;
    return config;
  }
  void fill(Tensor& tensor) {
    for_each_index(tensor.extents(), [&](const Index& at) { tensor.set(at, random_.normal()); });
  }

  std::int64_t batch_;
  Random random_{5};
  KvCache pieces_;
  PagedCache pages_;
  PagedBatch table_;
  std::unique_ptr<PageMajor> heads_together_;
  Tensor q_, out_, lse_;
};

TEST(SplitMajor, SameBitsAsOneAfterTheOther) {
  ThreadPool two(2), five(5);
  const std::vector<std::int64_t> lengths = {2500, 4, 1024, 3100, 2048, 1025};
  int turn = 0;
  for (const auto& [q, kv] : {std::pair{f32, f32},
                              {bf16, bf16},
                              {f32, ElementType::int8},
                              {bf16, ElementType::int4},
                              {f32, f16}}) {
    for (const std::int64_t q_len : {std::int64_t{1}, std::int64_t{3}}) {
      if (++turn % 3 != 0 && effort() == Effort::smoke) continue;
      Both both(lengths, q_len, q, kv);
      const std::int64_t counts[] = {q_len, 0, 1, q_len, 1, q_len};
      if (turn % 2 == 0) both.mask.q_lengths = ConstView(counts, {6});
      for (Isa isa : isas()) {
        const auto expected = both.run(false, {.isa = isa, .executor = &Executor::serial()});
        ASSERT_TRUE(both.split_major(isa, 2) && !both.split_major(isa, 5));
        for (Executor* executor :
             {&Executor::serial(), static_cast<Executor*>(&two), static_cast<Executor*>(&five)}) {
          EXPECT_TRUE(both.run(true, {.isa = isa, .executor = executor}) == expected)
              << isa_name(isa) << " " << element_name(kv) << " " << q_len << " threads "
              << executor->concurrency();
        }
      }
    }
  }
}

TEST(SplitMajor, WhereTheyAreWorthIt) {
  EXPECT_TRUE(Both({1025, 3}, 1, f32, f32).split_major(Isa::portable, 1));
  EXPECT_TRUE(Both({1025, 3}, 1, f32, f32).split_major(Isa::portable, 2));
  EXPECT_FALSE(Both({1025, 3}, 1, f32, f32).split_major(Isa::portable, 3)) << "they would wait";
  const Plan plan({.batch = 2,
                   .q_len = 1,
                   .kv_len = 1025,
                   .q_heads = 8,
                   .kv_heads = 4,
                   .head_dim = 32,
                   .value_dim = 32},
                  {});
  Both both({1025, 3}, 1, f32, f32);
  EXPECT_NE(plan.describe(both.arguments(true)).find("split by split for all KV heads"),
            std::string::npos);
  EXPECT_FALSE(both.cache_is_split_major()) << "a head's pages lie beside each other";
  EXPECT_FALSE(Both({1024, 3}, 1, f32, f32).split_major(Isa::portable, 2)) << "one split";
  EXPECT_FALSE(Both({1025, 300}, 100, f32, f32).split_major(Isa::portable, 2)) << "many rows";
  Both windowed({3000, 1500}, 1, f32, f32);
  windowed.mask = causal(Align::end) & window(200, 0);
  windowed.mask.align = Align::end;
  EXPECT_FALSE(windowed.split_major(Isa::portable, 2)) << "splits that nobody sees";
  EXPECT_TRUE(windowed.run(true, {}) == windowed.run(false, {}));
}

// Rooms of many heads are more than what other calls of a plan need: the address sanitizer sees
// whether it keeps them.
TEST(SplitMajor, APlanKeepsItsRooms) {
  constexpr std::int64_t kHeads = 60, kDim = 128, kChunk = 64, kKeys = 1100;
  const Plan plan({.batch = 1,
                   .q_len = 1,
                   .kv_len = kKeys,
                   .q_heads = kHeads,
                   .kv_heads = kHeads,
                   .head_dim = kDim,
                   .value_dim = kDim,
                   .kv_type = bf16},
                  {.executor = &Executor::serial()});
  PagedCacheConfig config;
  config.pages = kKeys / 64 + 1;
  config.kv_heads = kHeads;
  config.head_dim = kDim;
  config.type = bf16;
  PagedCache cache(config);
  const std::int64_t sequence = cache.create();
  Tensor rows(f32, {kChunk, kHeads, kDim});
  Random random(3);
  for_each_index(rows.extents(), [&](const Index& at) { rows.set(at, random.normal()); });
  for (std::int64_t at = 0; at < kKeys; at += kChunk) {
    const ConstView chunk(rows.const_view().data, f32,
                          {std::min(kChunk, kKeys - at), kHeads, kDim});
    ASSERT_EQ(cache.append(sequence, chunk, chunk), PagedCache::Status::ok);
  }
  PagedBatch batch;
  cache.batch({&sequence, 1}, batch);
  Tensor q(f32, {1, 1, kHeads, kDim}), out(f32, {1, 1, kHeads, kDim}), once = out;
  for_each_index(q.extents(), [&](const Index& at) { q.set(at, random.normal()); });
  AttentionArguments call;
  call.q = q.const_view();
  const PageMajor heads_together(cache.view(0, batch));
  call.kv = heads_together.view;
  call.out = out.view();
  Workspace workspace = plan.make_workspace();
  plan.run(call, workspace);
  EXPECT_NE(plan.describe(call).find("split by split"), std::string::npos);
  call.out = once.view();
  attention(call, {.threads = 1});
  EXPECT_EQ(differing_bits(out, once), 0);
}

}  // namespace
}  // namespace polyhead::test
