// The encodings of the head page, decoded by docs/page.md and held against the rows they were made
// of.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "cli/page.hpp"
#include "cli/page_rows.hpp"
#include "polyhead/heads.h"
#include "support/difference.h"
#include "support/json.hpp"

namespace polyhead::cli {
namespace {

constexpr std::int64_t kHeads = 2, kTokens = 90, kDim = 8;

/// Full rows as they were, and both encodings of them.
struct Encoded : HeadRowVisitor {
  explicit Encoded(bool causal_mask) : causal(causal_mask) {
    sparse = true;
    full.assign(kHeads, FullRows(kTokens, kTokens, causal));
    few.assign(kHeads, SparseRows(kTokens, kTokens));
    exact.assign(kHeads, {});
  }
  bool wants_full(std::int64_t) const override { return true; }
  void visit(const HeadRowBlock& block) override {
    const auto head = static_cast<std::size_t>(block.head);
    if (block.full != nullptr) {
      full[head].take(block);
      for (std::int64_t r = 0; r < block.rows; ++r) {
        const float* const row = block.full + r * block.full_keys;
        exact[head].emplace_back(row, row + block.full_keys);
      }
    }
    if (block.offsets != nullptr) few[head].take(block);
  }

  bool causal;
  std::vector<FullRows> full;
  std::vector<SparseRows> few;
  std::vector<std::vector<std::vector<float>>> exact;
};

Encoded encode(bool causal) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  const auto fill = [&](std::int64_t heads, float size) {
    std::vector<float> values(static_cast<std::size_t>(kTokens * heads * kDim));
    for (float& x : values) x = size * normal(random);
    return values;
  };
  const std::vector<float> q = fill(kHeads, 2), k = fill(1, 1.5f), v = fill(1, 1);
  std::vector<float> out(q.size()), lse(static_cast<std::size_t>(kTokens * kHeads));
  AttentionArguments call;
  call.q = ConstView(q.data(), {std::int64_t{1}, kTokens, kHeads, kDim});
  call.k = ConstView(k.data(), {std::int64_t{1}, kTokens, std::int64_t{1}, kDim});
  call.v = ConstView(v.data(), {std::int64_t{1}, kTokens, std::int64_t{1}, kDim});
  call.out = View(out.data(), {std::int64_t{1}, kTokens, kHeads, kDim});
  call.lse = View(lse.data(), {std::int64_t{1}, kTokens, kHeads});
  if (causal) call.mask = polyhead::causal();
  attention(call);
  HeadStudy study;
  study.q_heads = kHeads, study.q_len = study.kv_len = kTokens;
  HeadStatistics statistics(study);
  Encoded encoded(causal);
  statistics.add(call, {}, &encoded);
  return encoded;
}

template <class T>
T read(const std::string& bytes, std::size_t at) {
  T value;
  EXPECT_LE(at + sizeof value, bytes.size());
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

double squared(double x) { return x * x; }

class PageRows : public testing::TestWithParam<bool> {};

TEST_P(PageRows, FullRowsAreWithinTheirStatedError) {
  const Encoded encoded = encode(GetParam());
  for (std::size_t h = 0; h < encoded.full.size(); ++h) {
    const std::string bytes = encoded.full[h].encoded();
    ASSERT_EQ(static_cast<std::int64_t>(bytes.size()),
              FullRows::bytes(kTokens, kTokens, GetParam()));
    std::size_t at = 4 * kTokens;
    test::LargestDifference worst, worst_sum;
    for (std::size_t i = 0; i < kTokens; ++i) {
      const double top = static_cast<double>(read<float>(bytes, 4 * i));
      const std::size_t cells = GetParam() ? i + 1 : kTokens;
      double sum = 0;
      for (std::size_t j = 0; j < cells; ++j) {
        const double w = top * squared(static_cast<unsigned char>(bytes[at++]) / 255.0);
        // Half a step of b where the square is steepest: 2 * 0.5 / 255.
        EXPECT_LE(std::abs(w - static_cast<double>(encoded.exact[h][i][j])), top / 255 * 1.001);
        worst.add(w, static_cast<double>(encoded.exact[h][i][j]));
        sum += w;
      }
      worst_sum.add(sum, 1);
    }
    EXPECT_EQ(at, bytes.size());
    EXPECT_NEAR(encoded.full[h].weight_error(), worst.value(), 1e-9);
    EXPECT_NEAR(encoded.full[h].row_sum_error(), worst_sum.value(), 1e-5);
    EXPECT_LT(worst_sum.value(), 0.03);
  }
}

TEST_P(PageRows, SparseRowsKeepWhatTheyPromiseAndTheRest) {
  const Encoded encoded = encode(GetParam());
  for (const Keep keep : {Keep{0.01, 4}, Keep{0.05, 4}, Keep{0.1, 1}, Keep{2.0, 1}}) {
    for (std::size_t h = 0; h < encoded.few.size(); ++h) {
      const std::string bytes = encoded.few[h].encoded(keep);
      ASSERT_EQ(static_cast<std::int64_t>(bytes.size()), encoded.few[h].bytes(keep));
      std::size_t total = 0, n = 0;
      for (std::size_t i = 0; i < kTokens; ++i) total += read<std::uint16_t>(bytes, 2 * i);
      const std::size_t keys = 4 * kTokens, roots = keys + 2 * total;
      ASSERT_EQ(bytes.size(), roots + 2 * total);
      for (std::size_t i = 0; i < kTokens; ++i) {
        std::map<std::size_t, double> row;
        for (std::size_t end = n + read<std::uint16_t>(bytes, 2 * i); n < end; ++n) {
          row[read<std::uint16_t>(bytes, keys + 2 * n)] =
              squared(read<std::uint16_t>(bytes, roots + 2 * n) / 65535.0);
        }
        const double rest = squared(read<std::uint16_t>(bytes, 2 * kTokens + 2 * i) / 65535.0);
        const std::vector<float>& exact = encoded.exact[h][i];
        double sum = rest;
        const std::size_t seen = GetParam() ? i + 1 : kTokens;
        EXPECT_GE(row.size(), std::min<std::size_t>(static_cast<std::size_t>(keep.least), seen));
        double smallest = 1;
        for (const auto& [key, w] : row) {
          EXPECT_NEAR(w, static_cast<double>(exact[key]), 1.6e-5);  // 2 * 0.5 / 65535
          smallest = std::min(smallest, w);
          sum += w;
        }
        for (std::size_t j = 0; j < seen; ++j) {
          const double w = static_cast<double>(exact[j]);
          if (row.contains(j)) continue;
          EXPECT_LT(w, keep.tau);
          EXPECT_LE(w, smallest + 1.6e-5);
        }
        EXPECT_NEAR(sum, 1, 1e-3);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Masks, PageRows, testing::Bool(),
                         [](const auto& test) { return test.param ? "causal" : "none"; });

PageData small_page() {
  PageData page;
  page.model = "a </title> model & more";
  page.tokens = {"</script><b>", "\xd9", "\x85", "\xe2\x80\xa8"};
  page.q_len = page.kv_len = 4;
  page.q_heads = page.kv_heads = 1;
  page.head_dim = page.value_dim = 2;
  page.thumb_q = page.thumb_k = page.map_q = page.map_k = 4;
  page.thumbs = std::string(16, '\7');
  page.layers.resize(1);
  page.layers[0].norms = std::string("\x00\x3c\x00\x40\x00\x42\x00\x44", 8);  // 1 2 3 4
  page.layers[0].heads.resize(1);
  page.layers[0].heads[0].known = true;
  page.layers[0].heads[0].measures.spread = std::nan("");
  page.layers[0].heads[0].form = PageHead::full;
  page.layers[0].heads[0].bytes = std::string(16 + 10, '\1');
  return page;
}

std::string between(const std::string& text, const std::string& from, const std::string& to) {
  const std::size_t start = text.find(from);
  EXPECT_NE(start, std::string::npos) << from;
  return text.substr(start + from.size(), text.find(to, start + from.size()) - start - from.size());
}

TEST(Page, IsOneFileWhoseTextCannotLeaveItsPlace) {
  const std::string text = page_text(small_page());
  EXPECT_EQ(text.find("@@"), std::string::npos);
  EXPECT_EQ(text.find("</script><b>"), std::string::npos);
  EXPECT_NE(text.find("<title>Polyhead: a &lt;/title&gt; model &amp; more</title>"),
            std::string::npos);
  EXPECT_NE(text.find("default-src 'none'"), std::string::npos);
  const auto meta = test::json_of(between(text, "id=\"meta\">", "</script>"));
  EXPECT_EQ(meta["tokens"][0], "</script><b>");
  EXPECT_EQ(meta["tokens"][1]["bytes"], "D9");
  EXPECT_EQ(meta["tokens"][2]["bytes"], "85");
  EXPECT_EQ(meta["tokens"][3], "\xe2\x80\xa8");
  EXPECT_TRUE(meta["measures"]["spread"][0].is_null());
  EXPECT_EQ(meta["forms"], "f");
  EXPECT_EQ(meta["sizes"], test::json_of("[[26]]"));
  EXPECT_EQ(between(text, "id=\"layer-0\">", "</script>"),
            "ADwAQABCAEQBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQ==");
}

TEST(Page, GivesHeadsThatWereNotAskedForAFormOfTheirOwn) {
  PageData page = small_page();
  page.layers[0].heads[0] = PageHead{};
  const auto meta = test::json_of(between(page_text(page), "id=\"meta\">", "</script>"));
  EXPECT_EQ(meta["forms"], "n");
  EXPECT_EQ(meta["roles"], test::json_of("[\"unknown\"]"));
}

TEST(Page, IsNamedByItsContent) {
  PageData page = small_page();
  const auto name = [](const PageData& data) {
    return test::json_of(between(page_text(data), "id=\"meta\">", "</script>"))["file"];
  };
  const auto first = name(page);
  EXPECT_EQ(name(page), first);
  page.tokens[0] = "else";
  EXPECT_NE(name(page), first);
}

}  // namespace
}  // namespace polyhead::cli
