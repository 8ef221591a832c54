// A few rows of queries by themselves, as decoding has them, get the bits that they get among many:
// whichever way their sums lie, wherever a mask begins, however the largest score moves.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "polyhead/attention.h"
#include "polyhead/isa.h"
#include "polyhead/kv_cache.h"
#include "support/random.h"
#include "support/tensor.h"

namespace polyhead::test {
namespace {

constexpr std::int64_t kOne = 1, kQueries = 24, kKeys = 300, kDim = 64;
constexpr std::int64_t kHiddenFirst = 100, kHiddenEnd = 111;

struct Call {
  ElementType held;
  std::int64_t group, value_dim;
  bool masked;  // keys that hold NaN are hidden, in the middle of a block

  std::string name(Isa isa) const {
    return std::string(isa_name(isa)) + ", group " + std::to_string(group) + ", values of " +
           std::to_string(value_dim) + " in " + element_name(held) + (masked ? ", masked" : "");
  }
};

/// Keys grow along the sequence, so that later scores exceed what the sums are relative to.
KvCache cache_of(const Call& c) {
  KvCacheConfig config;
  config.head_dim = kDim;
  config.value_dim = c.value_dim;
  config.type = c.held;
  config.capacity = kKeys;
  KvCache cache(config);
  Random random(5);
  Tensor k(f32, {1, kKeys, 1, kDim}), v(f32, {1, kKeys, 1, c.value_dim});
  k.fill_normal(random);
  v.fill_normal(random);
  for (std::int64_t key = 0; key < kKeys; ++key) {
    const bool hidden = c.masked && key >= kHiddenFirst && key < kHiddenEnd;
    const float growth = 0.2f + static_cast<float>(key) / 60.0f;
    for (std::int64_t d = 0; d < kDim; ++d)
      k.set({0, key, 0, d}, hidden ? NAN : static_cast<float>(k.get({0, key, 0, d})) * growth);
    for (std::int64_t d = 0; hidden && d < c.value_dim; ++d) v.set({0, key, 0, d}, NAN);
  }
  cache.append(k.const_view(), v.const_view());
  return cache;
}

/// Queries [first, first + count) of q in one call.
Tensor attend(const Call& c, const KvCache& cache, Tensor& q, std::int64_t first,
              std::int64_t count, Isa isa) {
  Tensor out(ElementType::bfloat16, {1, count, c.group, c.value_dim});
  std::vector<std::uint8_t> visible(kKeys, 1);
  for (std::int64_t key = kHiddenFirst; key < kHiddenEnd && c.masked; ++key)
    visible[static_cast<std::size_t>(key)] = 0;
  AttentionArguments call;
  call.q = q.const_view();
  call.q.layout.extents[1] = count;
  call.q.data = static_cast<const std::byte*>(call.q.data) + first * c.group * kDim * 2;
  call.kv = cache.view();
  call.out = out.view();
  if (c.masked)
    call.mask = boolean(
        {visible.data(), ElementType::boolean, {{kOne, kOne, kOne, kKeys}, {0, 0, 0, kOne}}});
  attention(call, {.isa = isa});
  return out;
}

TEST(MovingMaximum, LeavesCallTheBitsThatTheyHaveAmongMany) {
  for (const Isa isa : available_isas()) {
    for (const ElementType held :
         {ElementType::bfloat16, ElementType::float8_e4m3, ElementType::float8_e5m2}) {
      for (const std::int64_t group : {1, 3, 8, 16}) {
        for (const std::int64_t value_dim : {32, 40, 128}) {
          for (const bool masked : {false, true}) {
            const Call c{held, group, value_dim, masked};
            const KvCache cache = cache_of(c);
            Random random(9);
            Tensor q(ElementType::bfloat16, {1, kQueries, group, kDim});
            q.fill_normal(random);
            const Tensor all = attend(c, cache, q, 0, kQueries, isa);
            for (const std::int64_t first : {0, 13}) {
              const Tensor few = attend(c, cache, q, first, 1, isa);
              for (std::int64_t h = 0; h < group; ++h) {
                for (std::int64_t d = 0; d < value_dim; ++d) {
                  ASSERT_EQ(few.get({0, 0, h, d}), all.get({0, first, h, d}))
                      << c.name(isa) << ", query " << first << ", head " << h << ", dim " << d;
                }
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace polyhead::test
