// A call asks little of its thread's stack: threads of some systems have no more than 128 KiB.
#include <gtest/gtest.h>

#include <cstdint>

#include "polyhead/attention.h"
#include "polyhead/isa.h"
#include "polyhead/paged_cache.h"
#include "support/random.h"
#include "support/small_stack.h"
#include "support/tensor.h"

namespace polyhead::test {
namespace {

/// Queries of two sequences that begin on the same pages, of one token or of many.
void attend(Isa isa, ElementType q_type, ElementType held, std::int64_t dim, std::int64_t q_len) {
  constexpr std::int64_t kHeads = 4, kKvHeads = 2, kShared = 1100;
  PagedCacheConfig config;
  config.pages = 80;
  config.kv_heads = kKvHeads;
  config.head_dim = dim;
  config.type = held;
  PagedCache cache(config);
  Random random(3);
  Tensor rows(f32, {kShared, kKvHeads, dim}), q(q_type, {2, q_len, kHeads, dim});
  for (Tensor* x : {&rows, &q}) x->fill_normal(random);
  Tensor out(q_type, {2, q_len, kHeads, dim});
  const std::int64_t first = cache.create();
  ASSERT_EQ(cache.append(first, rows.const_view(), rows.const_view()), PagedCache::Status::ok);
  const std::int64_t ids[] = {first, cache.fork(first)};
  PagedBatch batch;
  cache.batch(ids, batch);
  AttentionArguments call;
  call.q = q.const_view();
  call.kv = cache.view(0, batch);
  call.out = out.view();
  call.mask = causal(Align::end);
  on_small_stack([&] { attention(call, {.isa = isa, .threads = 1}); });
}

TEST(SmallStack, Of128KiBDoes) {
  if (kSanitized) GTEST_SKIP() << "frames are larger under a sanitizer";
  for (const Isa isa : available_isas()) {
    for (const std::int64_t dim : {64, 576}) {
      for (const std::int64_t q_len : {1, 40}) {
        attend(isa, f32, f32, dim, q_len);
        attend(isa, f32, ElementType::int8, dim, q_len);
        for (const ElementType held : {bf16, ElementType::int8, ElementType::float8_e4m3})
          attend(isa, bf16, held, dim, q_len);
      }
    }
  }
}

}  // namespace
}  // namespace polyhead::test
