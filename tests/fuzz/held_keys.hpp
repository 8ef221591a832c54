// Keys and values that a cache of some kind and type holds, for a fuzzed call: contiguous or in
// pages, some of them shared by forks; now and then with something in the view that must be refused
// or does no harm.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "polyhead/kv_cache.h"
#include "polyhead/paged_cache.h"
#include "tests/fuzz/bytes.hpp"

namespace polyhead::fuzz {

class HeldKeys {
 public:
  struct Sizes {
    std::int64_t batch, longest, kv_heads, head_dim, value_dim;
  };

  /// Sizes are 1 at least, but for the longest; `value` draws numbers within [-2, 2], and NaN.
  HeldKeys(Bytes& from, const Sizes& sizes, const std::function<float()>& value) : sizes_(sizes) {
    type_ = from.pick({ElementType::int8, ElementType::int4, ElementType::float32,
                       ElementType::bfloat16, ElementType::float16, ElementType::float8_e4m3,
                       ElementType::float8_e5m2});
    const bool integers = type_ == ElementType::int8 || type_ == ElementType::int4;
    if (integers && from.between(0, 3) == 3) {  // the last code stands for 2
      scales_.assign(static_cast<std::size_t>(sizes.kv_heads * sizes.head_dim),
                     type_ == ElementType::int8 ? 2.0f / 127.0f : 2.0f / 7.0f);
    }
    for (std::int64_t b = 0; b < sizes.batch; ++b)
      lengths_.push_back(from.between<std::int64_t>(0, sizes.longest));
    if (from.between(0, 1) == 1)
      take_pages(from, value);
    else
      take_contiguous(value);
    if (from.between(0, 9) == 9) spoil(from);
  }

  const KvView& view() const { return view_; }
  std::int64_t longest() const { return *std::ranges::max_element(lengths_); }

 private:
  struct Rows {
    std::vector<float> k, v;
  };

  Rows rows(std::int64_t tokens, const std::function<float()>& value) const {
    Rows made{
        std::vector<float>(static_cast<std::size_t>(tokens * sizes_.kv_heads * sizes_.head_dim)),
        std::vector<float>(static_cast<std::size_t>(tokens * sizes_.kv_heads * sizes_.value_dim))};
    for (std::vector<float>* of : {&made.k, &made.v}) std::ranges::generate(*of, value);
    return made;
  }

  void take_contiguous(const std::function<float()>& value) {
    const auto& [batch, longest, kv_heads, head_dim, value_dim] = sizes_;
    KvCacheConfig config{batch,     kv_heads, head_dim,
                         value_dim, type_,    std::max<std::int64_t>(longest, 1)};
    if (!scales_.empty()) config.key_scales = {scales_.data(), {kv_heads, head_dim}};
    contiguous_.emplace(config);
    const Rows all = rows(batch * longest, value);
    contiguous_->append({all.k.data(), {batch, longest, kv_heads, head_dim}},
                        {all.v.data(), {batch, longest, kv_heads, value_dim}},
                        {lengths_.data(), {batch}});
    view_ = contiguous_->view();
  }

  void take_pages(Bytes& from, const std::function<float()>& value) {
    const auto& [batch, longest, kv_heads, head_dim, value_dim] = sizes_;
    PagedCacheConfig config;
    config.page_tokens = from.pick<std::int64_t>({8, 16, 64, 256});
    config.pages = batch * (longest / config.page_tokens + 2);
    config.kv_heads = kv_heads;
    config.head_dim = head_dim;
    config.value_dim = value_dim;
    config.type = type_;
    if (!scales_.empty())
      config.key_scales = {scales_.data(), {std::int64_t{1}, kv_heads, head_dim}};
    paged_.emplace(config);
    std::vector<std::int64_t> sequences;
    for (std::int64_t b = 0; b < batch; ++b) {
      const bool forks = b > 0 && from.between(0, 2) == 2;
      sequences.push_back(forks ? paged_->fork(sequences.back()) : paged_->create());
      std::int64_t& wanted = lengths_[static_cast<std::size_t>(b)];
      const std::int64_t had = paged_->length(sequences.back());
      if (wanted < had) paged_->truncate(sequences.back(), wanted);
      if (wanted <= had) continue;
      const Rows more = rows(wanted - had, value);
      (void)paged_->append(sequences.back(), {more.k.data(), {wanted - had, kv_heads, head_dim}},
                           {more.v.data(), {wanted - had, kv_heads, value_dim}});
    }
    paged_->batch(sequences, batch_);
    lengths_ = batch_.lengths;
    view_ = paged_->view(0, batch_);
  }

  /// Nothing between: what is not refused lies in memory.
  void spoil(Bytes& from) {
    ConstView& rows = from.between(0, 1) == 1 ? view_.k : view_.v;
    const auto axis = from.between<std::size_t>(0, 3);
    switch (from.between(0, 6)) {
      case 0:
        --rows.layout.extents[axis];
        break;
      case 1:
        rows.layout.extents[axis] = from.pick<std::int64_t>({INT64_MIN, -1, INT64_MAX});
        break;
      case 2:
        rows.layout.strides[axis] = from.pick<std::int64_t>({INT64_MAX, INT64_MIN});
        break;
      case 3:
        view_.k_scales = from.between(0, 1) == 1 ? ConstView() : view_.v_scales;
        break;
      case 4:
        spoiled_lengths_ = lengths_;
        spoiled_lengths_.front() = from.pick<std::int64_t>({-1, INT64_MAX, sizes_.longest + 4096});
        view_.lengths = ConstView(spoiled_lengths_.data(), {sizes_.batch});
        break;
      case 5:
        if (!batch_.table.empty())
          batch_.table[from.between<std::size_t>(0, batch_.table.size() - 1)] =
              from.pick<std::int32_t>({-1, INT32_MAX, INT32_MIN});
        break;
      default:
        view_.first_tokens = from.pick<std::int64_t>({-1, 1});
    }
  }

  Sizes sizes_;
  ElementType type_ = ElementType::float32;
  std::vector<float> scales_;
  std::vector<std::int64_t> lengths_, spoiled_lengths_;
  std::optional<KvCache> contiguous_;
  std::optional<PagedCache> paged_;
  PagedBatch batch_;
  KvView view_;
};

}  // namespace polyhead::fuzz
