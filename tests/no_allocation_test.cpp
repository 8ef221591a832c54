// Plan::run allocates nothing, and scratch stays within its promise whatever the lengths.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "base/codes.hpp"
#include "polyhead/attention.h"
#include "polyhead/layer.h"
#include "polyhead/sliding_attention.h"
#include "support/effort.h"
#include "support/failing_allocation.h"
#include "support/held.h"
#include "support/problem.h"
#include "support/slice.h"

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

/// Batch, lengths, heads and dims of the calls below; two splits of keys.
Case case_of(const Types& types, std::int64_t q_len, int i) {
  Case c;
  c.batch = 2;
  c.q_len = q_len;
  c.kv_len = 1100;
  c.q_heads = 4;
  c.kv_heads = 2;
  c.types = types;
  c.mask = i < kMaskKinds ? static_cast<MaskKind>(i) : MaskKind::none;
  c.modifier = i < kMaskKinds ? ModifierKind::none : static_cast<ModifierKind>(i - kMaskKinds);
  c.statistics = i % 2 == 0;
  return c;
}

/// The second run of a plan for such calls; the pool's threads start in the first.
std::int64_t allocations_of(const AttentionArguments& call, const Case& c, ElementType kv_type,
                            std::optional<ElementType> v_type, const Options& options) {
  const Plan plan({.batch = c.batch,
                   .q_len = c.q_len,
                   .kv_len = c.kv_len,
                   .q_heads = c.q_heads,
                   .kv_heads = c.kv_heads,
                   .head_dim = c.head_dim,
                   .value_dim = c.value_dim,
                   .q_type = c.types.q,
                   .kv_type = kv_type,
                   .v_type = v_type},
                  options);
  Workspace workspace = plan.make_workspace();
  plan.run(call, workspace);
  const std::int64_t before = allocations.load();
  plan.run(call, workspace);
  return allocations.load() - before;
}

TEST(NoAllocation, InPlanRun) {
  ThreadPool pool(3);
  for (const Types& types : kTypes) {
    // What is special of types that are mixed is how they are read, whatever the mask.
    const bool mixed = types.q != types.k || types.k != types.v;
    const int step = effort() == Effort::smoke ? (mixed ? 29 : 7) : (mixed ? 9 : 1);
    for (int i = 0; i < kMaskKinds + kModifierKinds; i += step) {
      for (std::int64_t q_len : {1, mixed ? 70 : 150}) {
        const Case c = case_of(types, q_len, i);
        Problem p(c);
        for (Isa isa : isas()) {
          if (i % 5 != static_cast<int>(isa) % 5 && q_len != 1 && !mixed) continue;
          EXPECT_EQ(
              allocations_of(p.arguments(), c, types.k, types.v, {.isa = isa, .executor = &pool}),
              0)
              << isa_name(isa) << ": " << describe(c);
        }
      }
    }
  }
}

// Caches of codes, in one piece and in pages, under queries that read them as float32, by integers
// or as bfloat16.
TEST(NoAllocation, InPlanRunOverCodes) {
  ThreadPool pool(3);
  int turn = 0;
  for (const StoredForm& form : kStoredForms) {
    if (!base::is_code(form.type)) continue;
    for (const ElementType q_type : {f32, bf16}) {
      for (const std::int64_t q_len : {1, 70}) {
        const bool in_turn = (q_type == f32) == (static_cast<int>(form.type) % 2 == 0);
        if (effort() == Effort::smoke && q_len != 1 && !in_turn) continue;
        const int i = turn++ % (kMaskKinds + kModifierKinds);
        Case c = case_of({q_type, f32, f32, f32}, q_len, i);
        if (c.mask == MaskKind::kv_lengths || c.mask == MaskKind::both_lengths ||
            c.mask == MaskKind::everything)
          c.mask = MaskKind::none;          // a cache has lengths of its own
        c.head_dim = 40, c.value_dim = 24;  // blocks that are full and blocks that are not
        Problem p(c);
        const std::vector<float> scales = form.by_channel
                                              ? key_scales_by_channel(p.k.const_view(), form.type)
                                              : std::vector<float>();
        const ConstView by_channel =
            form.by_channel ? ConstView(scales.data(), {std::int64_t{1}, c.kv_heads, c.head_dim})
                            : ConstView();
        KvCache whole({.batch = c.batch,
                       .kv_heads = c.kv_heads,
                       .head_dim = c.head_dim,
                       .value_dim = c.value_dim,
                       .type = form.type,
                       .capacity = c.kv_len,
                       .key_scales = form.by_channel ? drop_first_axis(by_channel) : ConstView()});
        whole.append(p.k.const_view(), p.v.const_view());
        PagedCache pages({.pages = 36,
                          .kv_heads = c.kv_heads,
                          .head_dim = c.head_dim,
                          .value_dim = c.value_dim,
                          .type = form.type,
                          .key_scales = by_channel});
        const std::int64_t sequences[] = {pages.create(), pages.create()};
        for (std::int64_t b = 0; b < c.batch; ++b) {
          const auto of_sequence = [&](const Tensor& x) {
            return drop_first_axis(slice(x.const_view(), 0, b, b + 1));
          };
          ASSERT_EQ(pages.append(sequences[b], of_sequence(p.k), of_sequence(p.v)),
                    PagedCache::Status::ok);
        }
        PagedBatch batch;
        pages.batch(sequences, batch);
        AttentionArguments call = p.arguments();
        call.k = call.v = {};
        for (const KvView& view : {whole.view(), pages.view(0, batch)}) {
          call.kv = view;
          for (Isa isa : isas()) {
            EXPECT_EQ(allocations_of(call, c, form.type, {}, {.isa = isa, .executor = &pool}), 0)
                << isa_name(isa) << " " << name_of(form) << ": " << describe(c);
          }
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

// The door promises 1 MiB a thread, partial results included, for dims up to 256, and 512 KiB a
// call that decodes over pages. The first holds of the dims of latents too, 512 and 576, as what a
// thread has grows with their sum.
TEST(NoAllocation, ScratchIsBoundedWhateverTheLengths) {
  struct Dims {
    std::int64_t head, value;
  };
  ThreadPool pool(4);
  for (Isa isa : isas()) {
    int turn = 0;
    for (const ElementType type : {f32, f16, bf16, ElementType::int8, ElementType::int4,
                                   ElementType::float8_e4m3, ElementType::float8_e5m2}) {
      for (const auto& [head_dim, value_dim] :
           {Dims{1, 1}, {64, 64}, {128, 128}, {192, 128}, {256, 256}, {512, 512}, {576, 512}}) {
        const ElementType q_type = !base::is_code(type) ? type : turn++ % 2 == 0 ? f32 : bf16;
        for (const int threads : {1, 4}) {
          const auto bytes = [&](std::int64_t q_len, std::int64_t kv_len, std::int64_t batch,
                                 std::int64_t q_heads = 64) {
            const Plan plan(
                {.batch = batch,
                 .q_len = q_len,
                 .kv_len = kv_len,
                 .q_heads = q_heads,
                 .kv_heads = 8,
                 .head_dim = head_dim,
                 .value_dim = value_dim,
                 .q_type = q_type,
                 .kv_type = type},
                {.isa = isa,
                 .executor = threads == 1 ? &Executor::serial() : static_cast<Executor*>(&pool)});
            return plan.make_workspace().bytes();
          };
          constexpr std::int64_t kLong = std::int64_t{1} << 40;
          const std::size_t largest = bytes(kLong, kLong, 512);
          const auto threads_share = static_cast<std::size_t>(threads) << 20;
          EXPECT_LE(largest, threads_share + (std::size_t{512} << 10))
              << isa_name(isa) << " " << element_name(type) << " " << head_dim << "/" << value_dim;
          if (threads == 1) {
            EXPECT_LE(bytes(1, kLong, 512, 1024), threads_share + (std::size_t{512} << 10));
            continue;
          }
          if (base::is_code(type) || head_dim > 256) continue;
          EXPECT_LE(largest, bytes(4096, 4096, 4)) << "nothing grows with the lengths";
          EXPECT_LE(bytes(kLong, kLong, 1000), largest + std::size_t{1000} * 128);
          EXPECT_LE(bytes(kLong, kLong, 1000000), largest + std::size_t{65536} * 128);
        }
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
