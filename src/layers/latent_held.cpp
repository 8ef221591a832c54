#include "layers/latent_held.hpp"

#include "base/refuse.hpp"

namespace polyhead::inline v0::layers {
namespace {

constexpr const char* kCall = "LatentAttention::forward";

}  // namespace

LatentForm form_of(const Latent& layer, LatentForm form) {
  if (form == LatentForm::configured) return layer.config.form;
  if (form == LatentForm::expanded || form == LatentForm::absorbed) return form;
  base::refuse(kCall, "form (", static_cast<int>(form), ") is not expanded or absorbed");
}

HeldSizes held_sizes(const Latent& layer) {
  const LatentConfig& c = layer.config;
  return {1, c.kv_rank + c.rope_dim, c.kv_rank, true};
}

kernels::AttendCall resolve_latents(const Latent& layer, const Input& input, const KvView& kv,
                                    door::Inputs& read) {
  const kernels::AttendCall held = resolve_held(input, kv, held_sizes(layer), read);
  const kernels::Operand &k = held.k, &v = held.v;
  const bool begins = v.data == k.data && v.type == k.type && v.batch == k.batch &&
                      v.token == k.token && (held.value_dim == 1 || v.dim == k.dim);
  if (!begins) base::refuse(kCall, "kv.v is not the beginning of kv.k, expected values_in_keys");
  return held;
}

}  // namespace polyhead::inline v0::layers
