// Caches of latents: values are the first value_dim elements of the keys and not stored again.
#pragma once

#include "base/codes.hpp"
#include "base/refuse.hpp"
#include "cache/append.hpp"
#include "cache/store.hpp"
#include "polyhead/kv_view.h"

namespace polyhead::inline v0::cache {

/// Refuses a configuration of values_in_keys whose values are not such. Those that are the
/// beginning of the keys' codes end where a block of them does, and have its scales.
template <class Config>
void check_values_in_keys(const char* call, const Config& config) {
  if (!config.values_in_keys) return;
  if (config.value_dim > config.head_dim) {
    base::refuse(call, "value_dim (", config.value_dim, ") exceeds head_dim (", config.head_dim,
                 "), expected at most that with values_in_keys");
  }
  if (!base::is_code(config.type)) return;
  if (config.value_dim % base::kCodeBlock != 0 && config.value_dim != config.head_dim) {
    base::refuse(call, "value_dim (", config.value_dim, ") is not a multiple of ", base::kCodeBlock,
                 ", expected that or head_dim (", config.head_dim, ") of values_in_keys as ",
                 element_name(config.type));
  }
  if (config.key_scales.given()) {
    base::refuse(call,
                 "key_scales are given, expected scales by token with values_in_keys: values have "
                 "none by channel");
  }
}

/// The dims of the store of values: none where they are in the keys.
template <class Config>
std::int64_t stored_value_dim(const Config& config) {
  return config.values_in_keys ? 0 : config.value_dim;
}

/// Refuses values for a cache that has them in its keys.
inline void refuse_values(const char* call, const ConstView& v) {
  if (v.given()) base::refuse(call, "v is given, but values are in the keys");
}

/// Rows to append of each sequence, [batch, tokens, kv_heads, ..]; no v where the keys have it.
template <class Config>
void check_kv(const char* call, const Config& c, const ConstView& k, const ConstView& v) {
  const std::int64_t tokens = tokens_of(k);
  check_rows(call, "k", k, {c.batch, tokens, c.kv_heads, c.head_dim});
  if (c.values_in_keys) return refuse_values(call, v);
  check_rows(call, "v", v, {c.batch, tokens, c.kv_heads, c.value_dim});
}

/// The rows of `view` and their scales, as two stores have them.
template <class Config>
void show_stores(const Config& config, const Store& keys, const Store& values, KvView& view) {
  view.k = keys.rows();
  view.k_scales = keys.scales();
  if (!config.values_in_keys) {
    view.v = values.rows();
    view.v_scales = values.scales();
    return;
  }
  view.v = view.k;
  view.v.layout.extents[3] = config.value_dim;
  view.v_scales = view.k_scales;
  if (view.v_scales.given()) view.v_scales.layout.extents[3] = base::code_blocks(config.value_dim);
}

}  // namespace polyhead::inline v0::cache
