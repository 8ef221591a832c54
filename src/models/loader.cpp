#include "models/loader.hpp"

namespace polyhead::inline v0::models {
namespace {

std::int64_t columns_of(const WeightTensor& tensor) { return tensor.shape.back(); }

std::int64_t rows_of(const WeightTensor& tensor) {
  std::int64_t rows = 1;
  for (std::size_t axis = 0; axis + 1 < tensor.shape.size(); ++axis) rows *= tensor.shape[axis];
  return rows;
}

LayerConfig layer_config(const ModelConfig& model, const LayerGeometry& layer) {
  LayerConfig config;
  config.model_dim = config.context_dim = model.model_dim;
  config.q_heads = layer.q_heads;
  config.kv_heads = layer.kv_heads;
  config.head_dim = layer.head_dim;
  config.value_dim = layer.value_dim;
  config.qk_norm = model.qk_norm;
  config.norm_eps = model.norm_eps;
  config.rope = layer.rope;
  if (model.causal) config.mask = causal();
  if (layer.window > 0) {
    config.mask = config.mask & (model.causal ? window(layer.window - 1, 0)
                                              : window(layer.window / 2, layer.window / 2));
  }
  if (model.attention_scale != 0.0f) config.modifiers.scale = model.attention_scale;
  config.modifiers.soft_cap = model.attention_soft_cap;
  return config;
}

/// What a matrix of one tensor has for the product: its own form where that is kept.
kernels::cpu::GemmWeights packed_shape(const WeightTensor& tensor, ElementType weights) {
  kernels::cpu::GemmWeights shape;
  shape.type = weights;
  shape.in = columns_of(tensor);
  shape.out = rows_of(tensor);
  if (weights == ElementType::float32) shape.blocks = base::block_form(tensor.type);
  return shape;
}

/// What all matrices of the file take, embeddings that are not packed among them, but for parts of
/// several forms, which take more. Memory that is not used is never touched.
std::size_t room_for_matrices(const ModelFile& file, const kernels::cpu::GemmTable& table,
                              ElementType weights) {
  std::size_t sum = 0;
  for (const WeightTensor& tensor : file.tensors()) {
    if (tensor.shape.size() == 2) sum += layers::packed_bytes(table, packed_shape(tensor, weights));
  }
  return sum;
}

}  // namespace

std::string block_name(std::int64_t layer, const char* tensor) {
  return "blk." + std::to_string(layer) + "." + tensor;
}

Loader::Loader(const ModelFile& file, const layers::Engine& engine, ElementType weights)
    : file_(file),
      engine_(engine),
      weights_(weights),
      pages_(room_for_matrices(file, *engine.gemm, weights)) {}

std::vector<float> Loader::floats(const std::string& name) const {
  const WeightTensor& tensor = file_.tensor(name);
  std::vector<float> values(static_cast<std::size_t>(rows_of(tensor) * columns_of(tensor)));
  dequantise_rows(tensor, 0, rows_of(tensor), values.data());
  return values;
}

NormWeights Loader::norm(const std::string& name) const {
  NormWeights norm{floats(name + ".weight"), {}};
  if (file_.has(name + ".bias")) norm.bias = floats(name + ".bias");
  if (config().norm_plus_one) {
    for (float& weight : norm.weight) weight += 1.0f;
  }
  return norm;
}

Loader::Part Loader::whole(const std::string& name) const {
  return {name, 0, rows_of(file_.tensor(name + ".weight"))};
}

layers::Linear Loader::linear(const std::string& name) const { return stacked({whole(name)}); }

layers::Linear Loader::stacked(const std::vector<Part>& parts) const {
  const std::int64_t in = columns_of(file_.tensor(parts.front().name + ".weight"));
  layers::MatrixSource source{in, 0, {}};
  std::vector<layers::BlockRows> blocks;
  bool any_bias = false;
  for (const Part& part : parts) {
    const WeightTensor& tensor = file_.tensor(part.name + ".weight");
    source.out += part.count;
    any_bias = any_bias || file_.has(part.name + ".bias");
    const std::int64_t row_bytes = in / block_weights(tensor.type) * block_bytes(tensor.type);
    blocks.push_back(
        {tensor.type, part.count, tensor.data.data() + part.first * row_bytes, row_bytes});
  }
  std::vector<float> bias(any_bias ? static_cast<std::size_t>(source.out) : 0);
  std::int64_t at = 0;
  for (const Part& part : parts) {
    if (file_.has(part.name + ".bias")) {
      const std::vector<float> all = floats(part.name + ".bias");
      std::copy_n(all.begin() + part.first, part.count, bias.begin() + at);
    }
    at += part.count;
  }
  // Quantised weights stay as they are: the same bits as float32, from a fraction of the memory.
  if (weights_ == ElementType::float32 && layers::form_of(blocks).bits != 0) {
    return {engine_, pages_, in, blocks, std::move(bias)};
  }
  source.rows = [&](std::int64_t first, std::int64_t count, float* to) {
    std::int64_t begin = 0;  // of the part
    for (const Part& part : parts) {
      const std::int64_t from = std::max(first, begin);
      const std::int64_t end = std::min(first + count, begin + part.count);
      if (from < end) {
        dequantise_rows(file_.tensor(part.name + ".weight"), part.first + from - begin, end - from,
                        to + (from - first) * in);
      }
      begin += part.count;
    }
  };
  return {engine_, pages_, weights_, source, std::move(bias)};
}

layers::Layer Loader::attention(std::int64_t index) const {
  layers::Layer layer;
  layer.config = layer_config(config(), config().layers[static_cast<std::size_t>(index)]);
  layer.config.weight_type = weights_;
  layer.activation = weights_;
  layer.engine = engine_;
  const auto name = [&](const char* tensor) { return block_name(index, tensor); };
  if (has(name("attn_qkv.weight"))) {
    const std::int64_t q = layer.q_columns(), kv = layer.k_columns() + layer.v_columns();
    layer.q = stacked({{name("attn_qkv"), 0, q}});
    layer.kv = stacked({{name("attn_qkv"), q, kv}});
  } else {
    layer.q = linear(name("attn_q"));
    layer.kv = stacked({whole(name("attn_k")), whole(name("attn_v"))});
  }
  layer.o = linear(name("attn_output"));
  if (layer.config.qk_norm) {
    layer.q_norm = norm(name("attn_q_norm")).weight;
    layer.k_norm = norm(name("attn_k_norm")).weight;
  }
  if (layer.config.rope) layer.rotation.emplace(*layer.config.rope, layer.config.head_dim, true);
  return layer;
}

FeedForward Loader::feed_forward(std::int64_t index) const {
  FeedForward network;
  if (config().gated_ffn) network.gate = linear(block_name(index, "ffn_gate"));
  network.up = linear(block_name(index, "ffn_up"));
  network.down = linear(block_name(index, "ffn_down"));
  return network;
}

}  // namespace polyhead::inline v0::models
