#include "layers/latent_held.hpp"

#include <utility>

#include "base/refuse.hpp"
#include "layers/latent_pages.hpp"

namespace polyhead::inline v0::layers {
namespace {

constexpr const char* kCall = "LatentAttention::forward";

}  // namespace

LatentForm form_of(const Latent& layer, LatentForm form) {
  if (form == LatentForm::configured) return layer.config.form;
  if (form == LatentForm::expanded || form == LatentForm::absorbed) return form;
  base::refuse(kCall, "form (", static_cast<int>(form), ") is not expanded or absorbed");
}

void check_cache(const Latent& layer, const Input& input, const KvCache& cache, LatentForm form) {
  const LatentConfig& c = layer.config;
  const KvCacheConfig& has = cache.config();
  if (input.ragged) base::refuse(kCall, "offsets are given with a cache");
  if (!has.values_in_keys) {
    base::refuse(kCall, "cache stores values apart, expected values_in_keys (cache_config)");
  }
  const struct {
    const char* name;
    std::int64_t found, expected;
  } sizes[] = {{"batch", has.batch, input.rows.batch},
               {"kv_heads", has.kv_heads, 1},
               {"head_dim", has.head_dim, c.kv_rank + c.rope_dim},
               {"value_dim", has.value_dim, c.kv_rank}};
  for (const auto& size : sizes) {
    if (size.found != size.expected) {
      base::refuse(kCall, "cache has ", size.name, " ", size.found, ", expected ", size.expected);
    }
  }
  if (form == LatentForm::expanded && has.type != layer.core.activation) {
    base::refuse(kCall, "cache is ", element_name(has.type), ", expected ",
                 element_name(layer.core.activation), " for the expanded form");
  }
}

kernels::AttendCall resolve_latents(const Latent& layer, const Input& input, const KvView& kv,
                                    LatentForm form, door::Inputs& read) {
  const LatentConfig& c = layer.config;
  kernels::AttendCall held;
  held.batch = input.sequences;
  held.head_dim = c.kv_rank + c.rope_dim;
  door::resolve_view(kCall, kv, true, held, read);
  const struct {
    const char* name;
    std::int64_t found, expected;
  } sizes[] = {{"kv.k: kv_heads", held.kv_heads, 1},
               {"kv.v: value_dim", held.value_dim, c.kv_rank}};
  for (const auto& size : sizes) {
    if (size.found != size.expected)
      base::refuse(kCall, size.name, " is ", size.found, ", expected ", size.expected);
  }
  const kernels::Operand &k = held.k, &v = held.v;
  const bool begins = v.data == k.data && v.type == k.type && v.batch == k.batch &&
                      v.token == k.token && (c.kv_rank == 1 || v.dim == k.dim);
  if (!begins) base::refuse(kCall, "kv.v is not the beginning of kv.k, expected values_in_keys");
  if (form == LatentForm::expanded && k.type != layer.core.activation) {
    base::refuse(kCall, "kv.k is ", element_name(k.type), ", expected ",
                 element_name(layer.core.activation), " for the expanded form");
  }
  return held;
}

void check_outputs(const View& y, const LayerCall& call, const door::Inputs& read) {
  const RowStatistics& rows = call.statistics;
  for (const auto& [output, view] : {std::pair{"y", y},
                                     {"lse", call.lse},
                                     {"statistics.entropy", rows.entropy},
                                     {"statistics.max_weight", rows.max_weight},
                                     {"statistics.max_key", rows.max_key}}) {
    if (!view.given()) continue;
    door::check_writable(kCall, door::footprint_of(kCall, output, view), read.prints, read.count);
  }
}

const std::int64_t* starts_in(const Input& input, const kernels::AttendCall& held,
                              const ConstView& lengths, Buffer& memory) {
  auto* const starts = reinterpret_cast<std::int64_t*>(memory.need(input.sequences, 8));
  for (std::int64_t b = 0; b < input.sequences; ++b) {
    const std::int64_t count = input.ragged      ? input.offsets[b + 1] - input.offsets[b]
                               : lengths.given() ? door::integers_of(lengths)[b]
                                                 : input.rows.tokens;
    starts[b] = tokens_held(held, b) - count;
    if (starts[b] < 0) {
      base::refuse(kCall, "kv has ", tokens_held(held, b), " tokens of sequence ", b,
                   ", expected at least the ", count, " of x: their latents come first");
    }
  }
  return starts;
}

}  // namespace polyhead::inline v0::layers
