// One cache of each kind, filled through its own door with the same tokens, and what it should
// hold.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "polyhead/attention.h"
#include "polyhead/sliding_cache.h"
#include "support/tensor.h"

namespace polyhead::test {

/// Kinds of caches that tests loop over. A new one belongs in the list, in name_of and in
/// Held::make.
enum class CacheKind {
  contiguous,
  batched,
  sliding,
  sliding_and_first,
  paged_8,
  paged_16,
  paged_64,
  paged_256,
  cross,
  latent,
  latent_sliding,
  latent_paged_8,
  latent_paged_64
};
inline constexpr int kCacheKinds = static_cast<int>(CacheKind::latent_paged_64) + 1;
const char* name_of(CacheKind kind);

/// How a cache's elements are stored.
struct StoredForm {
  ElementType type = f32;
  bool by_channel = false;  ///< the scales of keys
};
/// Every way to store.
extern const std::vector<StoredForm> kStoredForms;
std::string name_of(const StoredForm& form);
/// Values within keys cannot have scales by channel: cache_test.cpp has the refusal.
bool holds(CacheKind kind, const StoredForm& form);

/// A cache of some kind after its last tokens were appended, those that the queries of the call
/// belong to. Slots that no query may see were filled with NaN before, or between, the tokens.
class Held {
 public:
  static std::unique_ptr<Held> make(CacheKind kind, const StoredForm& form, bool decoding,
                                    std::uint64_t seed);
  virtual ~Held() = default;

  virtual KvView view() const = 0;
  /// The cache of a sliding kind, null of others.
  virtual const SlidingCache* sliding() const { return nullptr; }
  /// The mask it is for; others may be joined.
  virtual Mask mask() const { return causal(Align::end); }
  /// Runs the call, whose `kv` is view(), through the cache's own door, in this thread.
  virtual void attend(const AttentionArguments& call, Isa isa) const;

  // What was appended, [batch, longest, kv_heads, dim]: NaN where no query sees the token.
  Tensor k, v;
  std::vector<std::int64_t> lengths;  ///< tokens of each sequence
  std::vector<std::int64_t> queries;  ///< its last ones, which attend
  bool ragged = false;                ///< how the kind's batches come
  std::int64_t kv_heads = 2, head_dim = 40, value_dim = 24;
  bool values_in_keys = false;

  std::int64_t batch() const { return static_cast<std::int64_t>(lengths.size()); }
  std::int64_t longest() const;
  std::int64_t most_queries() const;

 protected:
  /// Values are the beginning of the one key that all heads share, as latent attention keeps them.
  void hold_latents();

  /// Random k and v. `sees` says whether any query sees token t of sequence b.
  void fill(const StoredForm& form, std::uint64_t seed);
  /// Some of v as a cache takes it: none where values are in the keys.
  ConstView values(ConstView some) const { return values_in_keys ? ConstView() : some; }
  virtual bool seen(std::int64_t b, std::int64_t t) const;

  /// float32 scales by channel, where the form has them; they must outlive the cache's making only.
  std::vector<float> scales_;
};

}  // namespace polyhead::test
