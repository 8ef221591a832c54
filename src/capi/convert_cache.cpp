#include "capi/convert_cache.hpp"

#include <cstddef>

namespace polyhead::inline v0::capi {

void fill_kv_view(const char* call, polyhead_kv_view* view, const KvView& from) {
  need(call, "view", view);
  check_written(call, "view", view, offsetof(polyhead_kv_view, oldest));
  polyhead_kv_view to = {};
  fill_view(&to.k, from.k);
  fill_view(&to.v, from.v);
  fill_view(&to.k_scales, from.k_scales);
  fill_view(&to.v_scales, from.v_scales);
  fill_view(&to.page_table, from.page_table);
  fill_view(&to.lengths, from.lengths);
  fill_view(&to.oldest, from.oldest);
  to.first_tokens = from.first_tokens;
  write_struct(view, to);
}

CacheFingerprint to_fingerprint(const char* call, const polyhead_cache_fingerprint* print) {
  const polyhead_cache_fingerprint from = read_struct(call, "print", print);
  return {from.model, from.weights, from.rope, from.tokens};
}

polyhead_cache_fingerprint to_c(const CacheFingerprint& print) {
  return {sizeof(polyhead_cache_fingerprint), print.model, print.weights, print.rope, print.tokens};
}

}  // namespace polyhead::inline v0::capi
