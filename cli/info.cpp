// polyhead info: what a model's file says of its attention, its size and its tokenizer, or a file
// of saved caches of itself.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>

#include "base/joined.hpp"
#include "cli/command.hpp"
#include "cli/info_cache.hpp"
#include "cli/info_tensors.hpp"
#include "cli/json_text.hpp"
#include "cli/model_options.hpp"
#include "cli/option_checks.hpp"
#include "cli/table.hpp"
#include "models/formats/array.hpp"
#include "models/formats/file_error.hpp"
#include "models/model_file.hpp"
#include "models/model_path.hpp"

namespace polyhead::cli {
namespace {

using models::LayerGeometry;
using models::ModelConfig;
using models::ModelFile;
using models::WeightTensor;
using nlohmann::ordered_json;

constexpr const char* kExample =
    "MODEL is a GGUF file, a .safetensors file with its config.json beside it, a folder of both, "
    "or\n"
    "smollm2, gemma3 or minilm where scripts/get-model fetched it. Only headers are read.\n"
    "A file of saved caches (generate --save-cache) is told by its first bytes, and read whole.\n\n"
    "Examples:\n"
    "  polyhead info smollm2\n"
    "  polyhead info smollm2 --tensors\n"
    "  polyhead info begin.kv";

struct Part {
  const char* name;
  std::int64_t parameters = 0;
  std::uint64_t bytes = 0;
  std::set<std::string> types;
};

/// Where a tensor of that canonical name belongs.
std::size_t part_of(std::string_view name) {
  const auto has = [&](const char* text) { return name.find(text) != std::string_view::npos; };
  if (has("norm")) return 4;
  if (name.starts_with("token_embd")) return 0;
  if (name.starts_with("position_embd") || name.starts_with("token_types")) return 1;
  if (name.starts_with("output")) return 5;
  return has(".attn_") ? 2 : 3;
}

std::vector<Part> parts_of(const ModelFile& file) {
  std::vector<Part> parts{{"token embedding", 0, 0, {}}, {"positions and types", 0, 0, {}},
                          {"attention", 0, 0, {}},       {"feed-forward", 0, 0, {}},
                          {"norms", 0, 0, {}},           {"output", 0, 0, {}}};
  for (const WeightTensor& tensor : file.tensors()) {
    Part& part = parts[part_of(tensor.name)];
    part.parameters += formats::element_count(tensor.shape);
    part.bytes += tensor.data.size();
    part.types.insert(weight_type_name(tensor.type));
  }
  std::erase_if(parts, [](const Part& part) { return part.parameters == 0; });
  return parts;
}

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.10g", value);
  return text;
}

const char* scaling_name(RopeScaling scaling) {
  constexpr const char* names[] = {"none", "linear", "ntk_aware", "yarn", "llama3"};
  return names[static_cast<std::size_t>(scaling)];
}

std::string rope_text(const std::optional<RopeConfig>& rope) {
  if (!rope) return "learned positions";
  std::string text = "base " + number_text(rope->base);
  text += rope->pairing == RopePairing::interleaved ? ", interleaved" : ", half split";
  if (rope->scaling != RopeScaling::none) {
    text += std::string(", ") + scaling_name(rope->scaling) + " x" + number_text(rope->factor);
  }
  if (!rope->frequency_divisors.empty()) text += ", divisors";
  return text;
}

bool equal(const LayerGeometry& a, const LayerGeometry& b) {
  return a.q_heads == b.q_heads && a.kv_heads == b.kv_heads && a.head_dim == b.head_dim &&
         a.value_dim == b.value_dim && a.window == b.window &&
         rope_text(a.rope) == rope_text(b.rope);
}

/// "0-4, 6-10".
std::string ranges_text(const std::vector<std::size_t>& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    text += (text.empty() ? "" : ", ") + std::to_string(numbers[i]);
    if (last > i) text += "-" + std::to_string(numbers[last]);
    i = last + 1;
  }
  return text;
}

/// Keys and values that one token adds to the cache, in elements.
std::int64_t kv_elements(const ModelConfig& config) {
  std::int64_t elements = 0;
  if (!config.causal) return 0;
  for (const LayerGeometry& layer : config.layers)
    elements += layer.kv_heads * (layer.head_dim + layer.value_dim);
  return elements;
}

/// In words; why not, where a model's file has no tokenizer or one that is not known.
std::string tokenizer_text(const ModelFile& file) try {
  const models::TokenizerSpec spec = file.tokenizer();
  constexpr const char* kinds[] = {"byte-level BPE", "SentencePiece BPE", "WordPiece"};
  std::string text = kinds[static_cast<std::size_t>(spec.kind)];
  if (!spec.split.empty()) text += " (" + printable(spec.split) + ")";
  text += ", " + grouped(static_cast<long long>(spec.pieces.size())) + " tokens";
  return text + (spec.chat_template.empty() ? "" : ", with a chat template");
} catch (const formats::FileError& error) {
  return printable(error.what());
}

ordered_json tokenizer_json(const ModelFile& file) try {
  const models::TokenizerSpec spec = file.tokenizer();
  constexpr const char* kinds[] = {"byte_bpe", "sentence_piece", "word_piece"};
  return {{"kind", kinds[static_cast<std::size_t>(spec.kind)]},
          {"split", spec.split},
          {"tokens", spec.pieces.size()},
          {"chat_template", !spec.chat_template.empty()}};
} catch (const formats::FileError& error) {
  return {{"refused", error.what()}};
}

const char* pooling_name(models::Pooling pooling) {
  constexpr const char* names[] = {"none", "mean", "first"};
  return names[static_cast<std::size_t>(pooling)];
}

class Info : public Command {
 public:
  const char* name() const override { return "info"; }
  const char* summary() const override {
    return "A model's attention, parameters and KV cache; what a saved cache holds";
  }
  void add_options(CLI::App& app) override {
    app.add_option("model", model_, "The model's file or folder, or a file of saved caches")
        ->required()
        ->type_name("MODEL")
        ->check(not_empty());
    app.add_flag("--tensors", tensors_, "Also each tensor: its name, type, shape and bytes");
    app.add_flag("--json", json_, "One JSON object, with every layer");
    app.footer(kExample);
  }
  void run(const Console& console) override {
    const std::string path = models::model_path(model_);
    if (is_cache_file(path)) return run_cache_file(console, path);
    const ModelFile file(path);
    if (json_) {
      ordered_json json = json_of(file);
      if (tensors_) json["tensors"] = tensors_json(file);
      console.out << json_text(json);
      return;
    }
    print(console, file);
    if (!tensors_) return;
    console.out << '\n' << console.styled(Style::heading, "Tensors") << '\n';
    print_tensors(console, file);
  }

 private:
  void run_cache_file(const Console& console, const std::string& path) const;
  static void print(const Console& console, const ModelFile& file);
  static void print_layers(const Console& console, const ModelConfig& config);
  static void print_parts(const Console& console, const ModelFile& file);
  static ordered_json json_of(const ModelFile& file);

  std::string model_;
  bool json_ = false, tensors_ = false;
};

void Info::run_cache_file(const Console& console, const std::string& path) const {
  if (tensors_)
    throw formats::FileError(path, "is a file of saved caches, expected a model for --tensors");
  if (json_)
    console.out << json_text(cache_file_json(path));
  else
    print_cache_file(console, path);
}

void Info::print(const Console& console, const ModelFile& file) {
  const ModelConfig& config = file.config();
  console.out << console.styled(Style::heading, printable(model_title(file))) << '\n';
  Table facts({Table::Align::left, Table::Align::left});
  if (config.name != model_title(file)) facts.row({"calls itself", printable(config.name)});
  const std::int64_t kv = kv_elements(config);
  facts.row({"architecture", models::architecture_name(config.architecture)});
  facts.row({"context", grouped(config.context_length) + " tokens"});
  facts.row({"sizes", "model_dim " + grouped(config.model_dim) + ", ffn_dim " +
                          grouped(config.ffn_dim) + ", vocabulary " + grouped(config.vocab_size)});
  facts.row({"tokenizer", tokenizer_text(file)});
  facts.row({"weights", file.weight_format() +
                            (config.tied_output ? ", the output is the token embedding" : "")});
  if (kv > 0) {
    facts.row({"KV cache", bytes_text(static_cast<std::uint64_t>(kv) * 4) +
                               " a token in float32, " +
                               bytes_text(static_cast<std::uint64_t>(kv) * 2) + " in bfloat16"});
  } else {
    facts.row({"encoder", std::string("every token sees every other; pooling: ") +
                              pooling_name(config.pooling)});
  }
  facts.print(console);
  console.out << '\n' << console.styled(Style::heading, "Attention") << '\n';
  print_layers(console, config);
  console.out << '\n' << console.styled(Style::heading, "Parameters") << '\n';
  print_parts(console, file);
}

void Info::print_layers(const Console& console, const ModelConfig& config) {
  using enum Table::Align;
  Table table({left, right, right, right, right, left, left});
  table.header({"layers", "q heads", "KV heads", "head_dim", "value_dim", "sees", "positions"});
  std::vector<bool> done(config.layers.size());
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    if (done[i]) continue;
    const LayerGeometry& layer = config.layers[i];
    std::vector<std::size_t> alike;
    for (std::size_t j = i; j < config.layers.size(); ++j) {
      if (done[j] || !equal(layer, config.layers[j])) continue;
      done[j] = true;
      alike.push_back(j);
    }
    const std::string sees = layer.window > 0 ? "the last " + grouped(layer.window)
                             : config.causal  ? "all before"
                                              : "all";
    table.row({ranges_text(alike), grouped(layer.q_heads), grouped(layer.kv_heads),
               grouped(layer.head_dim), grouped(layer.value_dim), sees, rope_text(layer.rope)});
  }
  table.print(console);
}

void Info::print_parts(const Console& console, const ModelFile& file) {
  using enum Table::Align;
  Table table({left, right, right, left});
  table.header({"part", "parameters", "in the file", "types"});
  Part whole{"all", 0, 0, {}};
  for (const Part& part : parts_of(file)) {
    table.row(
        {part.name, grouped(part.parameters), bytes_text(part.bytes), base::joined(part.types)});
    whole.parameters += part.parameters;
    whole.bytes += part.bytes;
  }
  table.rule();
  table.row({whole.name, grouped(whole.parameters), bytes_text(whole.bytes), ""});
  table.print(console);
}

ordered_json rope_json(const RopeConfig& rope) {
  ordered_json json{
      {"base", rope.base},
      {"pairing", rope.pairing == RopePairing::interleaved ? "interleaved" : "half_split"},
      {"scaling", scaling_name(rope.scaling)}};
  if (rope.scaling != RopeScaling::none) json["factor"] = rope.factor;
  if (!rope.frequency_divisors.empty()) json["frequency_divisors"] = rope.frequency_divisors;
  return json;
}

ordered_json Info::json_of(const ModelFile& file) {
  const ModelConfig& config = file.config();
  const std::int64_t kv = kv_elements(config);
  ordered_json json{{"name", config.name},
                    {"path", file.path()},
                    {"architecture", models::architecture_name(config.architecture)},
                    {"fingerprint", fingerprint_text(file.fingerprint())},
                    {"context_length", config.context_length},
                    {"model_dim", config.model_dim},
                    {"ffn_dim", config.ffn_dim},
                    {"vocab_size", config.vocab_size},
                    {"causal", config.causal},
                    {"tied_output", config.tied_output},
                    {"pooling", pooling_name(config.pooling)},
                    {"weights", file.weight_format()},
                    {"kv_bytes_per_token", {{"float32", kv * 4}, {"bfloat16", kv * 2}}}};
  json["tokenizer"] = tokenizer_json(file);
  std::int64_t parameters = 0;
  json["parts"] = ordered_json::array();
  for (const Part& part : parts_of(file)) {
    parameters += part.parameters;
    json["parts"].push_back({{"part", part.name},
                             {"parameters", part.parameters},
                             {"bytes", part.bytes},
                             {"types", part.types}});
  }
  json["parameters"] = parameters;
  json["layers"] = ordered_json::array();
  for (const LayerGeometry& layer : config.layers) {
    ordered_json one{{"layer", json["layers"].size()}, {"q_heads", layer.q_heads},
                     {"kv_heads", layer.kv_heads},     {"head_dim", layer.head_dim},
                     {"value_dim", layer.value_dim},   {"window", layer.window}};
    one["rope"] = layer.rope ? rope_json(*layer.rope) : ordered_json();
    json["layers"].push_back(std::move(one));
  }
  return json;
}

}  // namespace

std::unique_ptr<Command> make_info() { return std::make_unique<Info>(); }

}  // namespace polyhead::cli
