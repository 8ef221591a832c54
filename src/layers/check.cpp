// The layer's door: configurations and weights that do not fit are refused by name.
#include "attention/validate.hpp"
#include "base/refuse.hpp"
#include "layers/layer_state.hpp"
#include "layers/weight_views.hpp"

namespace polyhead::inline v0::layers {
namespace {

constexpr const char* kCall = "MultiHeadAttention";

void fill_in(LayerConfig& c) {
  if (c.kv_heads == 0) c.kv_heads = c.q_heads;
  if (c.head_dim == 0) {
    if (c.q_heads > 0 && c.model_dim % c.q_heads != 0) {
      base::refuse(kCall, "model_dim (", c.model_dim, ") is not a multiple of q_heads (", c.q_heads,
                   "), and head_dim is not given");
    }
    c.head_dim = c.q_heads > 0 ? c.model_dim / c.q_heads : 0;
  }
  if (c.value_dim == 0) c.value_dim = c.head_dim;
  if (c.context_dim == 0) c.context_dim = c.model_dim;
}

void check_sizes(const LayerConfig& c) {
  base::check_size(kCall, "model_dim", c.model_dim, 1, door::kMaxExtent);
  base::check_size(kCall, "q_heads", c.q_heads, 1, kMostHeads);
  base::check_size(kCall, "kv_heads", c.kv_heads, 1, kMostHeads);
  base::check_size(kCall, "head_dim", c.head_dim, 1, door::kMaxDim);
  base::check_size(kCall, "value_dim", c.value_dim, 1, door::kMaxDim);
  base::check_size(kCall, "context_dim", c.context_dim, 1, door::kMaxExtent);
  if (c.q_heads % c.kv_heads != 0) {
    base::refuse(kCall, "q_heads (", c.q_heads, ") is not a multiple of kv_heads (", c.kv_heads,
                 ")");
  }
  check_numbers(kCall, c.weight_type, c.norm_eps);
  if (c.rope) position::check_rope(kCall, *c.rope, c.head_dim);
  door::check_settings(kCall, c.mask, c.modifiers, c.q_heads);
}

void check_unprojected(const LayerConfig& c) {
  const std::int64_t q_columns = c.q_heads * c.head_dim;
  const std::int64_t k_columns = c.kv_heads * c.head_dim, v_columns = c.kv_heads * c.value_dim;
  if (c.model_dim != q_columns) {
    base::refuse(kCall, "without projections model_dim (", c.model_dim,
                 ") must be q_heads * head_dim (", q_columns, ")");
  }
  if (c.context_dim != k_columns || c.context_dim != v_columns) {
    base::refuse(kCall, "without projections context_dim (", c.context_dim,
                 ") must be kv_heads * head_dim (", k_columns, ") and kv_heads * value_dim (",
                 v_columns, ")");
  }
}

void check_given_vector(const char* name, const ConstView& view, std::int64_t size) {
  if (view.given()) check_vector(kCall, name, view, size);
}

void check_projections(const LayerConfig& c, const LayerWeights& w) {
  const std::int64_t q = c.q_heads * c.head_dim, k = c.kv_heads * c.head_dim,
                     v = c.kv_heads * c.value_dim;
  if (w.w_qkv.given()) {
    for (const auto& [name, view] : {std::pair{"w_q", w.w_q},
                                     {"w_k", w.w_k},
                                     {"w_v", w.w_v},
                                     {"b_q", w.b_q},
                                     {"b_k", w.b_k},
                                     {"b_v", w.b_v}}) {
      refuse_given(kCall, name, view, "w_qkv holds all three");
    }
    if (c.context_dim != c.model_dim) {
      base::refuse(kCall, "w_qkv needs context_dim (", c.context_dim, ") to be model_dim (",
                   c.model_dim, ")");
    }
    check_matrix(kCall, "w_qkv", w.w_qkv, q + k + v, c.model_dim);
    return check_given_vector("b_qkv", w.b_qkv, q + k + v);
  }
  refuse_given(kCall, "b_qkv", w.b_qkv, "w_qkv is not");
  check_matrix(kCall, "w_q", w.w_q, q, c.model_dim);
  check_matrix(kCall, "w_k", w.w_k, k, c.context_dim);
  check_matrix(kCall, "w_v", w.w_v, v, c.context_dim);
  check_given_vector("b_q", w.b_q, q);
  check_given_vector("b_k", w.b_k, k);
  check_given_vector("b_v", w.b_v, v);
}

}  // namespace

LayerConfig check_layer(const LayerConfig& config, const LayerWeights& w) {
  LayerConfig c = config;
  fill_in(c);
  check_sizes(c);
  if (c.use_projections) {
    check_projections(c, w);
  } else {
    check_unprojected(c);
    for (const auto& [name, view] : {std::pair{"w_q", w.w_q},
                                     {"w_k", w.w_k},
                                     {"w_v", w.w_v},
                                     {"w_qkv", w.w_qkv},
                                     {"b_q", w.b_q},
                                     {"b_k", w.b_k},
                                     {"b_v", w.b_v},
                                     {"b_qkv", w.b_qkv}}) {
      refuse_given(kCall, name, view, "use_projections is false");
    }
  }
  if (w.w_o.given()) {
    check_matrix(kCall, "w_o", w.w_o, c.model_dim, c.q_heads * c.value_dim);
    check_given_vector("b_o", w.b_o, c.model_dim);
  } else {
    refuse_given(kCall, "b_o", w.b_o, "w_o is not");
  }
  if (!c.qk_norm) {
    refuse_given(kCall, "q_norm", w.q_norm, "qk_norm is false");
    refuse_given(kCall, "k_norm", w.k_norm, "qk_norm is false");
    return c;
  }
  if (!w.q_norm.given()) base::refuse(kCall, "q_norm is not given, expected [head_dim]");
  if (!w.k_norm.given()) base::refuse(kCall, "k_norm is not given, expected [head_dim]");
  check_given_vector("q_norm", w.q_norm, c.head_dim);
  check_given_vector("k_norm", w.k_norm, c.head_dim);
  return c;
}

Rows rows_of(const char* call, const char* name, const ConstView& view, std::int64_t columns) {
  if (view.layout.axes == 2) {
    door::check_axes(call, name, view, {{"tokens", 0, door::Axis::at_least}, {"columns", columns}});
  } else {
    door::check_axes(call, name, view,
                     {{"batch", 0, door::Axis::at_least},
                      {"tokens", 0, door::Axis::at_least},
                      {"columns", columns}});
  }
  door::check_floating(call, name, view);
  door::footprint_of(call, name, view);
  const int token = view.layout.axes - 2;
  Rows rows;
  // Inputs are never written.
  rows.data = const_cast<std::byte*>(static_cast<const std::byte*>(view.data));
  rows.type = view.type;
  rows.batch = token > 0 ? view.layout.extents[0] : 1;
  rows.tokens = view.layout.extents[static_cast<std::size_t>(token)];
  rows.columns = columns;
  rows.batch_stride = token > 0 ? door::kernel_stride(view, 0) : 0;
  rows.token_stride = door::kernel_stride(view, token);
  rows.column_stride = door::kernel_stride(view, token + 1);
  std::int64_t largest = 0;
  if (__builtin_mul_overflow(rows.batch, rows.tokens, &largest) ||
      __builtin_mul_overflow(largest, std::max<std::int64_t>(columns, 1) * 64, &largest)) {
    base::refuse(call, name, ": batch (", rows.batch, ") times tokens (", rows.tokens,
                 ") overflow 64 bits");
  }
  return rows;
}

void check_same_rows(const char* call, const char* name, const Rows& rows, const char* of_name,
                     const Rows& of) {
  if (rows.batch == of.batch && rows.tokens == of.tokens) return;
  base::refuse(call, name, " has batch ", rows.batch, " and tokens ", rows.tokens,
               ", expected those of ", of_name, ", ", of.batch, " and ", of.tokens);
}

}  // namespace polyhead::inline v0::layers
