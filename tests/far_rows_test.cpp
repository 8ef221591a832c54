// Keys, values and their scales more than 2^31 elements apart: the bits of those that lie together.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "base/codes.hpp"
#include "polyhead/attention.h"
#include "polyhead/kv_cache.h"
#include "polyhead/paged_cache.h"
#include "support/effort.h"
#include "support/held.h"
#include "support/problem.h"
#include "support/reserved.h"
#include "support/slice.h"
#include "support/tensor.h"

namespace polyhead::test {
namespace {

constexpr std::int64_t kKeys = 1100, kQueries = 70, kKvHeads = 2, kGroup = 2;  // two splits
constexpr std::int64_t kHeadDim = 64, kValueDim = 40, kPageTokens = 16;
// Tokens in one piece are so many elements apart, of q and out so many more; pools have so many
// pages.
constexpr std::int64_t kFar = std::int64_t{1} << 22, kFarQuery = std::int64_t{1} << 26,
                       kPages = std::int64_t{1} << 22;
static_assert(kKeys * kFar > std::int64_t{1} << 32 && kQueries * kFarQuery > std::int64_t{1} << 32);

/// A page's heads beside each other, as in pools of others; or each head's pages, as here.
enum class Place { whole, page_by_page, head_by_head };
constexpr Place kPlaces[] = {Place::whole, Place::page_by_page, Place::head_by_head};
constexpr const char* kPlaceNames[] = {"whole", "page by page", "head by head"};

/// Rows of a near view [slots, tokens, heads, dim] at places that lie far from each other; of
/// scales a row are the blocks.
class Far {
 public:
  /// `slot` says where a slot of the near view goes.
  Far(const ConstView& near, Place place, const std::vector<std::int64_t>& slots)
      : near_(near), far_(layout(near, place)), reserved_(bytes()) {
    if (!valid()) return;
    for (std::size_t slot = 0; slot < slots.size(); ++slot) {
      for (std::int64_t t = 0; t < near.layout.extents[1]; ++t) {
        for (std::int64_t h = 0; h < kKvHeads; ++h)
          copy({static_cast<std::int64_t>(slot), t, h}, {slots[slot], t, h});
      }
    }
  }

  bool valid() const { return reserved_.valid(); }
  ConstView view() const { return {reserved_.bytes(), near_.type, far_}; }

 private:
  /// From the first to the last element.
  std::size_t bytes() const {
    const auto& extents = far_.extents;
    const auto& strides = far_.strides;
    return static_cast<std::size_t>(
        bytes_apart(near_.type, (extents[0] - 1) * strides[0] + (extents[1] - 1) * strides[1] +
                                    extents[2] * strides[2] + row_of(near_)));
  }

  /// Elements of a row with its padding.
  static std::int64_t row_of(const ConstView& near) {
    const std::int64_t dim = near.layout.extents[3];
    return base::is_code(near.type) ? base::code_blocks(dim) * base::kCodeBlock : dim;
  }

  static detail::Layout layout(const ConstView& near, Place place) {
    const std::int64_t row = row_of(near);
    detail::Layout far = near.layout;
    if (place == Place::whole) {
      far.strides = {kFar * kKeys, kFar, row, std::int64_t{1}};
      return far;
    }
    // Scales are few: there is space between those of two pages.
    const std::int64_t apart = row < base::kCodeBlock ? 64 : 1;
    const std::int64_t page = kPageTokens * row * apart;
    far.extents[0] = kPages;
    if (place == Place::page_by_page)
      far.strides = {page * kKvHeads, row * kKvHeads, row, std::int64_t{1}};
    else
      far.strides = {page, row, page * kPages, std::int64_t{1}};
    return far;
  }

  void copy(const Index& from, const Index& to) {
    const auto offset = [&](const detail::Layout& in, const Index& at) {
      std::int64_t elements = 0;
      for (std::size_t axis = 0; axis < 3; ++axis) elements += at[axis] * in.strides[axis];
      return bytes_apart(near_.type, elements);
    };
    // Scales of the near view are not dense.
    const bool dense = near_.layout.strides[3] == 1 || near_.type != f32;
    const std::int64_t steps = dense ? 1 : near_.layout.extents[3];
    for (std::int64_t i = 0; i < steps; ++i) {
      std::memcpy(reserved_.bytes() + offset(far_, to) + i * 4,
                  static_cast<const std::byte*>(near_.data) + offset(near_.layout, from) +
                      i * near_.layout.strides[3] * 4,
                  static_cast<std::size_t>(dense ? bytes_apart(near_.type, row_of(near_)) : 4));
    }
  }

  ConstView near_;
  detail::Layout far_;
  Reserved reserved_;
};

/// A cache of one sequence, in one piece or in pages, and the same rows far from each other.
class Twice {
 public:
  Twice(const Problem& p, const StoredForm& form, Place place) {
    const std::vector<float> scales =
        form.by_channel ? key_scales_by_channel(p.k.const_view(), form.type) : std::vector<float>();
    if (place == Place::whole) {
      KvCacheConfig config;
      take(config, form);
      config.capacity = kKeys;
      if (form.by_channel) config.key_scales = ConstView(scales.data(), {kKvHeads, kHeadDim});
      whole_.emplace_back(config);
      whole_.front().append(p.k.const_view(), p.v.const_view());
      near = whole_.front().view();
      move(place, {0});
      return;
    }
    PagedCacheConfig config;
    take(config, form);
    config.pages = (kKeys + kPageTokens - 1) / kPageTokens;
    config.page_tokens = kPageTokens;
    if (form.by_channel)
      config.key_scales = ConstView(scales.data(), {std::int64_t{1}, kKvHeads, kHeadDim});
    pages_.emplace_back(config);
    const std::int64_t sequence = pages_.front().create();
    EXPECT_EQ(pages_.front().append(sequence, drop_first_axis(p.k.const_view()),
                                    drop_first_axis(p.v.const_view())),
              PagedCache::Status::ok);
    pages_.front().batch({&sequence, 1}, batch_);
    near = pages_.front().view(0, batch_);
    // All over the pool, neither in order nor near its beginning alone.
    std::vector<std::int64_t> to;
    for (std::int64_t i = 0; i < config.pages; ++i)
      to.push_back(kPages - 1 - i * 29 % config.pages * (kPages / config.pages));
    for (std::int32_t& page : batch_.table)
      table_.push_back(static_cast<std::int32_t>(to[static_cast<std::size_t>(page)]));
    move(place, to);
    far.page_table = ConstView(table_.data(), {std::int64_t{1}, std::ssize(table_)});
  }

  bool valid() const {
    for (const Far& each : stores_) {
      if (!each.valid()) return false;
    }
    return true;
  }

  KvView near, far;

 private:
  template <class Config>
  static void take(Config& config, const StoredForm& form) {
    config.kv_heads = kKvHeads;
    config.head_dim = kHeadDim;
    config.value_dim = kValueDim;
    config.type = form.type;
  }

  void move(Place place, const std::vector<std::int64_t>& slots) {
    far = near;
    for (ConstView* view : {&far.k, &far.v, &far.k_scales, &far.v_scales}) {
      if (!view->given() || view->layout.axes != 4) continue;  // none, or by channel
      stores_.emplace_back(*view, place, slots);
      *view = stores_.back().view();
    }
  }

  std::deque<KvCache> whole_;
  std::deque<PagedCache> pages_;
  PagedBatch batch_;
  std::vector<std::int32_t> table_;
  std::deque<Far> stores_;
};

/// A tensor [1, tokens, heads, dim] with its tokens far apart.
class FarTokens {
 public:
  explicit FarTokens(const Tensor& from)
      : from_(from),
        reserved_(
            static_cast<std::size_t>(kFarQuery * from.extents()[1] * element_bytes(from.type()))) {
    if (valid())
      each([](std::byte* far, const std::byte* near, std::size_t bytes) {
        std::memcpy(far, near, bytes);
      });
  }
  bool valid() const { return reserved_.valid(); }
  View view() {
    View view = const_cast<Tensor&>(from_).view();
    view.data = reserved_.bytes();
    view.layout.strides[1] = kFarQuery;
    return view;
  }
  void clear() {
    each([](std::byte* far, const std::byte*, std::size_t bytes) { std::memset(far, 0, bytes); });
  }
  /// Whether all bits are those of the tensor now.
  bool equal() {
    bool same = true;
    each([&](std::byte* far, const std::byte* near, std::size_t bytes) {
      same = same && std::memcmp(far, near, bytes) == 0;
    });
    return same;
  }

 private:
  template <class F>
  void each(const F& f) {
    const Index& extents = from_.extents();
    const std::int64_t bytes = element_bytes(from_.type());
    for (std::int64_t token = 0; token < extents[1]; ++token) {
      f(reserved_.bytes() + token * kFarQuery * bytes, from_.address({0, token, 0, 0}),
        static_cast<std::size_t>(extents[2] * extents[3] * bytes));
    }
  }

  const Tensor& from_;
  Reserved reserved_;
};

TEST(FarRows, HaveTheBitsOfThoseThatLieTogether) {
  int turn = 0;
  for (const StoredForm& form : kStoredForms) {
    for (const bool narrow : {false, true}) {
      if (narrow && form.type == f32) continue;
      const ElementType q_type = !narrow ? f32 : base::is_code(form.type) ? bf16 : form.type;
      for (const std::int64_t q_len : {std::int64_t{1}, kQueries}) {
        Case c;
        c.q_len = q_len;
        c.kv_len = kKeys;
        c.q_heads = kKvHeads * kGroup;
        c.kv_heads = kKvHeads;
        c.head_dim = kHeadDim;
        c.value_dim = kValueDim;
        c.types = {q_type, f32, f32, q_type};
        c.mask = MaskKind::causal_end;
        Problem p(c);
        for (const Place place : kPlaces) {
          Twice kv(p, form, place);
          FarTokens q(p.q), out(p.out);
          if (!kv.valid() || !q.valid() || !out.valid()) GTEST_SKIP() << "no address space";
          const std::vector<Isa> all = isas();
          ++turn;
          for (std::size_t at = 0; at < all.size(); ++at) {
            const bool in_turn = static_cast<std::size_t>(turn) % all.size() == at;
            if (q_len != 1 && effort() == Effort::smoke && !in_turn) continue;
            const Options options{.isa = all[at], .executor = &Executor::serial()};
            AttentionArguments call = p.arguments();
            call.k = call.v = {};
            call.kv = kv.near;
            p.out.poison();
            attention(call, options);
            const std::vector<std::byte> lse = p.lse.bytes();
            call.kv = kv.far;
            call.q = q.view();
            call.out = out.view();
            p.lse.poison();
            out.clear();
            attention(call, options);
            EXPECT_TRUE(out.equal() && p.lse.bytes() == lse)
                << isa_name(all[at]) << " " << name_of(form) << " "
                << kPlaceNames[static_cast<int>(place)] << ": " << describe(c);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace polyhead::test
