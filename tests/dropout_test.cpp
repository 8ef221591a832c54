// Kernels draw dropout's random numbers for many pairs at once: each pair's is that of its place.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/dropout.hpp"
#include "polyhead/attention.h"
#include "polyhead/inspect.h"
#include "support/difference.h"
#include "support/problem.h"
#include "support/random.h"
#include "support/tensor.h"

namespace polyhead::test {
namespace {

constexpr std::int64_t kBatch = 2, kQueries = 37, kKeys = 150, kHeads = 4, kKvHeads = 2, kDim = 8;
constexpr std::uint64_t kSeed = 0xfedcba9876543210u;
// Places that need more than 32 bits, and of which the lower halves are negative.
constexpr std::int64_t kIds[] = {(std::int64_t{1} << 40) + 3, -5};
constexpr std::int64_t kStarts[] = {(std::int64_t{3} << 31) - 10, 149};

std::uint32_t number_of(std::int64_t b, std::int64_t head, std::int64_t query, std::int64_t key) {
  const kernels::PhiloxWords words =
      kernels::dropout_words(kSeed, kIds[b], head, kStarts[b] + query, key / 4);
  return words[static_cast<std::size_t>(key % 4)] >> 8;
}

TEST(Dropout, KeepsWhatThePlaceOfAPairSays) {
  // The number of one pair as the probability: that pair is kept, one with any less is dropped.
  const float exact = static_cast<float>(number_of(1, 2, 30, 101)) * 0x1p-24f;
  for (const ElementType type : {f32, bf16}) {
    Tensor q(type, {kBatch, kQueries, kHeads, kDim}), k(type, {kBatch, kKeys, kKvHeads, kDim});
    Tensor v(type, {kBatch, kKeys, kKvHeads, kDim}), out(f32, {kBatch, kQueries, kHeads, kDim});
    Tensor lse(f32, {kBatch, kQueries, kHeads}), weights(f32, {kBatch, kHeads, kQueries, kKeys});
    Random random(1);
    for (Tensor* tensor : {&q, &k, &v}) tensor->fill([&](const Index&) { return random.normal(); });
    AttentionArguments call;
    call.q = q.const_view();
    call.k = k.const_view();
    call.v = v.const_view();
    call.out = out.view();
    call.lse = lse.view();
    call.q_start = ConstView(kStarts, {kBatch});
    call.mask = causal();
    for (const float probability : {exact, 0.5f, 0x1p-24f, 0x1p-30f}) {
      call.modifiers.dropout = {probability, kSeed, ConstView(kIds, {kBatch})};
      for (Isa isa : isas()) {
        out.poison();
        weights.poison();
        attention(call, {.isa = isa});
        inspect(call, {.weights = weights.view()}, {.isa = isa});
        std::int64_t wrong = 0;
        LargestDifference furthest;
        for_each_index({kBatch, kHeads, kQueries}, [&](const Index& row) {
          std::vector<double> sum(kDim, 0.0);
          for (std::int64_t key = 0; key < kKeys; ++key) {
            const double weight = weights.get({row[0], row[1], row[2], key});
            const float number =
                static_cast<float>(number_of(row[0], row[1], row[2], key)) * 0x1p-24f;
            wrong += (weight != 0.0) != (number >= probability);
            for (std::int64_t d = 0; d < kDim; ++d)
              sum[static_cast<std::size_t>(d)] += weight * v.get({row[0], key, row[1] / 2, d});
          }
          for (std::int64_t d = 0; d < kDim; ++d)
            furthest.add(out.get({row[0], row[2], row[1], d}), sum[static_cast<std::size_t>(d)]);
        });
        EXPECT_EQ(wrong, 0) << isa_name(isa) << " " << element_name(type) << " " << probability;
        EXPECT_LE(furthest.value(), type == f32 ? 1e-5 : 0.05)
            << isa_name(isa) << " " << probability;
      }
    }
  }
}

}  // namespace
}  // namespace polyhead::test
