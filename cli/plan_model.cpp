#include "cli/plan_model.hpp"

#include <algorithm>

namespace polyhead::cli {
namespace {

/// What the first layer has, which is as all of a model are.
struct LayerBiases {
  cost::Biases attention;
  bool ffn = false;
};

LayerBiases biases_in(std::span<const NamedShape> tensors) {
  const auto has = [&](std::string_view name) {
    return std::ranges::find(tensors, name, &NamedShape::name) != tensors.end();
  };
  const bool fused = has("blk.0.attn_qkv.bias");
  return {{fused || has("blk.0.attn_q.bias"), fused || has("blk.0.attn_k.bias"),
           fused || has("blk.0.attn_v.bias"), has("blk.0.attn_output.bias")},
          has("blk.0.ffn_up.bias")};
}

cost::Layer layer_of(const models::ModelConfig& config, const models::LayerGeometry& geometry,
                     const LayerBiases& biases) {
  cost::Layer layer;
  layer.model_dim = config.model_dim;
  layer.q_heads = geometry.q_heads;
  layer.kv_heads = geometry.kv_heads;
  layer.head_dim = geometry.head_dim;
  layer.value_dim = geometry.value_dim;
  layer.window = config.causal ? geometry.window : 0;
  layer.attends = config.causal ? cost::Attends::causal : cost::Attends::all;
  layer.biases = biases.attention;
  layer.qk_norm = config.qk_norm;
  layer.ffn.ffn_dim = config.ffn_dim;
  layer.ffn.gated = config.gated_ffn;
  layer.ffn.biases = biases.ffn;
  return layer;
}

bool alike(const cost::Layer& a, const cost::Layer& b) {
  return a.q_heads == b.q_heads && a.kv_heads == b.kv_heads && a.head_dim == b.head_dim &&
         a.value_dim == b.value_dim && a.window == b.window;
}

/// Numbers names that several kinds of layers have.
void tell_apart(std::vector<cost::Layer>& layers) {
  const std::vector<cost::Layer> named = layers;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::string& name = named[i].name;
    if (std::ranges::count(named, name, &cost::Layer::name) == 1) continue;
    const auto at = named.begin() + static_cast<std::ptrdiff_t>(i) + 1;
    layers[i].name =
        (name.empty() ? "kind" : name) + " " +
        std::to_string(std::ranges::count(named.begin(), at, name, &cost::Layer::name));
  }
}

/// Norms of one layer and of the whole model, as the tensors have them.
void count_norms(std::span<const NamedShape> tensors, cost::ModelDescription& model) {
  std::int64_t of_layer = 0, others = 0;
  for (const NamedShape& tensor : tensors) {
    const std::string_view name = tensor.name;
    const bool in_layer = name.starts_with("blk.");
    const bool norm = name.find("norm") != std::string_view::npos;
    const bool of_heads = name.find("attn_q_norm") != std::string_view::npos ||
                          name.find("attn_k_norm") != std::string_view::npos;
    if (in_layer && norm && !of_heads && name.starts_with("blk.0."))
      of_layer += elements(tensor.shape);
    if (!in_layer && (norm || name.starts_with("token_types"))) others += elements(tensor.shape);
    if (name == "position_embd.weight") model.position_rows = tensor.shape[0];
  }
  for (cost::Layer& layer : model.layers) layer.norm_parameters = of_layer;
  model.other_parameters = others;
}

}  // namespace

std::int64_t elements(std::span<const std::int64_t> shape) {
  constexpr std::int64_t kMost = cost::kUnlimited + 1;
  std::int64_t count = 1;
  for (const std::int64_t extent : shape)
    count = count > kMost / std::max<std::int64_t>(extent, 1) ? kMost : count * extent;
  return count;
}

cost::ModelDescription description_of(const models::ModelConfig& config,
                                      std::span<const NamedShape> tensors) {
  cost::ModelDescription model;
  const LayerBiases biases = biases_in(tensors);
  for (const models::LayerGeometry& geometry : config.layers) {
    const cost::Layer layer = layer_of(config, geometry, biases);
    const auto known = std::ranges::find_if(
        model.layers, [&](const cost::Layer& other) { return alike(other, layer); });
    if (known == model.layers.end()) {
      model.layers.push_back(layer);
    } else {
      ++known->count;
    }
  }
  const bool windows = std::ranges::any_of(model.layers, &cost::Layer::window);
  for (cost::Layer& layer : model.layers)
    layer.name = layer.window > 0 ? "local" : windows ? "global" : "";
  tell_apart(model.layers);
  model.vocab_size = config.vocab_size;
  model.tied_output = config.tied_output;
  model.output_matrix = config.causal;
  model.context_length = config.context_length;
  count_norms(tensors, model);
  return model;
}

}  // namespace polyhead::cli
