// As many rows of one token as nearly fill a vector, which decoding takes by lanes, get the bits
// that they get among many tokens; also where values are the beginning of their keys, as latent
// attention keeps them, and on pages.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

#include "polyhead/attention.h"
#include "support/effort.h"
#include "support/paged.h"
#include "support/problem.h"
#include "support/slice.h"

namespace polyhead::test {
namespace {

/// Four tokens, more rows than decoding takes, of which each sees one key more than the last.
Case four_tokens(std::int64_t q_heads, const Types& types, std::int64_t kv_len, bool odd) {
  Case c;
  c.q_len = 4;
  c.kv_len = kv_len;
  c.q_heads = q_heads;
  c.kv_heads = 1;
  c.head_dim = odd ? 39 : 104;
  c.value_dim = odd ? 33 : 100;  // wide enough for totals beside values
  c.types = types;
  c.mask = MaskKind::causal_end;
  c.seed = static_cast<std::uint64_t>(900 + q_heads + kv_len);
  return c;
}

ConstView beginning(ConstView keys, std::int64_t dims) {
  keys.layout.extents[3] = dims;
  return keys;
}

void poison(Problem& p) {
  p.out.poison();
  p.lse.poison();
}

/// Token by token, over keys and values as `held` has them.
template <class Held>
void expect_same(Problem& p, const Outputs& whole, Isa isa, const char* how, const Held& held) {
  const Case& c = p.description();
  poison(p);
  for (std::int64_t query = 0; query < c.q_len; ++query) {
    AttentionArguments a = part_of(p, {.first_query = query, .end_query = query + 1});
    held(a);
    attention(a, {.isa = isa});
  }
  EXPECT_EQ(differing_bits(whole, Outputs(p)), 0)
      << how << ", " << isa_name(isa) << ": " << describe(c);
}

void expect_same_however_held(const Case& c, Isa isa) {
  Problem p(c);
  p.v.fill([&](const Index& at) { return p.k.get(at); });
  p.run(isa);
  const Outputs whole(p);
  expect_same(p, whole, isa, "apart", [](AttentionArguments&) {});
  expect_same(p, whole, isa, "in keys",
              [&](AttentionArguments& a) { a.v = beginning(a.k, c.value_dim); });
  for (std::int64_t page_tokens : {8, 16, 64, 256}) {
    const Scattered pages(p, page_tokens,
                          page_tokens == 16 ? LayoutKind::gaps : LayoutKind::heads_first);
    for (const bool in_keys : {false, true}) {
      expect_same(p, whole, isa, in_keys ? "in keys, on pages" : "on pages",
                  [&](AttentionArguments& a) {
                    a.kv = pages.view();
                    if (in_keys) a.kv.v = beginning(a.kv.k, c.value_dim);
                    a.k = a.v = {};
                    a.mask.kv_lengths = {};
                  });
    }
  }
}

TEST(FewRows, SameBitsAsAmongManyHoweverKeysAreHeld) {
  for (const std::int64_t q_heads : {12, 13, 15, 16}) {
    for (const std::int64_t kv_len : {5, 64, 143, 1100}) {
      if (effort() == Effort::smoke && q_heads + kv_len != 13 + 143 && q_heads + kv_len != 16 + 5)
        continue;
      for (const Types& types : {kTypes[0], kTypes[1], kTypes[2]}) {
        for (Isa isa : isas())
          expect_same_however_held(four_tokens(q_heads, types, kv_len, kv_len == 143), isa);
      }
    }
  }
}

// Keys and values in one: a NaN reaches the token that sees it and no other.
TEST(FewRows, ANanReachesTheTokenThatSeesIt) {
  for (const Types& types : {kTypes[0], kTypes[1], kTypes[2]}) {
    for (Isa isa : isas()) {
      const Case c = four_tokens(16, types, 100, false);
      Problem p(c);
      for (std::int64_t d = 0; d < c.head_dim; ++d) p.k.set({0, 99, 0, d}, std::nan(""));
      poison(p);
      for (std::int64_t query = 0; query < 4; ++query) {
        AttentionArguments a = part_of(p, {.first_query = query, .end_query = query + 1});
        a.v = beginning(a.k, c.value_dim);
        attention(a, {.isa = isa});
      }
      for (std::int64_t head = 0; head < c.q_heads; ++head) {
        for (std::int64_t query = 0; query < 4; ++query)
          EXPECT_EQ(std::isnan(p.out.get({0, query, head, 0})), query == 3);
      }
    }
  }
}

}  // namespace
}  // namespace polyhead::test
