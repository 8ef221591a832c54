// Every kind of cache, stored in every way, under every mask and group ratio, against the
// definition over the values that the cache holds; slots no query sees are NaN.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "attention/validate.hpp"
#include "base/codes.hpp"
#include "kernels/reference/attend.hpp"
#include "polyhead/tree_mask.h"
#include "support/bound.h"
#include "support/difference.h"
#include "support/effort.h"
#include "support/held.h"
#include "support/plain.h"
#include "support/yardstick.h"

namespace polyhead::test {
namespace {

namespace reference = kernels::reference;

enum class GridMask { own, window, prefix, documents, bytes, bits, hidden, tree };
constexpr int kGridMasks = static_cast<int>(GridMask::tree) + 1;
constexpr const char* kMaskNames[] = {"own",   "window", "prefix", "documents",
                                      "bytes", "bits",   "hidden", "tree"};

// As many as share no factor with the 32 pairs of mask and group, so that a pair gets them in
// turns.
enum class GridModifier {
  none,
  alibi,
  soft_cap,
  sink,
  bias,
  dropout,
  custom,
  custom_hides,
  everything
};
constexpr int kGridModifiers = static_cast<int>(GridModifier::everything) + 1;
constexpr const char* kModifierNames[] = {"none",    "alibi",  "soft_cap",     "sink",      "bias",
                                          "dropout", "custom", "custom_hides", "everything"};

/// Adds a number that each part of a place has its share in.
struct Bonus : ScoreModifier<Bonus> {
  static constexpr float kMost = 0.5f + 2 * 0.25f + 4 * 0.0625f;
  float operator()(float score, ScoreAt at) const {
    const float distance = std::abs(static_cast<float>(at.q_pos - at.kv_pos));
    const float heads = 0.25f * static_cast<float>(at.head % 3);
    const float queries = 0.0625f * static_cast<float>((2 * at.batch + at.query) % 5);
    return score + (0.5f / (1.0f + distance) + heads + queries);
  }
};

/// Hides every fifth pair by its place.
struct HideSome : ScoreModifier<HideSome> {
  float operator()(float score, ScoreAt at) const {
    const std::int64_t place = at.q_pos * 3 + at.kv_pos + at.head + 2 * at.batch + at.query;
    return place % 5 == 0 ? -std::numeric_limits<float>::infinity() : score;
  }
};

constexpr std::int64_t kGroups[] = {1, 3, 4, 8};

/// One call over a cache, with its mask and modifiers.
class GridCall {
 public:
  GridCall(const Held& held, GridMask mask, GridModifier modifier, std::int64_t group,
           ElementType q_type, std::uint64_t seed)
      : held_(held), random_(seed), q_heads_(group * held.kv_heads) {
    const std::int64_t batch = held.batch();
    offsets_.push_back(0);
    for (const std::int64_t count : held.queries) offsets_.push_back(offsets_.back() + count);
    Index rows = {batch, held.most_queries()};
    if (held.ragged) rows = {offsets_.back()};
    const auto made = [&](ElementType type, const Index& more) {
      return Tensor(type, joined(rows, more));
    };
    q_ = made(q_type, {q_heads_, held.head_dim});
    out = made(f32, {q_heads_, held.value_dim});
    lse = made(f32, {q_heads_});
    q_.fill_normal(random_);
    call_.q = q_.const_view();
    call_.out = out.view();
    call_.lse = lse.view();
    call_.mask = held.mask();
    if (held.ragged) {
      call_.q_offsets = ConstView(offsets_.data(), {batch + 1});
    } else {
      call_.mask.q_lengths = ConstView(held.queries.data(), {batch});
    }
    add(mask);
    add(modifier);
  }

  AttentionArguments over(const KvView& view) const {
    AttentionArguments call = call_;
    call.kv = view;
    return call;
  }
  std::int64_t q_tokens() const { return offsets_.back(); }

  Tensor out, lse;

 private:
  Tensor& keep(ElementType type, Index extents) {
    kept_.emplace_back(type, std::move(extents));
    return kept_.back();
  }
  std::int64_t position(std::int64_t b, std::int64_t query) const {
    const auto at = static_cast<std::size_t>(b);
    return held_.lengths[at] - held_.queries[at] + query;
  }

  void add(GridMask kind) {
    Mask& mask = call_.mask;
    const std::int64_t batch = held_.batch(), most = held_.most_queries(), keys = held_.longest();
    switch (kind) {
      case GridMask::own:
        return;
      case GridMask::window:
        mask = mask & window_and_first(11, -1, mask.first_tokens, Align::end);
        return;
      case GridMask::prefix: {  // all but a sequence's last token
        Tensor& ends = keep(ElementType::int64, {batch});
        ends.fill([&](const Index& at) {
          const std::int64_t length = held_.lengths[static_cast<std::size_t>(at[0])];
          return static_cast<double>(std::max<std::int64_t>(0, length - 1));
        });
        mask = mask & prefix(ends.const_view(), Align::end);
        return;
      }
      case GridMask::documents:
        mask = mask & documents(query_documents(), key_documents());
        return;
      case GridMask::bytes: {
        Tensor& table = keep(ElementType::boolean, {batch, q_heads_, most, keys});
        table.fill([&](const Index&) { return random_.chance(0.7) ? 1.0 : 0.0; });
        mask = mask & boolean(table.const_view());
        return;
      }
      case GridMask::bits: {
        const std::int64_t row = (keys + 7) / 8;  // bytes
        Tensor& table = keep(ElementType::boolean, {batch, most, row});
        for (std::byte& byte : table.bytes())
          byte = static_cast<std::byte>(random_.next() | random_.next());
        detail::Layout layout{{batch, std::int64_t{1}, most, keys},
                              {row * 8 * most, std::int64_t{0}, row * 8, std::int64_t{1}}};
        mask = mask & boolean(ConstView(table.bytes().data(), ElementType::bit, layout));
        return;
      }
      case GridMask::hidden: {
        Tensor& table = keep(ElementType::boolean, {batch, 1, 1, keys});
        table.fill([&](const Index&) { return random_.chance(0.3) ? 1.0 : 0.0; });
        mask = mask & hidden(table.const_view());
        return;
      }
      case GridMask::tree:
        add_tree();
        return;
    }
  }

  /// The queries are a draft: each follows one of those before it, or the last held token.
  void add_tree() {
    std::vector<std::vector<std::int32_t>> parents;
    for (const std::int64_t count : held_.queries) {
      parents.emplace_back();
      for (std::int64_t i = 0; i < count; ++i)
        parents.back().push_back(static_cast<std::int32_t>(random_.below(i + 1)) - 1);
    }
    std::vector<DraftTree> trees;
    for (std::int64_t b = 0; b < held_.batch(); ++b)
      trees.push_back({position(b, 0), parents[static_cast<std::size_t>(b)]});
    tree_ = std::make_unique<TreeMask>(trees);
    call_.mask = call_.mask & tree_->mask();
  }

  /// Documents of 23 tokens.
  ConstView key_documents() {
    Tensor& ids = keep(ElementType::int32, {1, held_.longest()});
    ids.fill([](const Index& at) { return std::floor(static_cast<double>(at[1]) / 23.0); });
    return ids.const_view();
  }
  ConstView query_documents() {
    Tensor& ids = held_.ragged ? keep(ElementType::int64, {q_tokens()})
                               : keep(ElementType::int64, {held_.batch(), held_.most_queries()});
    for (std::int64_t b = 0; b < held_.batch(); ++b) {
      const auto at = static_cast<std::size_t>(b);
      for (std::int64_t i = 0; i < held_.queries[at]; ++i) {
        ids.set(held_.ragged ? Index{offsets_[at] + i} : Index{b, i},
                std::floor(static_cast<double>(position(b, i)) / 23.0));
      }
    }
    return ids.const_view();
  }

  void add(GridModifier kind) {
    Modifiers& modifiers = call_.modifiers;
    const bool all = kind == GridModifier::everything;
    if (kind == GridModifier::alibi || all) modifiers.alibi.use_default_slopes = true;
    if (kind == GridModifier::soft_cap || all) modifiers.soft_cap = 1.5f;
    if (kind == GridModifier::custom || all) modifiers.custom[1] = &bonus_;
    if (kind == GridModifier::custom_hides || all) modifiers.custom[3] = &hide_some_;
    if (kind == GridModifier::dropout || all) {
      modifiers.dropout.probability = 0.25f;
      modifiers.dropout.seed = random_.next();
      if (random_.chance(0.5)) {  // else a sequence's place in the batch
        Tensor& ids = keep(ElementType::int64, {held_.batch()});
        ids.fill([](const Index& at) { return static_cast<double>(0x500000007 - 3 * at[0]); });
        modifiers.dropout.sequence_ids = ids.const_view();
      }
    }
    // Distances and random numbers are positions'.
    if (modifiers.alibi.given() || modifiers.dropout.probability > 0.0f)
      call_.mask.align = Align::end;
    if (kind == GridModifier::sink || all) {
      Tensor& sink = keep(f32, {q_heads_});
      sink.fill([&](const Index&) { return random_.uniform(-1.0, 3.0); });
      modifiers.sink = sink.const_view();
    }
    if (kind == GridModifier::bias || all) {
      Tensor& bias = keep(f32, {held_.batch(), q_heads_, held_.most_queries(), held_.longest()});
      bias.fill([&](const Index&) {
        return random_.chance(0.1) ? -std::numeric_limits<double>::infinity() : random_.normal();
      });
      modifiers.bias = bias.const_view();
    }
  }

  const Held& held_;
  Random random_;
  std::int64_t q_heads_;
  Tensor q_;
  std::vector<std::int64_t> offsets_;
  std::deque<Tensor> kept_;
  std::unique_ptr<TreeMask> tree_;
  Bonus bonus_;
  HideSome hide_some_;
  AttentionArguments call_;
};

double largest(const std::vector<double>& values) {
  double most = 0.0;
  for (const double value : values) {
    if (std::isfinite(value)) most = std::max(most, std::abs(value));
  }
  return most;
}

void expect_within_bound(const Held& held, const Plain& plain, GridCall& grid) {
  const kernels::AttendCall exactly = door::resolve(grid.over(plain.view()));
  const reference::Result exact = reference::attend(exactly, false, grid.q_tokens());
  const Bound sizes{largest(exact.out), largest(exact.lse)};
  const AttentionArguments call = grid.over(held.view());
  const kernels::AttendCall resolved = door::resolve(call);
  const Seen seen(exactly, resolved.k, exactly.score.custom_count > 0 ? Bonus::kMost : 0.0f);
  for (const Isa isa : available_isas()) {
    grid.out.poison();
    grid.lse.poison();
    held.attend(call, isa);
    const Bound bound = documented_bound(seen, sizes, rounding_of(resolved, isa));
    EXPECT_LE(largest_difference(grid.out, exact.out), bound.out) << "out, " << isa_name(isa);
    EXPECT_LE(largest_difference(grid.lse, exact.lse), bound.lse) << "lse, " << isa_name(isa);
  }
}

/// One cache under all masks and groups. Each pair decodes or prefills and has one of the
/// modifiers, in turns, unless everything is wanted.
class Sweep {
 public:
  void over(CacheKind kind, const StoredForm& form, bool decoding) {
    const auto held = Held::make(kind, form, decoding, static_cast<std::uint64_t>(count_) + 1);
    const Plain plain(*held);
    const std::string what =
        std::string(name_of(kind)) + " " + name_of(form) + (decoding ? " decoding" : " prefill");
    EXPECT_LE(plain.furthest(), most_rounding(form.type)) << what;
    for (int mask = 0; mask < kGridMasks; ++mask) {
      for (const std::int64_t group : kGroups) {
        for (int modifier = 0; modifier < kGridModifiers; ++modifier) {
          if (!takes(decoding, modifier)) continue;
          // A cache of 16 bits is read with queries of its type, of codes with bfloat16's, or
          // either with float32's.
          const bool codes = base::is_code(form.type), narrow = count_ % 3 != 0;
          const ElementType q_type = !narrow ? f32 : codes ? bf16 : form.type;
          SCOPED_TRACE(what + ", mask " + kMaskNames[mask] + ", modifier " +
                       kModifierNames[modifier] + ", group " + std::to_string(group));
          GridCall grid(*held, static_cast<GridMask>(mask), static_cast<GridModifier>(modifier),
                        group, q_type, static_cast<std::uint64_t>(count_));
          expect_within_bound(*held, plain, grid);
        }
        ++count_;
      }
    }
  }

 private:
  bool takes(bool decoding, int modifier) const {
    if (effort() == Effort::full) return true;
    if (effort() == Effort::smoke && count_ % 41 != 0) return false;
    return count_ % kGridModifiers == modifier && (count_ % 32 + count_ / 64) % 2 == decoding;
  }

  int count_ = 0;  // of pairs, 32 a cache
};

TEST(CacheGrid, EveryKindTypeMaskAndGroupAgainstTheReference) {
  Sweep sweep;
  for (int kind = 0; kind < kCacheKinds; ++kind) {
    for (const StoredForm& form : kStoredForms) {
      if (!holds(static_cast<CacheKind>(kind), form)) continue;
      for (const bool decoding : {false, true})
        sweep.over(static_cast<CacheKind>(kind), form, decoding);
    }
  }
}

// Nobody writes: what a view points to and what const members do is for any number of threads.
TEST(CacheGrid, ReadersAtTheSameTimeGetTheBitsOfOne) {
  for (int kind = 0; kind < kCacheKinds; ++kind) {
    for (const StoredForm& form : {StoredForm{f32}, StoredForm{ElementType::int8}}) {
      const auto held = Held::make(static_cast<CacheKind>(kind), form, false, 7);
      const auto run = [&](GridCall& call) {
        held->attend(call.over(held->view()), Isa::automatic);
      };
      std::deque<GridCall> calls;
      for (int i = 0; i < 4; ++i)
        calls.emplace_back(*held, GridMask::own, GridModifier::none, 4, f32, 11);
      run(calls[0]);
      std::vector<std::thread> readers;
      for (std::size_t i = 1; i < calls.size(); ++i)
        readers.emplace_back([&, i] { run(calls[i]); });
      for (std::thread& reader : readers) reader.join();
      for (std::size_t i = 1; i < calls.size(); ++i) {
        EXPECT_EQ(calls[i].out.bytes(), calls[0].out.bytes())
            << name_of(static_cast<CacheKind>(kind)) << ' ' << name_of(form);
      }
    }
  }
}

}  // namespace
}  // namespace polyhead::test
