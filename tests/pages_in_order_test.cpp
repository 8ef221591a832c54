// Decoding over pages of which some follow each other: read as one piece where all of an item's do,
// and never past them. Every other row of the pool is NaN.
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "polyhead/attention.h"
#include "support/problem.h"
#include "support/random.h"
#include "support/tensor.h"

namespace polyhead::test {
namespace {

constexpr std::int64_t kKeys = 2100, kPage = 16, kHeads = 4, kKvHeads = 2, kDim = 40,
                       kPages = (kKeys + kPage - 1) / kPage, kPool = 2 * kPages;

/// The places of pages in order from `first` on, some of them moved behind all others.
std::vector<std::int32_t> places(std::int32_t first, const std::vector<std::int64_t>& moved) {
  std::vector<std::int32_t> table(kPages);
  std::iota(table.begin(), table.end(), first);
  std::int32_t place = static_cast<std::int32_t>(kPool);
  for (const std::int64_t page : moved) table[static_cast<std::size_t>(page)] = --place;
  return table;
}

/// Rows of `from` [1, tokens, heads, dim] on pages [head][page][token][dim].
Tensor paged(const Tensor& from, const std::vector<std::int32_t>& table) {
  Tensor pool(from.type(), {kPool, kPage, kKvHeads, kDim}, {2, 0, 1, 3});
  pool.poison();
  for_each_index(from.extents(), [&](const Index& at) {
    const std::int64_t page = table[static_cast<std::size_t>(at[1] / kPage)];
    pool.set({page, at[1] % kPage, at[2], at[3]}, from.get(at));
  });
  return pool;
}

TEST(PagesInOrder, SameBitsWhereverPagesLie) {
  const std::int64_t split = 1024 / kPage;
  const std::vector<std::pair<std::string, std::vector<std::int32_t>>> tables = {
      {"in order", places(0, {})},
      {"from the fifth on", places(5, {})},
      {"but for the first", places(3, {0})},
      {"but for the second", places(3, {1})},
      {"but for the last", places(3, {kPages - 1})},
      {"but for a split's first", places(3, {split})},
      {"but for a split's last", places(3, {split - 1})},
      {"but for one within", places(3, {split + 7})}};
  ThreadPool three(3);
  const std::int32_t lengths[] = {kKeys};
  for (const ElementType type : {f32, bf16, f16}) {
    Tensor k(type, {1, kKeys, kKvHeads, kDim}), v(type, {1, kKeys, kKvHeads, kDim});
    Random random(11);
    k.fill_normal(random);
    v.fill_normal(random);
    for (const std::int64_t q_len : {1, 3}) {
      Tensor q(type == f16 ? f32 : type, {1, q_len, kHeads, kDim});
      q.fill_normal(random);
      for (const auto& [name, table] : tables) {
        const Tensor k_pool = paged(k, table), v_pool = paged(v, table);
        AttentionArguments call;
        call.q = q.const_view();
        call.mask = causal(Align::end);
        for (const Isa isa : isas()) {
          Tensor expected(f32, {1, q_len, kHeads, kDim}), out = expected;
          call.out = expected.view();
          call.k = k.const_view();
          call.v = v.const_view();
          call.kv = {};
          attention(call, {.isa = isa, .executor = &Executor::serial()});
          call.out = out.view();
          call.k = call.v = {};
          call.kv = {.k = k_pool.const_view(),
                     .v = v_pool.const_view(),
                     .page_table = {table.data(), {std::int64_t{1}, kPages}},
                     .lengths = {lengths, {1}}};
          for (Executor* executor : {&Executor::serial(), static_cast<Executor*>(&three)}) {
            out.poison();
            attention(call, {.isa = isa, .executor = executor});
            EXPECT_EQ(differing_bits(out, expected), 0)
                << name << ", " << element_name(type) << ", " << isa_name(isa) << ", " << q_len;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace polyhead::test
