// Models by name. Each is the shape its publishers give (config.json of the checkpoint, or the
// paper); tests hold the sums to the parameters the checkpoints have.
#include <utility>

#include "polyhead/cost.h"

namespace polyhead::inline v0::cost {
namespace {

struct Shape {
  std::int64_t layers, model_dim, q_heads, kv_heads, head_dim, ffn_dim;
};

Layer layer_of(const Shape& shape) {
  Layer layer;
  layer.count = shape.layers;
  layer.model_dim = shape.model_dim;
  layer.q_heads = shape.q_heads;
  layer.kv_heads = shape.kv_heads;
  layer.head_dim = layer.value_dim = shape.head_dim;
  layer.ffn.ffn_dim = shape.ffn_dim;
  layer.norm_parameters = 2 * shape.model_dim;  // two RMS norms
  return layer;
}

struct Named {
  const char *id, *name, *source;
  std::vector<std::string> aliases;
};

ModelDescription model_of(Named named, std::vector<Layer> layers, std::int64_t vocab, bool tied,
                          std::int64_t context) {
  ModelDescription model;
  model.id = named.id;
  model.name = named.name;
  model.source = named.source;
  model.aliases = std::move(named.aliases);
  model.layers = std::move(layers);
  model.vocab_size = vocab;
  model.tied_output = tied;
  model.context_length = context;
  model.other_parameters = model.layers.front().model_dim;  // the last RMS norm
  return model;
}

ModelDescription llama(Named named, const Shape& shape, std::int64_t vocab, std::int64_t context,
                       bool tied = false) {
  return model_of(std::move(named), {layer_of(shape)}, vocab, tied, context);
}

/// Layer norms with biases, biases everywhere, two-matrix feed-forward.
Layer with_biases(Layer layer) {
  layer.biases = {true, true, true, true};
  layer.ffn.gated = false;
  layer.ffn.biases = true;
  layer.norm_parameters = 4 * layer.model_dim;
  return layer;
}

ModelDescription transformer(Named named, std::int64_t model_dim, std::int64_t heads) {
  Layer layer = layer_of({6, model_dim, heads, heads, 64, 4 * model_dim});
  layer.ffn.gated = false;
  layer.ffn.biases = true;
  layer.norm_parameters = 4 * model_dim;
  Layer encoder = layer, self = layer, cross = layer;
  encoder.name = "encoder";
  encoder.attends = Attends::all;
  self.name = "decoder self";
  self.ffn = {};
  self.norm_parameters = 2 * model_dim;
  cross.name = "decoder cross";
  cross.attends = Attends::source;
  ModelDescription model = model_of(std::move(named), {encoder, self, cross}, 37000, true, 512);
  model.other_parameters = 0;
  model.weight_type = "f32";
  return model;
}

ModelDescription bert_base() {
  Layer layer = with_biases(layer_of({12, 768, 12, 12, 64, 3072}));
  layer.attends = Attends::all;
  ModelDescription model = model_of({"bert-base",
                                     "BERT-base (uncased)",
                                     "Devlin et al. 2018, table 1; google-bert/bert-base-uncased",
                                     {"bert", "bert-base-uncased"}},
                                    {layer}, 30522, true, 512);
  model.output_matrix = false;
  model.position_rows = 512;
  model.other_parameters = 2 * 768 + 2 * 768 + 768 * 768 + 768;  // token types, norm, pooler
  model.weight_type = "f32";
  return model;
}

ModelDescription gpt(Named named, const Shape& shape, std::int64_t positions, const char* type) {
  ModelDescription model =
      model_of(std::move(named), {with_biases(layer_of(shape))}, 50257, true, positions);
  model.position_rows = positions;
  model.other_parameters = 2 * shape.model_dim;
  model.weight_type = type;
  return model;
}

/// Five local layers, then a global one; what is left over is local.
ModelDescription gemma3(Named named, const Shape& shape, std::int64_t window, std::int64_t vocab,
                        std::int64_t context) {
  Layer layer = layer_of(shape);
  layer.qk_norm = true;
  layer.norm_parameters = 4 * shape.model_dim;
  Layer local = layer, global = layer;
  global.name = "global";
  global.count = shape.layers / 6;
  local.name = "local";
  local.count = shape.layers - global.count;
  local.window = window;
  return model_of(std::move(named), {local, global}, vocab, true, context);
}

ModelDescription qwen3(Named named, const Shape& shape, bool tied, std::int64_t experts = 0) {
  Layer layer = layer_of(shape);
  layer.qk_norm = true;
  layer.ffn.experts = experts;
  layer.ffn.experts_used = experts > 0 ? 8 : 0;
  return model_of(std::move(named), {layer}, 151936, tied, 40960);
}

ModelDescription deepseek_v3() {
  Layer dense = layer_of({3, 7168, 128, 128, 192, 18432});
  dense.value_dim = 128;
  dense.latent = {1536, 512, 128, 64};
  dense.name = "dense";
  Layer experts = dense;
  experts.name = "experts";
  experts.count = 58;
  experts.ffn.ffn_dim = 2048;
  experts.ffn.experts = 256;
  experts.ffn.experts_used = 8;
  experts.ffn.shared_dim = 2048;
  experts.ffn.router_bias = true;
  ModelDescription model =
      model_of({"deepseek-v3",
                "DeepSeek-V3 (MLA)",
                "DeepSeek-AI 2024, section 4.2; deepseek-ai/DeepSeek-V3, without the MTP layer",
                {"deepseek-r1", "deepseek-v3-671b"}},
               {dense, experts}, 129280, false, 163840);
  model.weight_type = "fp8";
  return with_vocabulary_as(std::move(model), "bf16");
}

ModelDescription gpt_oss(Named named, std::int64_t layers, std::int64_t experts) {
  Layer full = layer_of({layers / 2, 2880, 64, 8, 64, 2880});
  full.biases = {true, true, true, true};
  full.sinks = true;
  full.ffn.biases = true;
  full.ffn.experts = experts;
  full.ffn.experts_used = 4;
  full.name = "full";
  Layer windowed = full;
  windowed.name = "window";
  windowed.window = 128;
  ModelDescription model = model_of(std::move(named), {windowed, full}, 201088, false, 131072);
  model.expert_type = "mxfp4";
  return model;
}

std::vector<ModelDescription> make_presets() {
  constexpr std::int64_t kLlama3Context = 131072, kLlama3Vocab = 128256;
  std::vector<ModelDescription> m;
  const char* const vaswani =
      "Vaswani et al. 2017, table 3; vocabulary of 37,000, no biases of attention";
  m.push_back(transformer(
      {"transformer-base", "Transformer (base, 2017)", vaswani, {"transformer"}}, 512, 8));
  m.push_back(transformer({"transformer-big", "Transformer (big, 2017)", vaswani, {}}, 1024, 16));
  m.push_back(bert_base());
  m.push_back(
      gpt({"gpt-2-small", "GPT-2 small", "openai-community/gpt2", {"gpt-2", "gpt2", "gpt2-small"}},
          {12, 768, 12, 12, 64, 3072}, 1024, "f32"));
  m.push_back(gpt({"gpt-3-175b",
                   "GPT-3 175B",
                   "Brown et al. 2020, table 2.1; its sparse layers counted as dense",
                   {"gpt-3", "gpt3", "gpt3-175b"}},
                  {96, 12288, 96, 96, 128, 49152}, 2048, "f16"));
  m.push_back(llama({"llama-2-70b", "Llama 2 70B", "meta-llama/Llama-2-70b-hf", {"llama2-70b"}},
                    {80, 8192, 64, 8, 128, 28672}, 32000, 4096));
  m.push_back(llama({"llama-3-8b",
                     "Llama 3.1 8B",
                     "meta-llama/Llama-3.1-8B",
                     {"llama-3.1-8b", "llama3-8b", "llama3.1-8b"}},
                    {32, 4096, 32, 8, 128, 14336}, kLlama3Vocab, kLlama3Context));
  m.push_back(llama({"llama-3-70b",
                     "Llama 3.1 70B",
                     "meta-llama/Llama-3.1-70B",
                     {"llama-3.1-70b", "llama-3.3-70b", "llama3-70b", "llama3.1-70b"}},
                    {80, 8192, 64, 8, 128, 28672}, kLlama3Vocab, kLlama3Context));
  m.push_back(llama({"llama-3-405b",
                     "Llama 3.1 405B",
                     "meta-llama/Llama-3.1-405B",
                     {"llama-3.1-405b", "llama3-405b", "llama3.1-405b"}},
                    {126, 16384, 128, 8, 128, 53248}, kLlama3Vocab, kLlama3Context));
  m.push_back(llama({"mistral-7b",
                     "Mistral 7B v0.1",
                     "mistralai/Mistral-7B-v0.1; window of 4,096",
                     {"mistral", "mistral-7b-v0.1"}},
                    {32, 4096, 32, 8, 128, 14336}, 32000, 32768));
  m.back().layers[0].window = 4096;
  const char* const gemma = "Gemma 3 report 2025; its config.json; text model only";
  m.push_back(gemma3({"gemma-3-270m", "Gemma 3 270M", gemma, {"gemma3-270m"}},
                     {18, 640, 4, 1, 256, 2048}, 512, 262144, 32768));
  m.push_back(gemma3({"gemma-3-1b", "Gemma 3 1B", gemma, {"gemma3-1b"}},
                     {26, 1152, 4, 1, 256, 6912}, 512, 262144, 32768));
  m.push_back(gemma3({"gemma-3-27b", "Gemma 3 27B", gemma, {"gemma3-27b"}},
                     {62, 5376, 32, 16, 128, 21504}, 1024, 262208, 131072));
  const char* const qwen = "Qwen3 report 2025, tables 1 and 2; its config.json";
  m.push_back(qwen3({"qwen3-0.6b", "Qwen3 0.6B", qwen, {"qwen-3-0.6b"}},
                    {28, 1024, 16, 8, 128, 3072}, true));
  m.push_back(qwen3({"qwen3-1.7b", "Qwen3 1.7B", qwen, {"qwen-3-1.7b"}},
                    {28, 2048, 16, 8, 128, 6144}, true));
  m.push_back(
      qwen3({"qwen3-4b", "Qwen3 4B", qwen, {"qwen-3-4b"}}, {36, 2560, 32, 8, 128, 9728}, true));
  m.push_back(qwen3({"qwen3-8b", "Qwen3 8B", qwen, {"qwen3", "qwen-3-8b"}},
                    {36, 4096, 32, 8, 128, 12288}, false));
  m.push_back(qwen3({"qwen3-14b", "Qwen3 14B", qwen, {"qwen-3-14b"}}, {40, 5120, 40, 8, 128, 17408},
                    false));
  m.push_back(qwen3({"qwen3-32b", "Qwen3 32B", qwen, {"qwen-3-32b"}}, {64, 5120, 64, 8, 128, 25600},
                    false));
  m.push_back(qwen3({"qwen3-30b-a3b", "Qwen3 30B-A3B", qwen, {"qwen-3-30b-a3b"}},
                    {48, 2048, 32, 4, 128, 768}, false, 128));
  m.push_back(qwen3({"qwen3-235b-a22b", "Qwen3 235B-A22B", qwen, {"qwen-3-235b-a22b"}},
                    {94, 4096, 64, 4, 128, 1536}, false, 128));
  m.push_back(deepseek_v3());
  m.push_back(llama({"smollm2-135m", "SmolLM2 135M", "HuggingFaceTB/SmolLM2-135M", {"smollm2"}},
                    {30, 576, 9, 3, 64, 1536}, 49152, 8192, true));
  const char* const oss = "gpt-oss model card 2025, table 1; its config.json";
  m.push_back(gpt_oss({"gpt-oss-20b", "gpt-oss 20B", oss, {"gpt-oss"}}, 24, 32));
  m.push_back(gpt_oss({"gpt-oss-120b", "gpt-oss 120B", oss, {}}, 36, 128));
  return m;
}

}  // namespace

const std::vector<ModelDescription>& model_presets() {
  static const std::vector<ModelDescription> presets = make_presets();
  return presets;
}

}  // namespace polyhead::inline v0::cost
