// Head statistics against the definition in double precision, for every mask, modifier and type;
// chunks and threads; rows, maps and received mass against the weights of the second pass.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "attention/validate.hpp"
#include "kernels/reference/attend.hpp"
#include "polyhead/heads.h"
#include "polyhead/inspect.h"
#include "support/effort.h"
#include "support/heads_reference.h"
#include "support/heads_text.h"
#include "support/odd_floats.h"
#include "support/problem.h"
#include "support/refusal.h"

namespace polyhead::test {
namespace {

namespace reference = kernels::reference;

/// Every mask, and every modifier but dropout, once; types and shapes in turn.
std::vector<Case> cases() {
  std::vector<Case> list;
  for (int i = 0; i < kMaskKinds + kModifierKinds; ++i) {
    const std::size_t n = static_cast<std::size_t>(i);
    Case c;
    constexpr std::int64_t kQLens[] = {130, 1, 100, 60}, kKvLens[] = {130, 64, 77, 60};
    c.q_len = kQLens[n % 4];
    c.kv_len = kKvLens[n % 4];
    c.q_heads = n % 2 == 0 ? 4 : 3;
    c.kv_heads = n % 2 == 0 ? 2 : 1;
    c.head_dim = n % 4 == 0 ? 64 : 21;
    c.value_dim = 4;
    c.types = kTypes[n % kTypes.size()];
    c.types.out = f32;
    c.mask = i < kMaskKinds ? static_cast<MaskKind>(i) : MaskKind::causal_end;
    c.modifier = i < kMaskKinds ? ModifierKind::none : static_cast<ModifierKind>(i - kMaskKinds);
    if (c.modifier == ModifierKind::dropout) c.modifier = ModifierKind::sink;
    if (c.modifier == ModifierKind::everything) c.modifier = ModifierKind::bias_hides;
    c.layout = static_cast<LayoutKind>(n % kLayoutKinds);
    c.seed = 350 + n;
    c.q_deviation = n % 3 == 0 ? 3.0 : 1.0;
    if (effort() != Effort::smoke || i % 4 == 0) list.push_back(c);
  }
  return list;
}

/// The relative error of a weight: that of exp(score - lse), whose absolute error carries at most
/// head_dim roundings of scores up to 12 on either pass (order 1 to 10), and of the LSE kv_len.
double relative_bound(const Case& c) {
  return 0x1p-23 * c.q_deviation *
         (8.0 * static_cast<double>(c.head_dim) + static_cast<double>(c.kv_len) + 64);
}

TEST(Heads, AgreeWithTheDefinition) {
  for (const Case& c : cases()) {
    for (const bool cross : {false, true}) {
      if (cross && c.seed % 3 != 0) continue;
      Problem p(c);
      const kernels::AttendCall call = door::resolve(p.arguments());
      const std::vector<double> weights = reference::attend(call, true).weights;
      const Text text(c.kv_len, c.seed);
      const kernels::Sequence sequence = kernels::sequence_of(call, 0);
      for (Isa isa : isas()) {
        p.run(isa);
        HeadStudy study = study_of(c, text);
        study.cross = cross;
        HeadStatistics heads(study);
        heads.add(p.arguments(), {.isa = isa});
        for (std::int64_t head = 0; head < c.q_heads; ++head) {
          const std::string what =
              std::string(isa_name(isa)) + (cross ? " cross: " : ": ") + describe(c);
          const double* of_head =
              weights.data() + static_cast<std::size_t>(head * c.q_len * c.kv_len);
          expect_measures(heads.measures(head),
                          reference_measures(of_head, c.kv_len, sequence.q_len, sequence.q_pos0,
                                             text.tokens, text.delimiters, cross),
                          relative_bound(c), static_cast<double>(c.kv_len + c.q_len), what);
        }
      }
    }
  }
}

/// Collects what a visitor gets.
class Collector : public HeadRowVisitor {
 public:
  Collector(std::int64_t heads, std::int64_t q_len, std::int64_t kv_len)
      : q_len_(q_len), kv_len_(kv_len), full_(static_cast<std::size_t>(heads * q_len * kv_len)) {
    entries_.resize(static_cast<std::size_t>(heads * q_len));
    rest_.resize(entries_.size());
    next_.resize(static_cast<std::size_t>(heads));
    sparse = true;
  }
  bool wants_full(std::int64_t head) const override { return head != 1; }
  void visit(const HeadRowBlock& block) override {
    const std::lock_guard guard(lock_);
    EXPECT_EQ(next_[static_cast<std::size_t>(block.head)], block.first_query);
    next_[static_cast<std::size_t>(block.head)] += block.rows;
    EXPECT_EQ(block.full != nullptr, wants_full(block.head));
    for (std::int64_t r = 0; r < block.rows; ++r) {
      const auto row = static_cast<std::size_t>(block.head * q_len_ + block.first_query + r);
      for (std::int64_t e = block.offsets[r]; e < block.offsets[r + 1]; ++e)
        entries_[row].emplace_back(block.keys[e], block.weights[e]);
      rest_[row] = block.rest[r];
      for (std::int64_t key = 0; block.full && key < block.full_keys; ++key) {
        full_[row * static_cast<std::size_t>(kv_len_) + static_cast<std::size_t>(key)] =
            block.full[r * block.full_keys + key];
      }
    }
  }
  std::int64_t q_len_, kv_len_;
  std::mutex lock_;
  std::vector<float> full_, rest_;
  std::vector<std::vector<std::pair<std::int32_t, float>>> entries_;
  std::vector<std::int64_t> next_;
};

/// The entries a row must have, from all of its weights.
std::vector<std::pair<std::int32_t, float>> expected_entries(const float* row, std::int64_t keys,
                                                             float threshold, int least) {
  std::vector<std::pair<std::int32_t, float>> all;
  for (std::int64_t key = 0; key < keys; ++key) {
    if (row[key] > 0) all.emplace_back(static_cast<std::int32_t>(key), row[key]);
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::size_t count = 0;
  while (count < all.size() &&
         (all[count].second >= threshold || count < static_cast<std::size_t>(least)))
    ++count;
  all.resize(count);
  std::sort(all.begin(), all.end());
  return all;
}

// Rows, largest weights, received mass and maxima are made of the very weights inspect() gives.
TEST(Heads, RowsAndMapsAreTheWeights) {
  for (const Case& c : cases()) {
    const Text text(c.kv_len, c.seed);
    for (Isa isa : isas()) {
      Problem p(c);
      p.run(isa);
      Tensor weights(f32, {1, c.q_heads, c.q_len, c.kv_len});
      InspectArguments wanted;
      wanted.weights = weights.view();
      inspect(p.arguments(), wanted, {.isa = isa});
      HeadStatistics heads(study_of(c, text));
      Collector rows(c.q_heads, c.q_len, c.kv_len);
      rows.threshold = c.seed % 2 == 0 ? 0.01f : 2.0f;
      rows.least = static_cast<int>(c.seed % 5);
      heads.add(p.arguments(), {.isa = isa}, &rows);
      const std::string what = std::string(isa_name(isa)) + ": " + describe(c);
      const std::int64_t valid = kernels::sequence_of(door::resolve(p.arguments()), 0).q_len;
      const auto* all = reinterpret_cast<const float*>(weights.bytes().data());
      for (std::int64_t head = 0; head < c.q_heads; ++head) {
        const HeadRowStatistics kept = heads.rows(head);
        std::vector<double> received(static_cast<std::size_t>(c.kv_len));
        const std::span<const float> maxima = heads.map(head, 0), sums = heads.map(head, 1);
        const HeadMapSpec sum_spec = heads.map_spec(1), most_spec = heads.map_spec(0);
        std::vector<float> expected_maxima(maxima.size());
        std::vector<double> expected_sums(sums.size());
        for (std::int64_t query = 0; query < c.q_len; ++query) {
          const float* row = all + (head * c.q_len + query) * c.kv_len;
          const auto at = static_cast<std::size_t>(head * c.q_len + query);
          const auto q = static_cast<std::size_t>(query);
          if (query >= valid) {
            ASSERT_EQ(kept.largest_key[q], -1) << what;
            continue;
          }
          if (head != 1) {
            ASSERT_EQ(0,
                      std::memcmp(row, rows.full_.data() + at * static_cast<std::size_t>(c.kv_len),
                                  static_cast<std::size_t>(c.kv_len) * 4))
                << what << " head " << head << " query " << query;
          }
          ASSERT_EQ(rows.entries_[at], expected_entries(row, c.kv_len, rows.threshold, rows.least))
              << what << " head " << head << " query " << query;
          const float* top = std::max_element(row, row + c.kv_len);
          ASSERT_EQ(kept.largest[q], *top) << what;
          ASSERT_EQ(kept.largest_key[q], *top > 0 ? top - row : -1) << what;
          ASSERT_EQ(kept.first[q], row[0]) << what;
          double total = 0, listed = 0;
          for (std::int64_t key = 0; key < c.kv_len; ++key) {
            total += static_cast<double>(row[key]);
            received[static_cast<std::size_t>(key)] += static_cast<double>(row[key]);
            const auto bin = [&](const HeadMapSpec& map) {
              return static_cast<std::size_t>(((query + 1) * map.q_bins - 1) / c.q_len *
                                                  map.kv_bins +
                                              ((key + 1) * map.kv_bins - 1) / c.kv_len);
            };
            expected_maxima[bin(most_spec)] = std::max(expected_maxima[bin(most_spec)], row[key]);
            expected_sums[bin(sum_spec)] += static_cast<double>(row[key]);
          }
          for (const auto& entry : rows.entries_[at]) listed += static_cast<double>(entry.second);
          // Two float32 chains over the keys.
          ASSERT_NEAR(static_cast<double>(rows.rest_[at]), total - listed,
                      0x1p-23 * static_cast<double>(c.kv_len))
              << what;
        }
        for (std::size_t i = 0; i < maxima.size(); ++i)
          ASSERT_EQ(maxima[i], expected_maxima[i]) << what;
        const double chain = 0x1p-23 * static_cast<double>(c.q_len * c.q_len);
        for (std::size_t i = 0; i < sums.size(); ++i)
          ASSERT_NEAR(static_cast<double>(sums[i]), expected_sums[i], chain) << what;
        const std::span<const float> masses = heads.received(head);
        for (std::size_t i = 0; i < masses.size(); ++i)
          ASSERT_NEAR(static_cast<double>(masses[i]), received[i], chain) << what;
      }
    }
  }
}

/// Everything a HeadStatistics knows, as bytes.
std::vector<std::byte> bytes_of(const HeadStatistics& heads) {
  std::vector<std::byte> all;
  const auto add = [&](const auto* from, std::size_t count) {
    const auto* bytes = reinterpret_cast<const std::byte*>(from);
    all.insert(all.end(), bytes, bytes + count * sizeof *from);
  };
  for (std::int64_t head = 0; head < heads.heads(); ++head) {
    const HeadMeasures m = heads.measures(head);
    const double plain[] = {m.mean_entropy, m.first, m.spread, m.mean_distance, m.mean_largest};
    add(plain, 5);
    for (const TargetMass& target : m.targets) {
      const double masses[] = {target.mean, target.mean_chance, target.share, target.share_chance};
      add(masses, 4);
    }
    const HeadRowStatistics rows = heads.rows(head);
    add(rows.entropy.data(), rows.entropy.size());
    add(rows.first.data(), rows.first.size());
    add(rows.largest.data(), rows.largest.size());
    add(rows.largest_key.data(), rows.largest_key.size());
    add(heads.received(head).data(), heads.received(head).size());
    for (int m2 = 0; m2 < 2; ++m2) add(heads.map(head, m2).data(), heads.map(head, m2).size());
  }
  return all;
}

/// A causal self-attention run in chunks with the given ends.
std::vector<std::byte> run_in_chunks(const Case& c, Problem& p, const Text& text,
                                     const std::vector<std::int64_t>& ends, bool causal_run,
                                     const Options& options) {
  HeadStatistics heads(study_of(c, text));
  std::int64_t first = 0;
  for (const std::int64_t end : ends) {
    AttentionArguments call = p.arguments();
    const auto rows_of = [&](auto view, std::int64_t from, std::int64_t count) {
      auto part = view;
      part.data = static_cast<std::byte*>(const_cast<void*>(part.data)) +
                  from * part.layout.strides[1] * element_bytes(part.type);
      part.layout.extents[1] = count;
      return part;
    };
    call.q = rows_of(call.q, first, end - first);
    call.out = rows_of(call.out, first, end - first);
    call.lse = rows_of(call.lse, first, end - first);
    if (causal_run) {
      call.k = rows_of(call.k, 0, end);
      call.v = rows_of(call.v, 0, end);
      call.mask.align = Align::end;
    } else {
      call.q_start = {&first, {1}};
    }
    attention(call, options);
    heads.add(call, options);
    first = end;
  }
  EXPECT_EQ(heads.rows_seen(), c.q_len);
  return bytes_of(heads);
}

TEST(Heads, SameBitsForAnyChunksAndThreads) {
  for (Isa isa : isas()) {
    for (const bool causal_run : {true, false}) {
      for (const Types& types : {kTypes[0], kTypes[1]}) {
        Case c;
        c.q_len = c.kv_len = 300;
        c.q_heads = 3;
        c.head_dim = 24;
        c.types = types;
        c.mask = causal_run ? MaskKind::causal_end : MaskKind::none;
        Problem p(c);
        const Text text(c.kv_len);
        const Options serial{.isa = isa, .executor = &Executor::serial()};
        const auto whole = run_in_chunks(c, p, text, {300}, causal_run, serial);
        const std::vector<std::vector<std::int64_t>> cuts = {
            {1, 2, 50, 300}, {48, 96, 300}, {64, 127, 128, 299, 300}, {97, 300}};
        for (std::size_t i = 0; i < cuts.size(); ++i) {
          ThreadPool pool(static_cast<int>(i) + 1);
          const Options options{.isa = isa, .executor = &pool};
          const auto chunked = run_in_chunks(c, p, text, cuts[i], causal_run, options);
          const auto place = std::mismatch(whole.begin(), whole.end(), chunked.begin());
          EXPECT_TRUE(place.first == whole.end())
              << isa_name(isa) << " cut " << i << (causal_run ? " causal" : " whole")
              << " differs at byte " << place.first - whole.begin() << " of " << whole.size();
        }
      }
    }
  }
}

TEST(Heads, ManyMoreThreadsThanHeads) {
  Case c;
  c.q_len = c.kv_len = 8;
  c.q_heads = 3;
  c.mask = MaskKind::causal_end;
  Problem p(c);
  const Text text(8);
  const Options many{.threads = ThreadPool::kMost};
  EXPECT_EQ(run_in_chunks(c, p, text, {8}, true, many),
            run_in_chunks(c, p, text, {8}, true, {.threads = 1}));
}

// Many copies of one token, and a row over several splits of the keys.
TEST(Heads, LongTextsWithFrequentTokens) {
  Case c;
  c.q_len = 70;
  c.kv_len = 2100;
  c.q_heads = 2;
  c.head_dim = 16;
  c.mask = MaskKind::causal_end;
  Problem p(c);
  const Text text(c.kv_len, 11, 3);
  const std::vector<double> weights = reference::attend(door::resolve(p.arguments()), true).weights;
  for (Isa isa : isas()) {
    p.run(isa);
    HeadStatistics heads(study_of(c, text));
    heads.add(p.arguments(), {.isa = isa});
    for (std::int64_t head = 0; head < c.q_heads; ++head) {
      expect_measures(
          heads.measures(head),
          reference_measures(weights.data() + head * c.q_len * c.kv_len, c.kv_len, c.q_len,
                             c.kv_len - c.q_len, text.tokens, text.delimiters, false),
          relative_bound(c), static_cast<double>(c.kv_len), isa_name(isa));
    }
  }
}

// Key 0 is hidden then, and its weight would be a number.
TEST(Heads, ARowThatSeesANaNHasNoWeightOnAHiddenFirstKey) {
  constexpr std::int64_t kDim = 8;
  std::vector<float> q(kDim, 0.5f), k(3 * kDim, 0.5f), out(kDim), lse(1);
  k[kDim] = NAN;
  const std::uint8_t visible[] = {0, 1, 1};
  AttentionArguments call;
  call.q = {q.data(), {std::int64_t{1}, std::int64_t{1}, std::int64_t{1}, kDim}};
  call.k = call.v = {k.data(), {std::int64_t{1}, std::int64_t{3}, std::int64_t{1}, kDim}};
  call.out = {out.data(), {std::int64_t{1}, std::int64_t{1}, std::int64_t{1}, kDim}};
  call.lse = {lse.data(), {1, 1, 1}};
  call.mask = boolean({visible, ElementType::boolean, {1, 1, 1, 3}});
  for (Isa isa : isas()) {
    attention(call, {.isa = isa});
    HeadStatistics statistics({.q_heads = 1, .q_len = 1, .kv_len = 3});
    statistics.add(call, {.isa = isa});
    EXPECT_TRUE(std::isnan(statistics.rows(0).first[0])) << isa_name(isa);
    EXPECT_TRUE(std::isnan(statistics.rows(0).largest[0])) << isa_name(isa);
  }
}

// x86 makes negative NaNs, and a hidden weight is told by its sign.
TEST(Heads, ANaNOfEitherSignIsSeen) {
  constexpr std::int64_t kTokens = 6, kDim = 8;
  for (const float sign : {1.0f, -1.0f}) {
    std::vector<float> q(kTokens * kDim, 0.5f), k(q), lse(kTokens);
    q[3 * kDim] = std::copysign(NAN, sign);
    AttentionArguments call;
    call.q = {q.data(), {std::int64_t{1}, kTokens, std::int64_t{1}, kDim}};
    call.k = call.v = {k.data(), {std::int64_t{1}, kTokens, std::int64_t{1}, kDim}};
    std::vector<float> out(q.size());
    call.out = {out.data(), {std::int64_t{1}, kTokens, std::int64_t{1}, kDim}};
    call.lse = {lse.data(), {std::int64_t{1}, kTokens, std::int64_t{1}}};
    call.mask = causal();
    for (Isa isa : isas()) {
      attention(call, {.isa = isa});
      HeadStudy study;
      study.q_heads = 1;
      study.q_len = study.kv_len = kTokens;
      study.maps = {{kTokens, kTokens, HeadMapSpec::maximum}, {1, 2, HeadMapSpec::maximum}};
      HeadStatistics statistics(study);
      statistics.add(call, {.isa = isa});
      const HeadMeasures measures = statistics.measures(0);
      EXPECT_TRUE(std::isnan(measures.first)) << isa_name(isa) << ' ' << sign;
      EXPECT_TRUE(std::isnan(measures.mean_largest)) << isa_name(isa) << ' ' << sign;
      EXPECT_TRUE(std::isnan(measures.spread)) << isa_name(isa) << ' ' << sign;
      EXPECT_EQ(measures.role, HeadRole::mixed) << isa_name(isa) << ' ' << sign;
      for (std::int64_t row = 0; row < kTokens; ++row) {
        const auto at = static_cast<std::size_t>(row);
        EXPECT_EQ(std::isnan(statistics.rows(0).largest[at]), row == 3) << isa_name(isa);
        for (std::int64_t key = 0; key < kTokens; ++key) {
          const float most = statistics.map(0, 0)[static_cast<std::size_t>(row * kTokens + key)];
          EXPECT_EQ(std::isnan(most), row == 3 && key <= 3) << isa_name(isa) << ' ' << key;
        }
      }
      for (const float most : statistics.map(0, 1)) EXPECT_TRUE(std::isnan(most));
      for (const HeadTarget target : {HeadTarget::previous, HeadTarget::self, HeadTarget::local})
        EXPECT_TRUE(std::isnan(measures[target].mean)) << head_target_name(target) << ' ' << sign;
    }
  }
}

TEST(Heads, MeasuresAndSlopesOfCallersThatRoundOtherwiseOrTrap) {
  Case c;
  c.q_len = c.kv_len = 30;
  c.mask = MaskKind::causal_end;
  c.types.out = f32;
  Problem p(c);
  p.run(Isa::portable);
  HeadStatistics heads({.q_heads = c.q_heads, .q_len = c.q_len, .kv_len = c.kv_len});
  const HeadMeasures nothing = heads.measures(0);
  heads.add(p.arguments(), {.isa = Isa::portable});
  const HeadMeasures measures = heads.measures(0);
  std::vector<float> slopes, odd_slopes;
  for (int head = 0; head < 27; ++head) slopes.push_back(alibi_slope(head, 27));
  HeadMeasures odd_nothing, odd_measures;
  {
    HeadStatistics others({.q_heads = c.q_heads, .q_len = c.q_len, .kv_len = c.kv_len});
    const OddFloats odd;
    odd_nothing = others.measures(0);
    others.add(p.arguments(), {.isa = Isa::portable});
    odd_measures = others.measures(0);
    for (int head = 0; head < 27; ++head) odd_slopes.push_back(alibi_slope(head, 27));
  }
  EXPECT_EQ(slopes, odd_slopes);
  EXPECT_TRUE(std::isnan(nothing.mean_entropy) && std::isnan(odd_nothing.mean_entropy));
  const auto numbers = [](const HeadMeasures& m) {
    std::vector<double> list{m.mean_entropy, m.first, m.spread, m.mean_distance, m.mean_largest};
    for (const TargetMass& target : m.targets) {
      for (const double number : {target.mean, target.share}) {
        if (!std::isnan(number)) list.push_back(number);
      }
    }
    return list;
  };
  EXPECT_EQ(numbers(measures), numbers(odd_measures));
}

TEST(Heads, RefusesWhatContradictsItself) {
  Case c;
  c.q_len = c.kv_len = 8;
  c.mask = MaskKind::causal_end;
  Problem p(c);
  p.run(Isa::automatic);
  const Text text(8), longer(9);
  const auto with = [&](auto change) {
    HeadStudy study = study_of(c, text);
    change(study);
    return study;
  };
  EXPECT_EQ(
      refusal_of([&] { HeadStatistics(with([&](HeadStudy& s) { s.tokens = longer.tokens; })); }),
      "HeadStatistics: tokens (9) are not kv_len (8)");
  EXPECT_EQ(refusal_of([&] { HeadStatistics(with([&](HeadStudy& s) { s.maps[0].q_bins = 0; })); }),
            "HeadStatistics: maps: bins (0, 5) are not positive");
  EXPECT_EQ(refusal_of([&] {
              HeadStatistics(
                  with([&](HeadStudy& s) { s.maps[0].pool = static_cast<HeadMapSpec::Pool>(9); }));
            }),
            "HeadStatistics: maps: pool (9) is none, expected maximum or sum");
  constexpr std::int64_t kMany = 1 << 24;  // whose square times 2^16 is 2^64
  HeadStudy huge;
  huge.q_heads = 1 << 16;
  huge.q_len = huge.kv_len = kMany;
  huge.rows = huge.received = false;
  huge.maps = {{kMany, kMany}};
  EXPECT_EQ(refusal_of([&] { const HeadStatistics none(huge); }),
            "HeadStatistics: maps: q_heads (65536) times bins (16777216, 16777216) is more than "
            "2^48, which no memory holds");
  HeadStatistics heads(study_of(c, text));
  AttentionArguments call = p.arguments();
  call.lse = {};
  EXPECT_EQ(refusal_of([&] { heads.add(call); }),
            "HeadStatistics: lse is not given, expected the one attention() wrote");
  call = p.arguments();
  call.modifiers.dropout.probability = 0.5f;
  EXPECT_EQ(refusal_of([&] { heads.add(call); }),
            "HeadStatistics: modifiers.dropout (0.5) is not 0");
  heads.add(p.arguments());
  EXPECT_EQ(refusal_of([&] { heads.add(p.arguments()); }),
            "HeadStatistics: q_len (8) after 8 rows reaches beyond the study's (8)");
  EXPECT_EQ(refusal_of([&] { heads.measures(1); }),
            "HeadStatistics: head (1) is not within 0 .. 0");
  class Sparse : public HeadRowVisitor {
   public:
    void visit(const HeadRowBlock&) override {}
  } visitor;
  visitor.sparse = true;
  visitor.threshold = 0.0f;
  HeadStatistics other(study_of(c, text));
  EXPECT_EQ(refusal_of([&] { other.add(p.arguments(), {}, &visitor); }),
            "HeadStatistics: visitor.threshold (0) is under 0.0001");
}

}  // namespace
}  // namespace polyhead::test
