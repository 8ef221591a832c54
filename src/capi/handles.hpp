// What the opaque handles of polyhead_c.h are.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "capi/convert.hpp"
#include "polyhead/attention.h"
#include "polyhead/kv_cache.h"
#include "polyhead/latent.h"
#include "polyhead/layer.h"
#include "polyhead/paged_cache.h"
#include "polyhead/polyhead_layer_c.h"
#include "polyhead/sliding_attention.h"
#include "polyhead/sliding_cache.h"
#include "polyhead/tree_mask.h"

struct polyhead_executor {
  explicit polyhead_executor(std::unique_ptr<polyhead::Executor> of) : owned(std::move(of)) {}
  polyhead::Executor& get() const { return *owned; }
  std::unique_ptr<polyhead::Executor> owned;
};

struct polyhead_plan {
  polyhead::Plan plan;
};

struct polyhead_workspace {
  polyhead::Workspace workspace;
};

struct polyhead_tree_mask {
  polyhead::TreeMask mask;
};

struct polyhead_kv_cache {
  polyhead::KvCache cache;
};

struct polyhead_in_cache_plan {
  polyhead::InCachePlan plan;
};

struct polyhead_in_cache_workspace {
  polyhead::InCacheWorkspace workspace;
};

struct polyhead_sliding_cache {
  polyhead::SlidingCache cache;
};

struct polyhead_paged_cache {
  polyhead::PagedCache cache;
};

struct polyhead_paged_batch {
  polyhead::PagedBatch batch;
};

struct polyhead_layer_workspace {
  polyhead::LayerWorkspace workspace;
};

namespace polyhead::inline v0::capi {

/// A layer points to its modifiers' callbacks, so they live beside it.
template <class Layer>
struct LayerHandle {
  LayerHandle(const char* call, const polyhead_modifiers* from) : modifiers(call, from) {}
  ModifierSet modifiers;
  std::optional<Layer> layer;
};

}  // namespace polyhead::inline v0::capi

struct polyhead_layer : polyhead::capi::LayerHandle<polyhead::MultiHeadAttention> {
  using LayerHandle::LayerHandle;
};

struct polyhead_latent : polyhead::capi::LayerHandle<polyhead::LatentAttention> {
  using LayerHandle::LayerHandle;
};

namespace polyhead::inline v0::capi {

/// A call that tells one number of what is behind a handle.
template <class Handle, class Tell>
polyhead_status told(const char* call, const Handle* cache, const char* name, int64_t* to,
                     const Tell& tell) {
  return guarded(call, [&] {
    need(call, "cache", cache);
    *need(call, name, to) = tell(cache->cache);
  });
}

/// guarded(), for a body that returns what became of the pool.
template <class Body>
polyhead_status guarded_pool(const char* call, polyhead_paged_cache* cache, const Body& body) {
  using Status = PagedCache::Status;
  Status status = Status::ok;
  const polyhead_status result = guarded(call, [&] {
    need(call, "cache", cache);
    status = body(cache->cache);
  });
  if (status != Status::exhausted) return result;
  return record(POLYHEAD_EXHAUSTED, call, "the pool has %lld free pages, too few",
                static_cast<long long>(cache->cache.free_pages()));
}

}  // namespace polyhead::inline v0::capi
