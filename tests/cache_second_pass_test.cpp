// What looks inside, over every kind of cache stored in every way: exact weights, received mass,
// maps and row statistics against the definition over the values that the cache holds.
#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "attention/validate.hpp"
#include "base/codes.hpp"
#include "kernels/reference/attend.hpp"
#include "polyhead/heads.h"
#include "polyhead/inspect.h"
#include "support/bound.h"
#include "support/difference.h"
#include "support/effort.h"
#include "support/heads_reference.h"
#include "support/heads_text.h"
#include "support/held.h"
#include "support/plain.h"
#include "support/slice.h"

namespace polyhead::test {
namespace {

namespace reference = kernels::reference;

constexpr double kU = 0x1p-24;

/// Sequence `b` of one axis, of any type.
ConstView of_sequence(ConstView view, std::int64_t b) {
  if (!view.given() || view.layout.extents[0] == 1) return view;
  view.data =
      static_cast<const std::byte*>(view.data) + bytes_apart(view.type, b * view.layout.strides[0]);
  view.layout.extents[0] = 1;
  return view;
}

/// A view of sequence `b` alone: inspect takes no ragged batch.
KvView alone(KvView view, std::int64_t b) {
  std::vector<ConstView*> parts = {&view.page_table, &view.lengths, &view.oldest};
  if (!view.page_table.given()) {
    for (ConstView* part : {&view.k, &view.v, &view.v_scales}) parts.push_back(part);
    if (view.k_scales.layout.axes == 4) parts.push_back(&view.k_scales);
  }
  for (ConstView* part : parts) *part = of_sequence(*part, b);
  return view;
}

/// How a call's scores become weights.
struct Way {
  const char* name;
  bool narrow = false;  ///< a window of 12 beside the cache's mask
  bool sink = false;
  float soft_cap = 0.0f;
};
constexpr Way kWays[] = {
    {"plain"}, {"window", true}, {"sink", false, true}, {"cap", true, true, 1.5f}};
constexpr float kSinks[] = {0.5f, -1.0f, 2.0f, 0.0f, 1.0f, -0.5f};

/// The queries of one sequence, and all that may be asked of them.
class Row {
 public:
  Row(const Held& held, std::size_t b, const Way& way, ElementType q_type, std::uint64_t seed)
      : queries_(held.queries[b]), keys_(held.lengths[b]), heads_(3 * held.kv_heads) {
    Random random(seed);
    q_ = Tensor(q_type, {1, queries_, heads_, held.head_dim});
    q_.fill_normal(random);
    out_ = Tensor(f32, {1, queries_, heads_, held.value_dim});
    for (Tensor* row : {&lse_, &entropy_, &max_weight_}) *row = Tensor(f32, {1, queries_, heads_});
    max_key_ = Tensor(ElementType::int64, {1, queries_, heads_});
    weights_ = Tensor(f32, {1, heads_, queries_, keys_});
    received_ = Tensor(f32, {1, heads_, keys_});
    pooled_ = Tensor(f32, {1, heads_, kQueryBins, kKeyBins});
    call_.q = q_.const_view();
    call_.out = out_.view();
    call_.lse = lse_.view();
    call_.statistics = {entropy_.view(), max_weight_.view(), max_key_.view()};
    call_.mask = held.mask();
    if (way.narrow)
      call_.mask = call_.mask & window_and_first(11, -1, call_.mask.first_tokens, Align::end);
    if (way.sink) call_.modifiers.sink = ConstView(kSinks, {heads_});
    call_.modifiers.soft_cap = way.soft_cap;
  }

  void expect(const KvView& plain, const KvView& view) {
    AttentionArguments call = call_;
    call.kv = plain;
    const kernels::AttendCall exactly = door::resolve(call);
    const reference::Result exact = reference::attend(exactly, true);
    call.kv = view;
    const kernels::AttendCall resolved = door::resolve(call);
    const Seen seen(exactly, resolved.k);
    for (const Isa isa : available_isas()) {
      SCOPED_TRACE(isa_name(isa));
      for (Tensor* output :
           {&out_, &lse_, &entropy_, &max_weight_, &max_key_, &weights_, &received_, &pooled_})
        output->poison();
      const Options options{.isa = isa, .executor = &Executor::serial()};
      attention(call, options);
      inspect(call,
              {.weights = weights_.view(), .received = received_.view(), .pooled = pooled_.view()},
              options);
      const double each = documented_weight_bound(seen, rounding_of(resolved, isa));
      expect_weights(exactly, exact, each);
      expect_statistics(exact, each, seen);
      expect_heads(call, exact, each, options);
    }
  }

 private:
  static constexpr std::int64_t kQueryBins = 2, kKeyBins = 5;

  /// Sums of `terms` weights err by that many roundings more.
  void expect_weights(const kernels::AttendCall& call, const reference::Result& exact,
                      double each) {
    const auto sums = [&](std::int64_t terms) { return each + static_cast<double>(terms) * kU; };
    expect_weights_near("weight", weights_, exact.weights, each);
    expect_weights_near("received", received_, reference::received(call, exact.weights),
                        sums(queries_));
    expect_weights_near("pooled", pooled_,
                        reference::pooled(call, exact.weights, kQueryBins, kKeyBins),
                        sums(queries_ * keys_));
  }

  /// -sum w ln w moves by each (|ln w| + 1) w for every weight. It is log(total) less a mean score:
  /// numbers of at most ln n + 1 and the range of scores, whose sums have n roundings.
  void expect_statistics(const reference::Result& exact, double each, const Seen& seen) {
    const double n = static_cast<double>(keys_), range = std::min(2 * seen.score(), 87.0);
    const double rounding = (n + 8) * kU * (std::log(n) + 1 + range);
    std::size_t row = 0;
    for_each_index(entropy_.extents(), [&](const Index& at) {
      const double entropy = exact.entropy[row], most = exact.max_weight[row++];
      ASSERT_LE(std::abs(entropy_.get(at) - entropy), each * (entropy + 1) + rounding);
      ASSERT_LE(std::abs(max_weight_.get(at) - most), each * most);
      const std::int64_t key = max_key_.get_int(at);
      ASSERT_TRUE(key >= 0 && key < keys_) << key;
      const auto weight = static_cast<std::size_t>((at[2] * queries_ + at[1]) * keys_ + key);
      ASSERT_GE(exact.weights[weight], most * (1 - 2 * each)) << "the largest is another key's";
    });
  }

  /// Measures follow from weights by their definitions; received mass is the weights' sum.
  void expect_heads(const AttentionArguments& call, const reference::Result& exact, double each,
                    const Options& options) {
    const Text text(keys_, 7);
    HeadStudy study;
    study.q_heads = heads_;
    study.q_len = queries_;
    study.kv_len = keys_;
    study.tokens = text.tokens;
    study.delimiters = text.delimiters;
    study.cross = !call.mask.causal;
    HeadStatistics statistics(study);
    statistics.add(call, options);
    const std::vector<double> received = reference::received(door::resolve(call), exact.weights);
    for (std::int64_t head = 0; head < heads_; ++head) {
      const double* const weights = exact.weights.data() + head * queries_ * keys_;
      expect_measures(statistics.measures(head),
                      reference_measures(weights, keys_, queries_, keys_ - queries_, text.tokens,
                                         text.delimiters, study.cross),
                      each + static_cast<double>(keys_) * kU, static_cast<double>(keys_),
                      "head " + std::to_string(head));
      const auto found = statistics.received(head);
      for (std::int64_t key = 0; key < keys_; ++key) {
        const double expected = received[static_cast<std::size_t>(head * keys_ + key)];
        ASSERT_LE(std::abs(found[static_cast<std::size_t>(key)] - expected),
                  (each + static_cast<double>(queries_) * kU) * expected + FLT_MIN);
      }
    }
  }

  std::int64_t queries_, keys_, heads_;
  Tensor q_, out_, lse_, entropy_, max_weight_, max_key_, weights_, received_, pooled_;
  AttentionArguments call_;
};

TEST(CacheSecondPass, WeightsSumsAndStatisticsOfEveryKindAgainstTheReference) {
  std::uint64_t count = 0;
  for (int kind = 0; kind < kCacheKinds; ++kind) {
    for (const StoredForm& form : kStoredForms) {
      if (!holds(static_cast<CacheKind>(kind), form)) continue;
      for (const bool decoding : {false, true}) {
        if (++count % 4 != 0 && effort() == Effort::smoke) continue;
        const auto held = Held::make(static_cast<CacheKind>(kind), form, decoding, count);
        const Plain plain(*held);
        for (const Way& way : kWays) {
          // All ways in turn, and all of them where everything is wanted.
          if (effort() != Effort::full && &way != &kWays[count % std::size(kWays)]) continue;
          const bool codes = base::is_code(form.type);
          for (const ElementType q_type : {f32, codes ? bf16 : form.type}) {
            for (std::size_t b = 0; b < held->lengths.size(); ++b) {
              if (held->queries[b] == 0) continue;
              SCOPED_TRACE(std::string(name_of(static_cast<CacheKind>(kind))) + " " +
                           name_of(form) + " " + way.name + " under " + element_name(q_type) +
                           ", sequence " + std::to_string(b));
              const auto sequence = static_cast<std::int64_t>(b);
              Row row(*held, b, way, q_type, count);
              row.expect(alone(plain.view(), sequence), alone(held->view(), sequence));
              if (::testing::Test::HasFatalFailure()) return;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace polyhead::test
