// A tree of drafted tokens through a layer over pages, in one call: each token gets the bits that
// it gets in its branch alone, which is a plain causal sequence, and so does what follows a branch
// that was kept.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "polyhead/tree_mask.h"
#include "support/latent_serving.h"
#include "support/layer_streams.hpp"

namespace polyhead::test {
namespace {

using Rows = std::vector<float>;
/// A layer's forward over pages.
using Forward = std::function<PagedCache::Status(const ConstView&, const PagedSequences&,
                                                 const View&, const LayerCall&)>;

// Each draft ends within the block of 64 keys that it begins in.
const std::vector<std::int32_t> kFirst = {-1, 0, 0, -1, 3, 2, 5, 1}, kSecond = {-1, 0, 1, 1, 0};
const DraftTree kTrees[] = {{100, kFirst}, {3, kSecond}};

/// Two sequences with drafts in a cache that `forward` fills and reads.
class Drafts {
 public:
  Drafts(PagedCache& cache, std::int64_t columns, Forward forward)
      : cache_(cache), columns_(columns), forward_(std::move(forward)) {
    unsigned seed = 7;
    for (const DraftTree& tree : kTrees) {
      stems_.push_back(cache_.create());
      run({stems_.back()}, random_floats(tree.held * columns_, seed++), {});
      const Rows draft = random_floats(std::ssize(tree.parents) * columns_, seed++);
      drafted_.insert(drafted_.end(), draft.begin(), draft.end());
    }
  }

  /// Both trees in one call.
  Rows together() {
    const TreeMask mask(kTrees);
    const std::int64_t offsets[] = {0, std::ssize(kFirst), std::ssize(mask.positions())};
    LayerCall call{.mask = mask.mask(), .offsets = ConstView(offsets, {3})};
    call.positions = ConstView(mask.positions().data(), {offsets[2]});
    return run({cache_.fork(stems_[0]), cache_.fork(stems_[1])}, drafted_, call);
  }

  /// The last row of the branch that ends in token `last` of draft `tree`.
  Rows alone(std::size_t tree, std::int32_t last) {
    return last_row(run({cache_.fork(stems_[tree])}, path(tree, last), {}));
  }

  /// The row of a token that follows that branch, after all of the tree was run in one call and the
  /// branch kept.
  Rows next_after_tree(std::size_t tree, std::int32_t last) {
    const TreeMask mask(kTrees[tree]);
    const std::int64_t id = cache_.fork(stems_[tree]), drafted = std::ssize(mask.positions());
    const std::int64_t offsets[] = {0, drafted};
    LayerCall call{.mask = mask.mask(), .offsets = ConstView(offsets, {2})};
    call.positions = ConstView(mask.positions().data(), {drafted});
    const auto from = drafted_.begin() + (tree == 0 ? 0 : std::ssize(kFirst) * columns_);
    run({id}, {from, from + drafted * columns_}, call);
    EXPECT_EQ(cache_.keep(id, kTrees[tree].held, kTrees[tree].branch(last)),
              PagedCache::Status::ok);
    return run({id}, next(), {});
  }

  /// The same, after the branch alone.
  Rows next_alone(std::size_t tree, std::int32_t last) {
    Rows x = path(tree, last), more = next();
    x.insert(x.end(), more.begin(), more.end());
    return last_row(run({cache_.fork(stems_[tree])}, x, {}));
  }

  /// The row of token `at` of draft `tree`, of all drafted tokens' `rows`.
  Rows row(const Rows& rows, std::size_t tree, std::int32_t at) const {
    const auto from =
        rows.begin() + ((tree == 0 ? 0 : std::ssize(kFirst)) + std::ptrdiff_t{at}) * columns_;
    return {from, from + columns_};
  }

 private:
  Rows last_row(const Rows& y) const { return {y.end() - columns_, y.end()}; }
  Rows next() const { return random_floats(columns_, 99); }

  /// Rows of the branch that ends in token `last` of draft `tree`.
  Rows path(std::size_t tree, std::int32_t last) const {
    Rows path;
    for (std::int32_t at = last; at >= 0; at = kTrees[tree].parents[static_cast<std::size_t>(at)]) {
      const Rows token = row(drafted_, tree, at);
      path.insert(path.begin(), token.begin(), token.end());
    }
    return path;
  }

  Rows run(const std::vector<std::int64_t>& ids, const Rows& x, const LayerCall& call) {
    Rows y(x.size(), std::numeric_limits<float>::quiet_NaN());
    const std::int64_t tokens = std::ssize(x) / columns_;
    EXPECT_EQ(forward_({x.data(), {tokens, columns_}}, {.cache = &cache_, .sequences = ids},
                       {y.data(), {tokens, columns_}}, call),
              PagedCache::Status::ok);
    return y;
  }

  PagedCache& cache_;
  std::int64_t columns_;
  Forward forward_;
  std::vector<std::int64_t> stems_;
  Rows drafted_;
};

void expect_branches(Drafts drafts, const std::string& what) {
  const Rows together = drafts.together();
  for (std::size_t tree = 0; tree < 2; ++tree) {
    for (std::int32_t last = 0; last < std::ssize(kTrees[tree].parents); ++last) {
      const std::string which =
          what + ", tree " + std::to_string(tree) + ", token " + std::to_string(last);
      expect_same_bits(drafts.row(together, tree, last), drafts.alone(tree, last), which);
      expect_same_bits(drafts.next_after_tree(tree, last), drafts.next_alone(tree, last),
                       which + ", then the next");
    }
  }
}

constexpr ElementType kHeld[] = {ElementType::float32, ElementType::int8};

TEST(TreeLayers, GiveTheBitsOfEachBranchAlone) {
  const polyhead_test::Model model(polyhead_test::decoder(ElementType::float32));
  for (const Isa isa : available_isas()) {
    const MultiHeadAttention layer = model.layer(isa);
    for (const ElementType held : kHeld) {
      PagedCache cache = polyhead_test::pool_of(layer, held, 8, 100);
      expect_branches({cache, layer.config().model_dim,
                       [&](const ConstView& x, const PagedSequences& pages, const View& y,
                           const LayerCall& call) { return layer.forward(x, pages, y, call); }},
                      std::string(isa_name(isa)) + " holding " + element_name(held));
    }
  }
}

/// A sequence in a ring, which has no forks: what is run after the stem is taken back.
class RingDrafts {
 public:
  static constexpr std::int64_t kHeld = 150, kWindow = 50;  // around a ring of 128 tokens
  static constexpr std::int64_t kDrafted = 8;

  /// `window`: of the ring itself.
  RingDrafts(const MultiHeadAttention& layer, ElementType type, std::int64_t window)
      : layer_(layer), cache_([&] {
          auto c = polyhead_test::sized<SlidingCacheConfig>(layer, type);
          c.window = window;
          c.first_tokens = 3;
          c.chunk = kDrafted + 1;
          return c;
        }()) {
    for (unsigned token = 0; token < kHeld; ++token) run(rows(1, token), {});
  }

  /// The draft in one call; rows of all its tokens.
  Rows together() {
    const TreeMask mask({kHeld, kFirst, kWindow, 3});
    LayerCall call{.mask = mask.mask()};
    call.positions = ConstView(mask.positions().data(), {kDrafted});
    return run(draft(), call);
  }

  /// The tokens of a branch one after the other; the last one's row.
  Rows alone(const std::vector<std::int64_t>& places) {
    const Rows all = draft();
    Rows last;
    for (const std::int64_t place : places) {
      const auto from = all.begin() + (place - kHeld) * kColumns;
      last = run({from, from + kColumns}, windowed());
    }
    return last;
  }

  Rows next() { return run(rows(1, 999), windowed()); }
  void keep(const std::vector<std::int64_t>& places) { cache_.keep(0, kHeld, places); }
  void take_back() { cache_.truncate(0, kHeld); }

 private:
  static constexpr std::int64_t kColumns = polyhead_test::kColumns;

  static Rows rows(std::int64_t count, unsigned seed) {
    return random_floats(count * kColumns, seed + 1);
  }
  static Rows draft() { return rows(kDrafted, 500); }
  static LayerCall windowed() { return {.mask = window_and_first(kWindow - 1, 0, 3)}; }

  Rows run(const Rows& x, const LayerCall& call) {
    Rows y(x.size(), std::numeric_limits<float>::quiet_NaN());
    const std::int64_t tokens = std::ssize(x) / kColumns;
    layer_.forward(ConstView(x.data(), {tokens, kColumns}), cache_,
                   View(y.data(), {tokens, kColumns}), call);
    return y;
  }

  const MultiHeadAttention& layer_;
  SlidingCache cache_;
};

// The ring's own window counts places, so it has room for a draft's; the tokens' is the tree's.
TEST(TreeLayers, OverARingGiveTheBitsOfEachBranchUnderItsWindow) {
  const polyhead_test::Model model(polyhead_test::decoder(ElementType::float32));
  for (const Isa isa : available_isas()) {
    const MultiHeadAttention layer = model.layer(isa);
    for (const ElementType held : kHeld) {
      RingDrafts trees(layer, held, RingDrafts::kWindow + RingDrafts::kDrafted - 1);
      RingDrafts branches(layer, held, RingDrafts::kWindow);
      for (std::int32_t last = 0; last < RingDrafts::kDrafted; ++last) {
        const std::vector<std::int64_t> places = DraftTree{RingDrafts::kHeld, kFirst}.branch(last);
        const std::string which = std::string(isa_name(isa)) + " holding " + element_name(held) +
                                  ", token " + std::to_string(last);
        const Rows together = trees.together();
        const auto from = together.begin() + std::ptrdiff_t{last} * polyhead_test::kColumns;
        expect_same_bits({from, from + polyhead_test::kColumns}, branches.alone(places), which);
        trees.keep(places);
        expect_same_bits(trees.next(), branches.next(), which + ", then the next");
        trees.take_back();
        branches.take_back();
      }
    }
  }
}

TEST(TreeLayers, OfLatentsGiveTheBitsOfEachBranchAlone) {
  for (const Isa isa : available_isas()) {
    for (const Way& way : kWays) {
      if (way.weights != ElementType::float32) continue;  // pairs of bfloat16 lie elsewhere
      const LatentAttention layer = layer_of(way, causal(Align::end), isa);
      Pool pool(layer, way, 8, 100);
      expect_branches(
          {*pool.cache, kModel,
           [&](const ConstView& x, const PagedSequences& pages, const View& y,
               const LayerCall& call) { return layer.forward(x, pages, y, way.form, call); }},
          std::string(isa_name(isa)) + " " + way.name());
    }
  }
}

}  // namespace
}  // namespace polyhead::test
