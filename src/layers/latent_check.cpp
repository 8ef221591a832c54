// LatentAttention's door, and the packing of its weights.
#include <sstream>

#include "attention/validate.hpp"
#include "base/refuse.hpp"
#include "kernels/cpu/backend.hpp"
#include "layers/latent_state.hpp"
#include "layers/weight_views.hpp"

namespace polyhead::inline v0 {
namespace layers {
namespace {

constexpr const char* kCall = "LatentAttention";

void check_sizes(const LatentConfig& c) {
  base::check_size(kCall, "model_dim", c.model_dim, 1, door::kMaxExtent);
  base::check_size(kCall, "heads", c.heads, 1, kMostHeads);
  base::check_size(kCall, "q_rank", c.q_rank, 0, door::kMaxExtent);
  base::check_size(kCall, "kv_rank", c.kv_rank, 1, door::kMaxDim);
  base::check_size(kCall, "nope_dim", c.nope_dim, 1, door::kMaxDim);
  base::check_size(kCall, "rope_dim", c.rope_dim, 0, door::kMaxDim);
  base::check_size(kCall, "value_dim", c.value_dim, 1, door::kMaxDim);
  const std::pair<const char*, std::int64_t> sums[] = {
      {"kv_rank + rope_dim", c.kv_rank + c.rope_dim},
      {"nope_dim + rope_dim", c.nope_dim + c.rope_dim}};
  for (const auto& [name, sum] : sums) {
    if (sum > door::kMaxDim) base::refuse(kCall, name, " (", sum, ") is more than ", door::kMaxDim);
  }
  check_numbers(kCall, c.weight_type, c.norm_eps);
  if (c.rope.has_value() != (c.rope_dim > 0)) {
    base::refuse(kCall, "rope is ", c.rope ? "" : "not ", "given with rope_dim ", c.rope_dim,
                 ", expected ", c.rope ? "none" : "one");
  }
  if (c.rope) position::check_rope(kCall, *c.rope, c.rope_dim);
  if (c.form != LatentForm::expanded && c.form != LatentForm::absorbed) {
    base::refuse(kCall, "form (", static_cast<int>(c.form), ") is not expanded or absorbed");
  }
  door::check_settings(kCall, c.mask, c.modifiers, c.heads);
}

}  // namespace

LatentConfig check_latent(const LatentConfig& c, const LatentWeights& w) {
  check_sizes(c);
  const std::int64_t q = c.heads * (c.nope_dim + c.rope_dim);
  if (c.q_rank == 0) {
    for (const auto& [name, view] :
         {std::pair{"w_q_down", w.w_q_down}, {"q_norm", w.q_norm}, {"w_q_up", w.w_q_up}}) {
      refuse_given(kCall, name, view, "q_rank is 0");
    }
    check_matrix(kCall, "w_q", w.w_q, q, c.model_dim);
  } else {
    refuse_given(kCall, "w_q", w.w_q, "q_rank is not 0");
    check_matrix(kCall, "w_q_down", w.w_q_down, c.q_rank, c.model_dim);
    check_vector(kCall, "q_norm", w.q_norm, c.q_rank);
    check_matrix(kCall, "w_q_up", w.w_q_up, q, c.q_rank);
  }
  check_matrix(kCall, "w_kv_down", w.w_kv_down, c.kv_rank + c.rope_dim, c.model_dim);
  check_vector(kCall, "kv_norm", w.kv_norm, c.kv_rank);
  check_matrix(kCall, "w_kv_up", w.w_kv_up, c.heads * (c.nope_dim + c.value_dim), c.kv_rank);
  check_matrix(kCall, "w_o", w.w_o, c.model_dim, c.heads * c.value_dim);
  return c;
}

}  // namespace layers

namespace {

using layers::Linear;

/// The matrix with rows and columns exchanged: the same elements, other strides.
ConstView transposed(ConstView view) {
  std::swap(view.layout.extents[0], view.layout.extents[1]);
  std::swap(view.layout.strides[0], view.layout.strides[1]);
  return view;
}

/// The part of the layer that MultiHeadAttention's stages serve too.
void make_core(layers::Layer& core, const LatentConfig& c, const Options& options) {
  core.config.model_dim = core.config.context_dim = c.model_dim;
  core.config.q_heads = core.config.kv_heads = c.heads;
  core.config.head_dim = c.nope_dim + c.rope_dim;
  core.config.value_dim = c.value_dim;
  core.config.norm_eps = c.norm_eps;
  core.config.mask = c.mask;
  core.config.modifiers = c.modifiers;
  if (!core.config.modifiers.scale)
    core.config.modifiers.scale = door::default_scale(c.nope_dim + c.rope_dim);
  core.config.weight_type = c.weight_type;
  core.activation =
      c.weight_type == ElementType::bfloat16 ? ElementType::bfloat16 : ElementType::float32;
  core.engine = layers::engine_of("LatentAttention", options);
  if (c.rope) core.rotation.emplace(*c.rope, c.rope_dim, true);
}

}  // namespace

LatentAttention::LatentAttention(const LatentConfig& config, const LatentWeights& w,
                                 const Options& options)
    : state_(std::make_unique<State>()) {
  State& layer = *state_;
  layer.config = layers::check_latent(config, w);
  const LatentConfig& c = layer.config;
  make_core(layer.core, c, options);
  const kernels::cpu::GemmTable& table = *layer.core.engine.gemm;
  const auto key_of = [&](std::int64_t head) {
    return layers::slice(w.w_kv_up, head * (c.nope_dim + c.value_dim), c.nope_dim);
  };
  const auto value_of = [&](std::int64_t head) {
    return layers::slice(w.w_kv_up, head * (c.nope_dim + c.value_dim) + c.nope_dim, c.value_dim);
  };
  const ConstView& w_q = c.q_rank > 0 ? w.w_q_up : w.w_q;
  const ConstView of_all[] = {w.w_q_down, w_q, w.w_kv_down, w.w_o};
  const ConstView of_head[] = {key_of(0), transposed(key_of(0)), value_of(0)};
  base::LargePages pages(layers::packed_bytes(table, c.weight_type, of_all) +
                         static_cast<std::size_t>(c.heads) *
                             layers::packed_bytes(table, c.weight_type, of_head));
  const auto pack = [&](const ConstView& view) {
    return Linear(table, pages, c.weight_type, {view}, {{}});
  };
  if (c.q_rank > 0) {
    layer.q_down = pack(w.w_q_down);
    layer.q_norm = layers::floats_of(w.q_norm);
  }
  layer.q = pack(w_q);
  layer.kv_down = pack(w.w_kv_down);
  layer.kv_norm = layers::floats_of(w.kv_norm);
  for (std::int64_t h = 0; h < c.heads; ++h) {
    layer.to_key.push_back(pack(key_of(h)));
    layer.absorb_key.push_back(pack(transposed(key_of(h))));
    layer.to_value.push_back(pack(value_of(h)));
  }
  layer.core.o = pack(w.w_o);
}

std::size_t LatentAttention::weight_bytes() const {
  const State& s = *state_;
  std::size_t sum = s.q_down.bytes() + s.q.bytes() + s.kv_down.bytes() + s.core.o.bytes();
  for (const auto* heads : {&s.to_key, &s.absorb_key, &s.to_value}) {
    for (const Linear& linear : *heads) sum += linear.bytes();
  }
  return sum;
}

std::string LatentAttention::describe() const {
  const LatentConfig& c = state_->config;
  std::ostringstream text;
  text << "multi-head latent attention on " << isa_name(state_->core.engine.isa) << ": model_dim "
       << c.model_dim << ", " << c.heads << " heads of " << c.nope_dim << " + " << c.rope_dim
       << " (values of " << c.value_dim << "), latents of " << c.kv_rank << " + " << c.rope_dim
       << " a token";
  if (c.q_rank > 0) text << ", query latents of " << c.q_rank;
  text << "; " << (c.form == LatentForm::expanded ? "expanded" : "absorbed") << " form, "
       << element_name(c.weight_type) << " weights (" << weight_bytes() << " bytes), "
       << state_->core.engine.crew.workers
       << (state_->core.engine.crew.workers == 1 ? " worker" : " workers");
  return text.str();
}

}  // namespace polyhead::inline v0
