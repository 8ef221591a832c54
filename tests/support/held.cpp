#include "support/held.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "base/codes.hpp"
#include "polyhead/kv_cache.h"
#include "polyhead/layer.h"
#include "polyhead/paged_cache.h"
#include "polyhead/sliding_cache.h"
#include "support/slice.h"

namespace polyhead::test {
namespace {

/// The sizes that every cache's configuration names alike.
template <class Config>
Config sized(const Held& held, const StoredForm& form) {
  Config c;
  c.kv_heads = held.kv_heads;
  c.head_dim = held.head_dim;
  c.value_dim = held.value_dim;
  c.type = form.type;
  c.values_in_keys = held.values_in_keys;
  return c;
}

/// Entries [first, end) of the token axis.
ConstView tokens(const Tensor& x, std::int64_t first, std::int64_t end) {
  return slice(x.const_view(), 1, first, end);
}

/// One token of NaN for every slot, as many as wanted.
Tensor nothing(std::int64_t batch, std::int64_t count, const Tensor& like) {
  return {f32, {batch, count, like.extents()[2], like.extents()[3]}};  // made of NaN
}

class Contiguous : public Held {
 public:
  Contiguous(const StoredForm& form, bool decoding, std::uint64_t seed, bool batched) {
    lengths = {81};
    queries = {decoding ? 1 : 5};
    if (batched) {
      lengths = {81, 40, 0};
      queries = {decoding ? 1 : 5, decoding ? 1 : 3, 0};
    }
    build(form, seed);
  }
  KvView view() const override { return cache_->view(); }

 protected:
  Contiguous() = default;

  void build(const StoredForm& form, std::uint64_t seed) {
    fill(form, seed);
    auto c = sized<KvCacheConfig>(*this, form);
    c.batch = batch();
    c.capacity = longest() + 9;
    if (!scales_.empty()) c.key_scales = ConstView(scales_.data(), {kv_heads, head_dim});
    cache_.emplace(c);
    cache_->append(nothing(batch(), c.capacity, k).const_view(),
                   values(nothing(batch(), c.capacity, v).const_view()));
    cache_->clear();
    cache_->append(k.const_view(), values(v.const_view()), ConstView(lengths.data(), {batch()}));
  }

  std::optional<KvCache> cache_;
};

class Latent final : public Contiguous {
 public:
  Latent(const StoredForm& form, bool decoding, std::uint64_t seed) {
    lengths = {81, 40};
    queries = {decoding ? 1 : 5, decoding ? 1 : 3};
    hold_latents();
    build(form, seed);
  }
};

class Sliding final : public Held {
 public:
  Sliding(const StoredForm& form, bool decoding, std::uint64_t seed, std::int64_t first_tokens,
          bool latents)
      : first_tokens_(first_tokens) {
    if (latents) hold_latents();
    lengths = {213, 40, 9};
    queries = {decoding ? 1 : 5, decoding ? 1 : 3, decoding ? 1 : 9};
    fill(form, seed);
    auto c = sized<SlidingCacheConfig>(*this, form);
    c.batch = batch();
    c.window = kWindow;
    c.first_tokens = first_tokens;
    c.chunk = kChunk;
    if (!scales_.empty()) c.key_scales = ConstView(scales_.data(), {kv_heads, head_dim});
    cache_.emplace(c);
    append_nothing(400);  // all of the ring
    cache_->clear();
    std::vector<std::int64_t> earlier(lengths);
    for (std::size_t b = 0; b < earlier.size(); ++b) earlier[b] -= queries[b];
    append_until(earlier);
    append_nothing(kChunk);  // and back
    for (std::int64_t b = 0; b < batch(); ++b)
      cache_->truncate(b, earlier[static_cast<std::size_t>(b)]);
    append_until(lengths);
  }
  KvView view() const override { return cache_->view(); }
  const SlidingCache* sliding() const override { return &*cache_; }
  Mask mask() const override { return cache_->mask(); }

 private:
  static constexpr std::int64_t kWindow = 30, kChunk = 9;

  bool seen(std::int64_t b, std::int64_t t) const override {
    const auto at = static_cast<std::size_t>(b);
    return t < lengths[at] && (t < first_tokens_ || t > lengths[at] - queries[at] - kWindow);
  }
  void append_nothing(std::int64_t count) {
    for (; count > 0; count -= kChunk) {
      cache_->append(nothing(batch(), kChunk, k).const_view(),
                     values(nothing(batch(), kChunk, v).const_view()));
    }
  }
  /// Each sequence alone, so that they move on together but not by the same tokens.
  void append_until(const std::vector<std::int64_t>& ends) {
    for (std::int64_t b = 0; b < batch(); ++b) {
      const std::int64_t end = ends[static_cast<std::size_t>(b)];
      while (cache_->length(b) < end) {
        const std::int64_t first = cache_->length(b);
        const std::int64_t count = std::min(kChunk, end - first);
        std::vector<std::int64_t> counts(lengths.size(), 0);
        counts[static_cast<std::size_t>(b)] = count;
        cache_->append(tokens(k, first, first + count), values(tokens(v, first, first + count)),
                       ConstView(counts.data(), {batch()}));
      }
    }
  }

  std::int64_t first_tokens_;
  std::optional<SlidingCache> cache_;
};

class Paged final : public Held {
 public:
  Paged(const StoredForm& form, bool decoding, std::uint64_t seed, std::int64_t page_tokens,
        bool latents) {
    if (latents) hold_latents();
    lengths = {page_tokens == 256 ? 290 : 81, 40, 9};
    queries = {decoding ? 1 : 5, 1, decoding ? 1 : 9};
    ragged = true;
    fill(form, seed);
    auto c = sized<PagedCacheConfig>(*this, form);
    c.page_tokens = page_tokens;
    for (const std::int64_t length : lengths) c.pages += length / page_tokens + 2;
    if (!scales_.empty())
      c.key_scales = ConstView(scales_.data(), {std::int64_t{1}, kv_heads, head_dim});
    cache_.emplace(c);
    const std::int64_t all = cache_->create();
    append_nothing(all, c.pages * page_tokens);
    cache_->release(all);
    for (std::int64_t b = 0; b < batch(); ++b) sequences_.push_back(cache_->create());
    append_in_turns();
    for (const std::int64_t sequence : sequences_) {
      const std::int64_t length = cache_->length(sequence);
      append_nothing(sequence, 5);
      cache_->truncate(sequence, length);
    }
    cache_->batch(sequences_, batch_);
  }
  KvView view() const override { return cache_->view(0, batch_); }

 private:
  void append(std::int64_t sequence, ConstView keys, ConstView some) {
    if (cache_->append(sequence, drop_first_axis(keys), values(drop_first_axis(some))) !=
        PagedCache::Status::ok)
      throw InvalidArgument("the pool is too small for the test");
  }
  void append_nothing(std::int64_t sequence, std::int64_t count) {
    append(sequence, nothing(1, count, k).const_view(), nothing(1, count, v).const_view());
  }
  /// 13 tokens at a time, so that no sequence's pages lie in a row.
  void append_in_turns() {
    for (std::int64_t first = 0; first < longest(); first += 13) {
      for (std::int64_t b = 0; b < batch(); ++b) {
        const std::int64_t end = std::min(first + 13, lengths[static_cast<std::size_t>(b)]);
        if (first < end) {
          append(sequences_[static_cast<std::size_t>(b)], slice(tokens(k, first, end), 0, b, b + 1),
                 slice(tokens(v, first, end), 0, b, b + 1));
        }
      }
    }
  }

  std::optional<PagedCache> cache_;
  std::vector<std::int64_t> sequences_;
  PagedBatch batch_;
};

/// Keys and values of a context, which a layer without projections computes once.
class Cross final : public Held {
 public:
  Cross(const StoredForm& form, bool decoding, std::uint64_t seed) {
    lengths = {81, 40};
    queries = {decoding ? 1 : 5, decoding ? 1 : 3};
    value_dim = head_dim;
    fill(form, seed);
    v = k;
    const MultiHeadAttention once = layer({}, kv_heads, Isa::automatic);
    KvCacheConfig c = once.cache_config(batch(), longest());
    c.type = form.type;
    if (!scales_.empty()) c.key_scales = ConstView(scales_.data(), {kv_heads, head_dim});
    cache_.emplace(c);
    cache_->append(nothing(batch(), c.capacity, k).const_view(),
                   nothing(batch(), c.capacity, v).const_view());
    cache_->clear();
    once.project_context(joined_heads(k.const_view()), *cache_,
                         ConstView(lengths.data(), {batch()}));
  }
  KvView view() const override { return cache_->view(); }
  Mask mask() const override { return {}; }

  void attend(const AttentionArguments& call, Isa isa) const override {
    Modifiers modifiers = call.modifiers;
    modifiers.bias = {};
    LayerCall with;
    with.mask = call.mask;
    with.mask.q_lengths = {};
    with.lengths = call.mask.q_lengths;
    with.bias = call.modifiers.bias;
    with.lse = call.lse;
    layer(modifiers, call.q.layout.extents[2], isa)
        .cross(joined_heads(call.q), *cache_, joined_heads(call.out), with);
  }

 private:
  MultiHeadAttention layer(const Modifiers& modifiers, std::int64_t q_heads, Isa isa) const {
    LayerConfig c;
    c.use_projections = false;
    c.q_heads = q_heads;
    c.kv_heads = kv_heads;
    c.head_dim = head_dim;
    c.model_dim = q_heads * head_dim;
    c.context_dim = kv_heads * head_dim;
    c.modifiers = modifiers;
    return {c, {}, {.isa = isa, .executor = &Executor::serial()}};
  }
  /// [batch, tokens, heads, dim] as [batch, tokens, heads * dim].
  template <class V>
  static V joined_heads(V view) {
    auto& layout = view.layout;
    layout.axes = 3;
    layout.extents[2] *= layout.extents[3];
    layout.strides[2] = 1;
    return view;
  }

  std::optional<KvCache> cache_;
};

}  // namespace

bool holds(CacheKind kind, const StoredForm& form) {
  return kind < CacheKind::latent || !form.by_channel;
}

const std::vector<StoredForm> kStoredForms = {{f32},
                                              {f16},
                                              {bf16},
                                              {ElementType::int8},
                                              {ElementType::int8, true},
                                              {ElementType::int4},
                                              {ElementType::int4, true},
                                              {ElementType::float8_e4m3},
                                              {ElementType::float8_e5m2}};

std::string name_of(const StoredForm& form) {
  return std::string(element_name(form.type)) + (form.by_channel ? " by channel" : "");
}

const char* name_of(CacheKind kind) {
  switch (kind) {
    case CacheKind::contiguous:
      return "contiguous";
    case CacheKind::batched:
      return "batched";
    case CacheKind::sliding:
      return "sliding";
    case CacheKind::sliding_and_first:
      return "sliding_and_first";
    case CacheKind::paged_8:
      return "paged_8";
    case CacheKind::paged_16:
      return "paged_16";
    case CacheKind::paged_64:
      return "paged_64";
    case CacheKind::paged_256:
      return "paged_256";
    case CacheKind::cross:
      return "cross";
    case CacheKind::latent:
      return "latent";
    case CacheKind::latent_sliding:
      return "latent_sliding";
    case CacheKind::latent_paged_8:
      return "latent_paged_8";
    case CacheKind::latent_paged_64:
      return "latent_paged_64";
  }
  return "";
}

std::unique_ptr<Held> Held::make(CacheKind kind, const StoredForm& form, bool decoding,
                                 std::uint64_t seed) {
  switch (kind) {
    case CacheKind::contiguous:
    case CacheKind::batched:
      return std::make_unique<Contiguous>(form, decoding, seed, kind == CacheKind::batched);
    case CacheKind::sliding:
    case CacheKind::sliding_and_first:
    case CacheKind::latent_sliding:
      return std::make_unique<Sliding>(form, decoding, seed, kind == CacheKind::sliding ? 0 : 5,
                                       kind == CacheKind::latent_sliding);
    case CacheKind::paged_8:
    case CacheKind::latent_paged_8:
      return std::make_unique<Paged>(form, decoding, seed, 8, kind == CacheKind::latent_paged_8);
    case CacheKind::paged_16:
      return std::make_unique<Paged>(form, decoding, seed, 16, false);
    case CacheKind::paged_64:
    case CacheKind::latent_paged_64:
      return std::make_unique<Paged>(form, decoding, seed, 64, kind == CacheKind::latent_paged_64);
    case CacheKind::paged_256:
      return std::make_unique<Paged>(form, decoding, seed, 256, false);
    case CacheKind::cross:
      return std::make_unique<Cross>(form, decoding, seed);
    case CacheKind::latent:
      return std::make_unique<Latent>(form, decoding, seed);
  }
  return nullptr;
}

void Held::attend(const AttentionArguments& call, Isa isa) const {
  attention(call, {.isa = isa, .executor = &Executor::serial()});
}

std::int64_t Held::longest() const { return *std::ranges::max_element(lengths); }
std::int64_t Held::most_queries() const { return *std::ranges::max_element(queries); }

bool Held::seen(std::int64_t b, std::int64_t t) const {
  return t < lengths[static_cast<std::size_t>(b)];
}

void Held::fill(const StoredForm& form, std::uint64_t seed) {
  Random random(seed);
  k = Tensor(f32, {batch(), longest(), kv_heads, head_dim});
  v = Tensor(f32, {batch(), longest(), kv_heads, value_dim});
  k.fill_normal(random);
  v.fill_normal(random);
  if (form.by_channel) scales_ = key_scales_by_channel(k.const_view(), form.type);
  for (Tensor* x : {&k, &v}) {
    x->fill([&](const Index& at) {
      return seen(at[0], at[1]) ? x->get(at) : std::numeric_limits<double>::quiet_NaN();
    });
  }
  if (values_in_keys) v.fill([&](const Index& at) { return k.get(at); });
}

void Held::hold_latents() {
  kv_heads = 1;
  value_dim = 32;
  values_in_keys = true;
}

}  // namespace polyhead::test
