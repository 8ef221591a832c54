// MultiHeadAttention: made once, and its steps one at a time.
#include "polyhead/layer.h"

#include <sstream>

#include "attention/validate.hpp"
#include "base/refuse.hpp"
#include "kernels/cpu/backend.hpp"
#include "layers/layer_state.hpp"
#include "layers/weight_views.hpp"

namespace polyhead::inline v0 {
namespace {

void pack(layers::Layer& layer, const LayerWeights& w) {
  const kernels::cpu::GemmTable& table = *layer.engine.gemm;
  const ElementType type = layer.config.weight_type;
  const std::int64_t q = layer.q_columns(), kv = layer.k_columns() + layer.v_columns();
  const ConstView w_q = layers::slice(w.w_qkv, 0, q), w_kv = layers::slice(w.w_qkv, q, kv);
  base::LargePages pages(
      layers::packed_bytes(table, type, {{w_q, w_kv, w.w_q, w.w_k, w.w_v, w.w_o}}));
  const auto linear = [&](std::initializer_list<ConstView> weights,
                          std::initializer_list<ConstView> biases) {
    return layers::Linear(table, pages, type, weights, biases);
  };
  if (w.w_qkv.given()) {
    layer.q = linear({w_q}, {layers::slice(w.b_qkv, 0, q)});
    layer.kv = linear({w_kv}, {layers::slice(w.b_qkv, q, kv)});
  } else if (layer.config.use_projections) {
    layer.q = linear({w.w_q}, {w.b_q});
    layer.kv = linear({w.w_k, w.w_v}, {w.b_k, w.b_v});
  }
  if (w.w_o.given()) layer.o = linear({w.w_o}, {w.b_o});
}

}  // namespace

namespace layers {

Engine engine_of(const char* call, const Options& options) {
  const Isa isa = resolve_isa(options.isa);
  return {isa, &kernels::cpu::gemm(isa), &kernels::cpu::rowwise(isa), &kernels::cpu::backend(isa),
          crew_of(call, options)};
}

}  // namespace layers

LayerWorkspace::LayerWorkspace() : state_(std::make_unique<State>()) {}
LayerWorkspace::LayerWorkspace(LayerWorkspace&&) noexcept = default;
LayerWorkspace& LayerWorkspace::operator=(LayerWorkspace&&) noexcept = default;
LayerWorkspace::~LayerWorkspace() = default;
std::size_t LayerWorkspace::bytes() const { return state_ ? state_->bytes() : 0; }

MultiHeadAttention::MultiHeadAttention(const LayerConfig& config, const LayerWeights& weights,
                                       const Options& options)
    : state_(std::make_unique<State>()) {
  State& layer = *state_;
  layer.config = layers::check_layer(config, weights);
  layer.activation = layer.config.weight_type == ElementType::bfloat16 ? ElementType::bfloat16
                                                                       : ElementType::float32;
  layer.engine = layers::engine_of("MultiHeadAttention", options);
  pack(layer, weights);
  if (layer.config.qk_norm) {
    layer.q_norm = layers::floats_of(weights.q_norm);
    layer.k_norm = layers::floats_of(weights.k_norm);
  }
  if (layer.config.rope) layer.rotation.emplace(*layer.config.rope, layer.config.head_dim, true);
}

MultiHeadAttention::MultiHeadAttention(MultiHeadAttention&&) noexcept = default;
MultiHeadAttention& MultiHeadAttention::operator=(MultiHeadAttention&&) noexcept = default;
MultiHeadAttention::~MultiHeadAttention() = default;

const LayerConfig& MultiHeadAttention::config() const { return state_->config; }
ElementType MultiHeadAttention::activation_type() const { return state_->activation; }
std::int64_t MultiHeadAttention::packed_dim() const { return state_->packed_columns(); }

std::size_t MultiHeadAttention::weight_bytes() const {
  return state_->q.bytes() + state_->kv.bytes() + state_->o.bytes();
}

std::string MultiHeadAttention::describe() const {
  const layers::Layer& layer = *state_;
  const LayerConfig& c = layer.config;
  std::ostringstream text;
  text << "multi-head attention on " << isa_name(layer.engine.isa) << ": model_dim " << c.model_dim
       << ", " << c.q_heads << " query heads and " << c.kv_heads << " KV heads of " << c.head_dim;
  if (c.value_dim != c.head_dim) text << " (values of " << c.value_dim << ")";
  if (c.context_dim != c.model_dim) text << ", context_dim " << c.context_dim;
  if (c.qk_norm) text << ", q and k normalised";
  if (c.rope) text << ", RoPE";
  text << "; " << (c.use_projections ? "projections of " : "no input projections, ")
       << element_name(c.weight_type) << " weights (" << weight_bytes() << " bytes), "
       << element_name(layer.activation) << " activations, " << layer.engine.crew.workers
       << (layer.engine.crew.workers == 1 ? " worker" : " workers");
  return text.str();
}

KvCacheConfig MultiHeadAttention::cache_config(std::int64_t batch, std::int64_t capacity,
                                               bool growing) const {
  const LayerConfig& c = state_->config;
  return {batch, c.kv_heads, c.head_dim, c.value_dim, state_->activation, capacity, growing};
}

namespace {

/// Heads side by side in rows, from column `first` on.
View heads_in(const layers::Rows& rows, std::int64_t first, std::int64_t heads, std::int64_t dim) {
  const std::int64_t bytes = layers::float_bytes(rows.type), step = rows.column_step() / bytes;
  std::byte* const data = rows.data == nullptr ? nullptr : rows.data + first * step * bytes;
  return {data,
          rows.type,
          {{rows.batch, rows.tokens, heads, dim},
           {rows.batch_stride / bytes, rows.token_stride / bytes, dim * step, step}}};
}

constexpr const char* kSplit = "MultiHeadAttention::split";

}  // namespace

LayerHeads MultiHeadAttention::split(View packed) const {
  const LayerConfig& c = state_->config;
  const layers::Rows rows = layers::rows_of(kSplit, "packed", packed, packed_dim());
  const std::int64_t k = state_->q_columns(), v = k + state_->k_columns();
  return {heads_in(rows, 0, c.q_heads, c.head_dim), heads_in(rows, k, c.kv_heads, c.head_dim),
          heads_in(rows, v, c.kv_heads, c.value_dim)};
}

LayerHeads MultiHeadAttention::split(View q, View kv) const {
  const LayerConfig& c = state_->config;
  const std::int64_t v = state_->k_columns();
  const layers::Rows q_rows = layers::rows_of(kSplit, "q", q, state_->q_columns()),
                     kv_rows = layers::rows_of(kSplit, "kv", kv, v + state_->v_columns());
  return {heads_in(q_rows, 0, c.q_heads, c.head_dim), heads_in(kv_rows, 0, c.kv_heads, c.head_dim),
          heads_in(kv_rows, v, c.kv_heads, c.value_dim)};
}

ConstView MultiHeadAttention::concat(ConstView heads) const {
  constexpr const char* kCall = "MultiHeadAttention::concat";
  const LayerConfig& c = state_->config;
  const door::Axis tokens{"tokens", 0, door::Axis::at_least}, q_heads{"q_heads", c.q_heads},
      value_dim{"value_dim", c.value_dim};
  if (heads.layout.axes == 3)
    door::check_axes(kCall, "heads", heads, {tokens, q_heads, value_dim});
  else
    door::check_axes(kCall, "heads", heads,
                     {{"batch", 0, door::Axis::at_least}, tokens, q_heads, value_dim});
  const int head = heads.layout.axes - 2;  // its axis
  const auto& strides = heads.layout.strides;
  const std::int64_t apart = strides[head];
  const std::int64_t step = c.value_dim > 1 ? strides[head + 1] : (c.q_heads > 1 ? apart : 1);
  if (c.q_heads > 1 && apart != c.value_dim * step) {
    base::refuse(kCall, "heads lie ", apart, " elements apart, expected ", c.value_dim * step,
                 ", side by side");
  }
  ConstView concatenated = heads;
  concatenated.layout.axes = head + 1;
  concatenated.layout.extents[head] = c.q_heads * c.value_dim;
  concatenated.layout.strides[head] = step;
  return concatenated;
}

}  // namespace polyhead::inline v0
