// Plan::run allocates nothing, and scratch stays within its promise whatever the lengths.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "polyhead/attention.h"
#include "polyhead/layer.h"
#include "polyhead/sliding_attention.h"
#include "support/effort.h"
#include "support/failing_allocation.h"
#include "support/problem.h"

thread_local std::int64_t polyhead::test::allocations_left = -1;
thread_local std::size_t polyhead::test::largest_allocation = SIZE_MAX;

namespace {

std::atomic<std::int64_t> allocations{0};

void* counted(std::size_t bytes, std::size_t alignment) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  std::int64_t& left = polyhead::test::allocations_left;
  if (left >= 0 && left-- == 0) throw std::bad_alloc();
  if (bytes > polyhead::test::largest_allocation) throw std::bad_alloc();
  void* memory =
      alignment <= alignof(std::max_align_t)
          ? std::malloc(bytes > 0 ? bytes : 1)
          : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  // Scratch is aligned: every test of this program finds it full of NaN, and so do its kernels.
  if (alignment > alignof(std::max_align_t)) std::memset(memory, 0xff, bytes);
  return memory;
}

}  // namespace

// The whole test program counts and poisons; only this file looks. g++ 12 sees through some of
// these and not others when sanitizers keep it from inlining, and takes the pair of malloc and free
// for a mismatch.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
#endif
void* operator new(std::size_t bytes) { return counted(bytes, 1); }
void* operator new[](std::size_t bytes) { return counted(bytes, 1); }
// The sanitizer's own would answer for these two (std::stable_sort takes its buffer so) and find a
// free of ours not to match.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(bytes > 0 ? bytes : 1);
}
void* operator new[](std::size_t bytes, const std::nothrow_t& nothrow) noexcept {
  return operator new(bytes, nothrow);
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace polyhead::test {
namespace {

TEST(NoAllocation, InPlanRun) {
  ThreadPool pool(3);
  for (Isa isa : isas()) {
    for (const Types& types : {kTypes[0], kTypes[1], kTypes[2]}) {
      for (int i = 0; i < kMaskKinds + kModifierKinds; i += effort() == Effort::smoke ? 7 : 1) {
        for (std::int64_t q_len : {1, 150}) {
          Case c;
          c.batch = 2;
          c.q_len = q_len;
          c.kv_len = 1500;
          c.q_heads = 4;
          c.kv_heads = 2;
          c.types = types;
          c.mask = i < kMaskKinds ? static_cast<MaskKind>(i) : MaskKind::none;
          c.modifier =
              i < kMaskKinds ? ModifierKind::none : static_cast<ModifierKind>(i - kMaskKinds);
          c.statistics = i % 2 == 0;
          if (i % 5 != static_cast<int>(isa) % 5 && q_len != 1)
            continue;  // making the arrays takes the time
          Problem p(c);
          const AttentionArguments arguments = p.arguments();
          const Plan plan({.batch = 2,
                           .q_len = q_len,
                           .kv_len = 1500,
                           .q_heads = 4,
                           .kv_heads = 2,
                           .head_dim = 16,
                           .value_dim = 16,
                           .q_type = types.q,
                           .kv_type = types.k},
                          {.isa = isa, .executor = &pool});
          Workspace workspace = plan.make_workspace();
          plan.run(arguments, workspace);  // the pool's threads start here
          const std::int64_t before = allocations.load();
          plan.run(arguments, workspace);
          EXPECT_EQ(allocations.load() - before, 0) << isa_name(isa) << ": " << describe(c);
        }
      }
    }
  }
}

// A plan of its own threads has started them.
TEST(NoAllocation, InTheFirstRunOfAPlanWithThreads) {
  Case c;
  c.batch = 4;
  c.q_len = 70;
  c.kv_len = 300;
  Problem p(c);
  const AttentionArguments arguments = p.arguments();
  const Plan plan({.batch = 4,
                   .q_len = 70,
                   .kv_len = 300,
                   .q_heads = c.q_heads,
                   .kv_heads = c.kv_heads,
                   .head_dim = c.head_dim,
                   .value_dim = c.value_dim},
                  {.threads = 5});
  Workspace workspace = plan.make_workspace();
  const std::int64_t before = allocations.load();
  plan.run(arguments, workspace);
  EXPECT_EQ(allocations.load() - before, 0);
}

// Two sequences on the same pages but for the last one: in any order of work, and split by keys.
TEST(NoAllocation, WhereSequencesShareKeys) {
  constexpr int kPages = 17, kDim = 32;
  const std::vector<float> pool_rows((kPages + 1) * 64 * 2 * kDim, 0.1f);
  std::vector<std::int32_t> table(2 * kPages);
  for (std::int32_t i = 0; i < 2 * kPages; ++i) table[static_cast<std::size_t>(i)] = i % kPages;
  table.back() = kPages;
  const std::int64_t lengths[] = {1030, 1080};
  const std::vector<float> q(2 * 4 * kDim, 0.2f);
  std::vector<float> out(q.size());
  AttentionArguments call;
  call.q = {q.data(), {2, 1, 4, kDim}};
  call.kv.k = call.kv.v = {pool_rows.data(), {kPages + 1, 64, 2, kDim}};
  call.kv.page_table = {table.data(), {2, kPages}};
  call.kv.lengths = {lengths, {2}};
  call.out = {out.data(), {2, 1, 4, kDim}};
  ThreadPool pool(3);
  for (Isa isa : isas()) {
    for (Executor* executor : {&Executor::serial(), static_cast<Executor*>(&pool)}) {
      const Plan plan({.batch = 2,
                       .kv_len = 1080,
                       .q_heads = 4,
                       .kv_heads = 2,
                       .head_dim = 32,
                       .value_dim = 32},
                      {.isa = isa, .executor = executor});
      ASSERT_NE(plan.describe(call).find("prefixes shared"), std::string::npos);
      Workspace workspace = plan.make_workspace();
      plan.run(call, workspace);
      const std::int64_t before = allocations.load();
      plan.run(call, workspace);
      EXPECT_EQ(allocations.load() - before, 0) << isa_name(isa);
      EXPECT_NEAR(out.back(), 0.1f, 1e-6f);  // a mean of equal values
    }
  }
}

TEST(NoAllocation, InDecodingWithALayer) {
  ThreadPool pool(3);
  const std::vector<float> numbers(96 * 96, 0.01f);
  std::vector<float> y(2 * 96);
  LayerWeights weights;
  weights.w_q = weights.w_k = weights.w_v = weights.w_o = {numbers.data(), {96, 96}};
  for (Isa isa : isas()) {
    for (ElementType type : {f32, f16, bf16}) {
      LayerConfig config;
      config.model_dim = 96;
      config.q_heads = 4;
      config.rope.emplace().pairing = RopePairing::half_split;
      config.mask = causal();
      config.weight_type = type;
      const MultiHeadAttention layer(config, weights, {.isa = isa, .executor = &pool});
      KvCache cache(layer.cache_config(2, 1100));
      // Prefill to just before the keys begin a second split; a row repeats, by its stride.
      std::vector<float> rows(2 * 1000 * 96);
      layer.forward(ConstView(numbers.data(), {2, 1000, 96}, {0, 0, 1}), cache,
                    View(rows.data(), {2, 1000, 96}));
      LayerWorkspace workspace;
      const LayerCall call{.workspace = &workspace};
      std::int64_t before = 0;
      for (int token = 0; token < 100; ++token) {
        layer.forward(ConstView(numbers.data(), {2, 1, 96}), cache, View(y.data(), {2, 1, 96}),
                      call);
        if (token == 0) before = allocations.load();  // the workspace has its size
      }
      EXPECT_EQ(allocations.load() - before, 0) << isa_name(isa) << " " << element_name(type);
    }
  }
}

TEST(NoAllocation, InDecodingOverPagesAndRings) {
  ThreadPool pool(3);
  const std::vector<float> numbers(96 * 96, 0.01f);
  std::vector<float> y(2 * 96);
  LayerWeights weights;
  weights.w_q = weights.w_k = weights.w_v = weights.w_o = {numbers.data(), {96, 96}};
  LayerConfig config;
  config.model_dim = 96;
  config.q_heads = 4;
  config.rope.emplace().pairing = RopePairing::half_split;
  config.mask = causal();
  const MultiHeadAttention layer(config, weights, {.executor = &pool});
  PagedCache pages({.pages = 20, .page_tokens = 16, .kv_heads = 4, .head_dim = 24});
  const std::int64_t sequences[] = {pages.create(), pages.create()};
  SlidingCache ring({.batch = 2, .kv_heads = 4, .head_dim = 24, .window = 40, .first_tokens = 4});
  const std::int32_t offsets[] = {0, 1, 2};
  LayerWorkspace workspace;
  const LayerCall call{.offsets = ConstView(offsets, {3}), .workspace = &workspace};
  const ConstView x(numbers.data(), {2, 96});
  const View to(y.data(), {2, 96});
  std::int64_t most = 0;
  for (int token = 0; token < 90; ++token) {
    for (const std::int64_t sequence : sequences)
      ASSERT_EQ(pages.extend(sequence, 1), PagedCache::Status::ok);
    const std::int64_t before = allocations.load();
    const auto status = layer.forward(
        x, {.cache = &pages, .sequences = sequences, .room = PagedRoom::made}, to, call);
    ASSERT_EQ(status, PagedCache::Status::ok);
    for (const auto positions : {SlidingPositions::original, SlidingPositions::in_cache})
      layer.forward(x, ring, to, positions, call);
    // The workspace and the notes of what is written have their size; a table grows with the pages.
    if (token > 1 && token % 16 != 0) most = std::max(most, allocations.load() - before);
  }
  EXPECT_EQ(most, 0);
}

TEST(NoAllocation, InAPlanForPositionsInTheCache) {
  ThreadPool pool(3);
  pool.run(3, {[](void*, int) {}, nullptr});  // starts its threads
  constexpr std::int64_t kChunk = 20, kHeads = 4, kDim = 32;
  const std::vector<float> numbers(2 * kChunk * kHeads * kDim, 0.1f);
  std::vector<float> out(numbers.size());
  const ConstView rows(numbers.data(), {std::int64_t{2}, kChunk, kHeads, kDim});
  RopeConfig rope;
  rope.pairing = RopePairing::half_split;
  for (Isa isa : isas()) {
    for (const std::int64_t first_tokens : {0, 4}) {
      SlidingCacheConfig config;
      config.batch = 2;
      config.kv_heads = kHeads;
      config.head_dim = kDim;
      config.window = 100;
      config.first_tokens = first_tokens;
      config.chunk = kChunk;
      SlidingCache cache(config);
      for (int i = 0; i < 30; ++i) cache.append(rows, rows);
      const InCachePlan plan({.batch = 2,
                              .q_len = kChunk,
                              .kv_len = 600,
                              .q_heads = kHeads,
                              .kv_heads = kHeads,
                              .head_dim = kDim,
                              .value_dim = kDim},
                             rope, {.isa = isa, .executor = &pool});
      InCacheWorkspace workspace = plan.make_workspace();
      const std::int64_t before = allocations.load();
      for (int i = 0; i < 3; ++i)
        plan.run(cache,
                 {.q = rows, .out = View(out.data(), {std::int64_t{2}, kChunk, kHeads, kDim})},
                 workspace);
      EXPECT_EQ(allocations.load() - before, 0) << isa_name(isa) << " " << first_tokens;
      EXPECT_NEAR(out.back(), 0.1f, 1e-6f);  // a mean of equal values
    }
  }
}

TEST(NoAllocation, ScratchIsBoundedWhateverTheLengths) {
  ThreadPool pool(4);
  for (Isa isa : isas()) {
    for (ElementType type : {f32, f16, bf16}) {
      for (std::int64_t dim : {1, 64, 128, 256}) {
        const auto bytes = [&](std::int64_t q_len, std::int64_t kv_len, std::int64_t batch) {
          const Plan plan({.batch = batch,
                           .q_len = q_len,
                           .kv_len = kv_len,
                           .q_heads = 64,
                           .kv_heads = 8,
                           .head_dim = dim,
                           .value_dim = dim,
                           .q_type = type,
                           .kv_type = type},
                          {.isa = isa, .executor = &pool});
          return plan.make_workspace().bytes();
        };
        constexpr std::int64_t kLong = std::int64_t{1} << 40;
        const std::size_t largest = bytes(kLong, kLong, 512);
        EXPECT_LE(largest, bytes(4096, 4096, 4)) << "nothing grows with the lengths";
        EXPECT_LE(bytes(kLong, kLong, 1000), largest + std::size_t{1000} * 128);
        EXPECT_LE(bytes(kLong, kLong, 1000000), largest + std::size_t{65536} * 128);
        // 1 MiB a thread, partial results included, and a head's rooms over pages.
        EXPECT_LE(largest, 4 * (std::size_t{1} << 20) + (std::size_t{512} << 10))
            << isa_name(isa) << " " << element_name(type) << " " << dim;
      }
    }
  }
}

// Scratch is of the workers that have work, not of those that the layer may have.
TEST(NoAllocation, AWorkspaceIsNoLargerForThreadsThatHaveNothingToDo) {
  const std::vector<float> x(64, 0.5f);
  std::vector<float> y(64);
  std::size_t bytes[2] = {};
  for (const int threads : {1, 16}) {
    LayerConfig config;
    config.model_dim = 64;
    config.q_heads = 1;
    config.use_projections = false;
    const MultiHeadAttention layer(config, {}, {.threads = threads});
    LayerWorkspace workspace;
    layer.forward(ConstView(x.data(), {1, 1, 64}), View(y.data(), {1, 1, 64}),
                  {.workspace = &workspace});
    bytes[threads > 1] = workspace.bytes();
  }
  EXPECT_EQ(bytes[0], bytes[1]);
}

}  // namespace
}  // namespace polyhead::test
