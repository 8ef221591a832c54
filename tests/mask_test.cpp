// Building and joining masks, and what each makes visible.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "attention/validate.hpp"
#include "kernels/reference/attend.hpp"
#include "polyhead/attention.h"
#include "polyhead/mask.h"
#include "support/slice.h"
#include "support/small_case.h"

namespace polyhead::test {
namespace {

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();

/// A call of dims 1 whose only purpose is its mask.
struct Call {
  std::vector<float> q, k, out;
  AttentionArguments arguments;

  Call(std::int64_t batch, std::int64_t q_len, std::int64_t kv_len, const Mask& mask,
       std::int64_t heads = 1)
      : q(static_cast<std::size_t>(batch * q_len * heads)),
        k(static_cast<std::size_t>(batch * kv_len)),
        out(q) {
    arguments.q = {q.data(), {batch, q_len, heads, std::int64_t{1}}};
    arguments.k = arguments.v = {k.data(), {batch, kv_len, std::int64_t{1}, std::int64_t{1}}};
    arguments.out = {out.data(), {batch, q_len, heads, std::int64_t{1}}};
    arguments.mask = mask;
  }
};

/// One row of text a query, '#' for a visible key, by the reference's predicate.
std::vector<std::string> picture(const Call& call, std::int64_t batch = 0, std::int64_t head = 0) {
  const kernels::AttendCall resolved = door::resolve(call.arguments);
  const kernels::Sequence sequence = kernels::sequence_of(resolved, batch);
  std::vector<std::string> rows;
  for (std::int64_t query = 0; query < resolved.q_len; ++query) {
    std::string row;
    for (std::int64_t key = 0; key < resolved.kv_len; ++key) {
      row += kernels::reference::visible(resolved, sequence, head, query, key) ? '#' : '.';
    }
    rows.push_back(row);
  }
  return rows;
}

std::vector<std::string> picture(std::int64_t q_len, std::int64_t kv_len, const Mask& mask) {
  return picture(Call(1, q_len, kv_len, mask));
}

using Picture = std::vector<std::string>;

TEST(Mask, CausalAlignments) {
  EXPECT_EQ(picture(3, 3, causal()), (Picture{"#..", "##.", "###"}));
  EXPECT_EQ(picture(2, 4, causal(Align::end)), (Picture{"###.", "####"}));
  EXPECT_EQ(picture(2, 4, causal(Align::start)), (Picture{"#...", "##.."}));
  EXPECT_EQ(picture(4, 2, causal(Align::end)), (Picture{"..", "..", "#.", "##"}));
  EXPECT_EQ(picture(4, 2, causal(Align::start)), (Picture{"#.", "##", "##", "##"}));
}

TEST(Mask, WindowsIncludeBothEnds) {
  EXPECT_EQ(picture(4, 4, window(1, 0)), (Picture{"#...", "##..", ".##.", "..##"}));
  EXPECT_EQ(picture(4, 4, window(0, 2)), (Picture{"###.", ".###", "..##", "...#"}));
  EXPECT_EQ(picture(2, 5, window(1, 1, Align::end)), (Picture{"..###", "...##"}));
  EXPECT_EQ(picture(2, 5, window(1, 1, Align::start)), (Picture{"##...", "###.."}));
  EXPECT_EQ(picture(3, 3, window(-1, 0)), picture(3, 3, causal()));
  EXPECT_EQ(picture(3, 3, window(-1, -1)), (Picture{"###", "###", "###"}));
  EXPECT_EQ(picture(3, 3, window(kHuge, kHuge)), (Picture{"###", "###", "###"}));
  EXPECT_EQ(picture(4, 2, window(kHuge, 0, Align::end)), (Picture{"..", "..", "#.", "##"}));
}

TEST(Mask, PrefixAndExplicitPositions) {
  EXPECT_EQ(picture(4, 4, prefix(2)), (Picture{"##..", "##..", "###.", "####"}));
  EXPECT_EQ(picture(2, 2, prefix(7)), (Picture{"##", "##"}));
  const std::int32_t start[] = {2};
  Call call(1, 2, 4, causal());
  call.arguments.q_start = {start, {1}};
  EXPECT_EQ(picture(call), (Picture{"###.", "####"}));
}

TEST(Mask, LengthsMoveTheEnd) {
  const std::int32_t kv[] = {3, 0}, q[] = {2, 1};
  Call call(2, 3, 4, causal(Align::end) & lengths({kv, {2}}, {q, {2}}));
  EXPECT_EQ(picture(call, 0), (Picture{"##..", "###.", "...."}));
  EXPECT_EQ(picture(call, 1), (Picture{"....", "....", "...."}));
}

TEST(Mask, DocumentsAndTables) {
  const std::int64_t ids[] = {7, 7, 1, 1};
  EXPECT_EQ(picture(4, 4, documents({ids, {1, 4}}, {ids, {1, 4}})),
            (Picture{"##..", "##..", "..##", "..##"}));
  const std::uint8_t row[] = {1, 0, 255};
  EXPECT_EQ(picture(2, 3, boolean({row, {1, 1, 1, 3}})), (Picture{"#.#", "#.#"}));
  const std::uint8_t bits[] = {0b101, 0b110};
  detail::Layout layout({1, 1, 2, 3}, {0, 0, 8, 1});
  EXPECT_EQ(picture(2, 3, boolean({bits, ElementType::bit, layout})), (Picture{"#.#", ".##"}));
  EXPECT_EQ(picture(2, 3, boolean({row, {1, 1, 1, 3}}) & causal(Align::end)),
            (Picture{"#..", "#.#"}));
  EXPECT_EQ(picture(3, 4, boolean({row, {1, 1, 3, 1}})), (Picture{"####", "....", "####"}));
  EXPECT_EQ(picture(2, 4, boolean({row + 1, {1, 1, 1, 1}})), (Picture{"....", "...."}));
  EXPECT_EQ(picture(2, 3, hidden({row, {1, 1, 1, 3}})), (Picture{".#.", ".#."}));
  const Mask rows = boolean({row, {1, 1, 1, 3}}),
             packed = boolean({bits, ElementType::bit, layout});
  EXPECT_EQ(picture(2, 3, rows & packed), (Picture{"#.#", "..#"}));
  EXPECT_EQ(picture(2, 3, packed & rows), (Picture{"#.#", "..#"}));
  EXPECT_EQ(picture(2, 3, hidden({row, {1, 1, 1, 3}}) & hidden({bits, ElementType::bit, layout})),
            (Picture{".#.", "..."}));
  EXPECT_EQ(picture(2, 3, hidden({bits, ElementType::bit, layout})), (Picture{".#.", "#.."}));
  EXPECT_EQ(picture(2, 3, hidden({bits, ElementType::bit, layout}) & boolean({row, {1, 1, 1, 3}})),
            (Picture{"...", "#.."}));
}

/// Calls body(problem, isa) for calls of two sequences with 150 keys each.
template <class Body>
void for_each_call(const Body& body) {
  for (Isa isa : isas()) {
    for (const Types& types : {kTypes[0], kTypes[1]}) {
      for (const std::int64_t q_len : {1, 3, 40}) {
        Case c = small_case(types, q_len, 150);
        c.batch = 2;
        Problem p(c);
        body(p, isa);
      }
    }
  }
}

// What hides is what shows, turned around: bytes of every row, of keys alone, one for all keys, and
// bits, beside a mask of the other kind.
TEST(Mask, HiddenIsTheOppositeOfBoolean) {
  for_each_call([](Problem& p, Isa isa) {
    const Case& c = p.description();
    const std::int64_t q_len = c.q_len;
    Tensor causal_rows(ElementType::boolean, {1, 1, q_len, 150});
    causal_rows.fill([&](const Index& at) { return at[3] <= 150 - q_len + at[2] ? 1.0 : 0.0; });
    const auto expect_opposites = [&](const ConstView& shows, const ConstView& hides) {
      p.mask = boolean(shows) & causal(Align::end);
      p.run(isa);
      const Outputs expected(p);
      p.mask = hidden(hides) & boolean(causal_rows.const_view());
      p.run(isa);
      EXPECT_EQ(differing_bits(Outputs(p), expected), 0) << isa_name(isa) << describe(c);
    };
    const Index shapes[] = {{2, 4, q_len, 150}, {2, 1, 1, 150}, {2, 4, q_len, 1}};
    for (const Index& shape : shapes) {
      Tensor shows(ElementType::boolean, shape), hides(ElementType::boolean, shape);
      shows.fill([](const Index& at) { return (at[0] + at[1] + at[2] + at[3]) % 3; });
      hides.fill([&](const Index& at) { return shows.get(at) == 0.0 ? 1.0 : 0.0; });
      expect_opposites(shows.const_view(), hides.const_view());
    }
    Tensor bits(ElementType::boolean, {2, 19}), turned(ElementType::boolean, {2, 19});
    for (std::size_t i = 0; i < bits.bytes().size(); ++i) {
      bits.bytes()[i] = static_cast<std::byte>(i * 73);
      turned.bytes()[i] = ~bits.bytes()[i];
    }
    const detail::Layout rows(
        {2, 1, 1, 150}, {std::int64_t{152}, std::int64_t{0}, std::int64_t{0}, std::int64_t{1}});
    expect_opposites({bits.bytes().data(), ElementType::bit, rows},
                     {turned.bytes().data(), ElementType::bit, rows});
  });
}

// A mask whose rows say the same of all keys, by an extent of 1, by a stride of 0, or in full.
TEST(Mask, OneBooleanForAllKeys) {
  for_each_call([](Problem& p, Isa isa) {
    const Case& c = p.description();
    const std::int64_t q_len = c.q_len;
    Tensor one(ElementType::boolean, {2, 4, q_len, 1});
    one.fill([](const Index& at) { return (at[0] + at[1] + at[2]) % 3 != 0 ? 1.0 : 0.0; });
    Tensor full(ElementType::boolean, {2, 4, q_len, 150});
    full.fill([&](const Index& at) { return one.get({at[0], at[1], at[2], 0}); });
    p.mask = boolean(full.const_view()) & causal(Align::end);
    p.run(isa);
    const Outputs expected(p);
    p.mask = boolean(one.const_view()) & causal(Align::end);
    p.run(isa);
    EXPECT_EQ(differing_bits(Outputs(p), expected), 0) << isa_name(isa) << describe(c);
    p.mask.visible.layout.extents[3] = 150;
    p.mask.visible.layout.strides[3] = 0;
    p.run(isa);
    EXPECT_EQ(differing_bits(Outputs(p), expected), 0) << isa_name(isa) << describe(c);
  });
}

TEST(Mask, JoiningWindowsIntersects) {
  const Mask both = window(5, 3, Align::end) & window(-1, 1, Align::end);
  EXPECT_FALSE(both.conflict);
  EXPECT_EQ(both.left, 5);
  EXPECT_EQ(both.right, 1);
  const Mask one = causal(Align::end) & window(2, -1);
  EXPECT_TRUE(one.causal);
  EXPECT_EQ(one.left, 2);
  EXPECT_EQ(one.align, Align::end);
}

TEST(Mask, CausalJoinsPrefixAndKeepsIt) {
  for (const Mask& both : {causal(Align::end) & prefix(4), prefix(4) & causal(Align::end)}) {
    EXPECT_FALSE(both.conflict);
    EXPECT_EQ(both.prefix_length, 4);
    EXPECT_EQ(both.align, Align::end);
  }
}

TEST(Mask, ContradictionsAreRemembered) {
  const std::int32_t a[] = {1, 2}, b[] = {1, 2};
  const ConstView lengths_a(a, {2}), lengths_b(b, {2});
  EXPECT_FALSE((lengths(lengths_a) & lengths(lengths_a)).conflict);
  EXPECT_FALSE((lengths(lengths_a) & lengths({}, lengths_b)).conflict);
  EXPECT_TRUE((lengths(lengths_a) & lengths(lengths_b)).conflict);
  EXPECT_TRUE((prefix(3) & prefix(4)).conflict);
  EXPECT_TRUE((prefix(3) & prefix(lengths_a)).conflict);
  EXPECT_TRUE((causal(Align::end) & window(1, 1, Align::start)).conflict);
  EXPECT_TRUE((documents(lengths_a, lengths_a) & documents(lengths_b, lengths_a)).conflict);
  EXPECT_TRUE(((prefix(3) & prefix(4)) & causal()).conflict);
}

TEST(Mask, ContradictionsAreNamed) {
  const std::int32_t ids[] = {1, 2};
  const ConstView one(ids, {1, 2}), other(ids, {2, 1}), third(ids, {2, 2});
  EXPECT_STREQ((prefix(3) & prefix(4) & causal()).conflict, "prefix");
  EXPECT_STREQ((causal(Align::end) & window(1, 1, Align::start)).conflict, "alignment");
  EXPECT_STREQ((window_and_first(1, 0, 2) & window(3, 0)).conflict, "window (first_tokens)");
  EXPECT_STREQ((documents(one, one) & documents(one, other)).conflict, "kv_documents");
  EXPECT_STREQ((lengths(one) & lengths(other)).conflict, "kv_lengths");
  // Two of a kind intersect, however often each is named; three are more than a call takes.
  for (const auto& make : {boolean, hidden}) {
    const Mask both = make(one) & make(other);
    EXPECT_EQ(both.conflict, nullptr);
    EXPECT_EQ((make(other) & both & make(one) & both).conflict, nullptr);
  }
  EXPECT_STREQ((boolean(one) & boolean(other) & boolean(third)).conflict,
               "boolean (more than two)");
  EXPECT_STREQ((hidden(third) & (hidden(one) & hidden(other))).conflict, "hidden (more than two)");
  EXPECT_EQ((hidden(one) & boolean(other)).conflict, nullptr);
}

// Sides without a window are refused at the door; a join does not lose them.
TEST(Mask, SidesWithoutAWindowComeThroughAJoin) {
  Mask stray;
  stray.left = 1;
  for (const Mask& joined : {stray & window(3, 0), window(3, 0) & stray, stray & causal()}) {
    EXPECT_FALSE(joined.windowed);
    EXPECT_EQ(joined.left, 1);
  }
}

// The farthest a window and a position can be given: sums of the two stay in 64 bits (which the
// undefined-behaviour sanitizer sees) and hide nothing.
TEST(Mask, TheWidestWindowsHideNothing) {
  constexpr std::int64_t kWidest = std::numeric_limits<std::int64_t>::max();
  const float ones[] = {1, 1, 1, 1};
  for (const std::int64_t start : {-(std::int64_t{1} << 48), std::int64_t{1} << 48}) {
    float out = 0;
    AttentionArguments call;
    call.q = {ones, {1, 1, 1, 1}};
    call.k = call.v = {ones, {1, 4, 1, 1}};
    call.out = {&out, {1, 1, 1, 1}};
    call.mask = window(kWidest, kWidest);
    call.q_start = {&start, {1}};
    attention(call);
    EXPECT_EQ(out, 1.0f) << start;
  }
}

TEST(Mask, ImpossibleSidesComeThroughAJoin) {
  Mask impossible;
  impossible.windowed = true;
  impossible.left = impossible.right = -7;
  for (const Mask& joined : {impossible & window(3, 0), window(3, 0) & impossible}) {
    EXPECT_EQ(joined.left, -7);
    EXPECT_EQ(joined.right, -7);
  }
}

TEST(Mask, WindowRefusesLessThanMinusOne) {
  EXPECT_THROW(window(-2, 0), InvalidArgument);
  EXPECT_THROW(window(0, -2), InvalidArgument);
}

// The kernels' interval of structurally visible keys is what the predicate says, over every small
// shape.
TEST(Mask, StructuralRangeAgreesWithThePredicate) {
  std::vector<Mask> masks = {Mask{}, causal(), prefix(2), prefix(5)};
  for (std::int64_t left : {-1, 0, 1, 3}) {
    for (std::int64_t right : {-1, 0, 2}) masks.push_back(window(left, right));
  }
  masks.push_back(causal() & window(1, -1));
  masks.push_back(prefix(3) & window(2, 1));
  masks.push_back(window(kHuge, kHuge) & causal());
  for (Mask mask : masks) {
    for (Align align : {Align::end, Align::start}) {
      mask.align = align;
      for (std::int64_t q_len = 1; q_len <= 6; ++q_len) {
        for (std::int64_t kv_len = 1; kv_len <= 6; ++kv_len) {
          const Call call(1, q_len, kv_len, mask);
          const kernels::AttendCall resolved = door::resolve(call.arguments);
          const kernels::Sequence s = kernels::sequence_of(resolved, 0);
          for (std::int64_t query = 0; query < q_len; ++query) {
            const kernels::KeyRange range =
                kernels::structural_range(resolved.mask, s, s.q_pos0 + query);
            for (std::int64_t key = 0; key < kv_len; ++key) {
              ASSERT_EQ(range.begin <= key && key < range.end,
                        kernels::reference::visible(resolved, s, 0, query, key))
                  << q_len << " x " << kv_len << " query " << query << " key " << key;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace polyhead::test
