// polyhead embed: one vector a line of text.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/number_text.hpp"
#include "cli/check_finite.hpp"
#include "cli/command.hpp"
#include "cli/json_text.hpp"
#include "cli/model_options.hpp"
#include "cli/option_checks.hpp"
#include "cli/table.hpp"
#include "models/formats/file_error.hpp"
#include "models/formats/lines.hpp"
#include "models/formats/npy.hpp"
#include "models/formats/output_file.hpp"
#include "models/tokenizers/tokenizer.hpp"
#include "polyhead/error.h"

namespace polyhead::cli {
namespace {

constexpr const char* kExample =
    "Every line of the file is a text; its vector has length 1. Without -o each becomes a line of "
    "JSON on stdout.\n\n"
    "Examples:\n"
    "  polyhead embed minilm --text 'The cat sat on the mat.'\n"
    "  polyhead embed minilm --file sentences.txt --json\n"
    "  polyhead embed minilm --file sentences.txt -o vectors.npy";

std::string json_row(std::span<const float> vector) {
  std::string row = "[";
  for (const float value : vector)
    row.append(row.size() > 1 ? "," : "").append(base::number_text(value));
  return row + "]\n";
}

/// What is embedded: lines of a file, or one text.
struct Texts {
  std::vector<std::string> texts;
  std::vector<std::vector<std::int32_t>> ids;
};

class Embed : public Command {
 public:
  const char* name() const override { return "embed"; }
  const char* summary() const override { return "Sentence vectors of an encoder"; }
  void add_options(CLI::App& app) override;
  void run(const Console& console) override;

 private:
  Texts read(const models::ModelFile& file) const;
  std::vector<float> run_model(const models::Model& model, const Texts& texts,
                               const Console& console) const;
  void print(const Console& console, const Texts& texts, std::span<const float> vectors) const;

  ModelOptions model_;
  std::string file_, text_, out_;
  CLI::Option* text_option_ = nullptr;
  bool json_ = false;
};

void Embed::add_options(CLI::App& app) {
  model_.add_options(app);
  auto* const file = app.add_option("--file", file_, "Texts, one a line; - reads standard input");
  file->type_name("FILE")->check(not_empty());
  text_option_ = app.add_option("--text", text_, "One text, whatever lines it has");
  text_option_->type_name("TEXT")->excludes(file);
  auto* const out = app.add_option(kOutputOption, out_, "A .npy file: float32 [texts, model_dim]");
  out->type_name("FILE")->check(output_name());
  app.add_flag("--json", json_, "Print one JSON object, with each text and its tokens")
      ->excludes(out);
  app.footer(kExample);
}

Texts Embed::read(const models::ModelFile& file) const {
  const models::Tokenizer tokenizer(file.tokenizer());
  Texts read;
  if (file_.empty())
    read.texts.push_back(text_);
  else
    read.texts = formats::lines_of(read_text(file_));
  const std::int64_t context = file.config().context_length;
  for (const std::string& text : read.texts) {
    read.ids.push_back(tokenizer.encode(text));
    const std::int64_t length = std::ssize(read.ids.back());
    if (length <= context) continue;
    const std::string why =
        " has " + std::to_string(length) + " tokens, the model takes " + std::to_string(context);
    if (file_.empty()) throw InvalidArgument("embed: --text" + why);
    throw formats::FileError(file_, "line " + std::to_string(read.ids.size()) + why);
  }
  return read;
}

std::vector<float> Embed::run_model(const models::Model& model, const Texts& texts,
                                    const Console& console) const {
  constexpr std::size_t kBatch = 256;  // texts between two signs of progress
  const auto dim = static_cast<std::size_t>(model.config().model_dim);
  std::vector<float> vectors(texts.ids.size() * dim);
  Progress progress(console);
  for (std::size_t first = 0; first < texts.ids.size(); first += kBatch) {
    const std::size_t count = std::min(kBatch, texts.ids.size() - first);
    model.embed(std::span(texts.ids).subspan(first, count), vectors.data() + first * dim);
    for (std::size_t i = first * dim; i < (first + count) * dim; ++i) {
      check_finite(static_cast<double>(vectors[i]), [&] {
        return file_.empty() ? std::string("embed: the vector of --text")
                             : "embed: the vector of line " + std::to_string(i / dim + 1);
      });
    }
    progress.show(grouped(static_cast<long long>(first) + static_cast<long long>(count)) + " of " +
                  grouped(std::ssize(texts.ids)) + " texts ...");
  }
  return vectors;
}

void Embed::print(const Console& console, const Texts& texts,
                  std::span<const float> vectors) const {
  const std::size_t dim = texts.ids.empty() ? 0 : vectors.size() / texts.ids.size();
  nlohmann::ordered_json embeddings = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < texts.ids.size(); ++i) {
    const std::span<const float> vector = vectors.subspan(i * dim, dim);
    if (!json_) {
      console.out << json_row(vector);
      continue;
    }
    embeddings.push_back({{"text", texts.texts[i]},
                          {"ids", texts.ids[i]},
                          {"embedding", std::vector<float>(vector.begin(), vector.end())}});
  }
  if (json_) console.out << json_text({{"texts", std::move(embeddings)}});
}

void Embed::run(const Console& console) {
  if (file_.empty() && text_option_->empty()) throw UsageError("--file or --text is needed");
  if (!out_.empty()) formats::check_writable(out_);
  const models::ModelFile file = model_.open();
  if (file.config().causal)
    throw InvalidArgument("embed: the model is a decoder, expected an encoder, such as minilm");
  const Texts texts = read(file);
  if (!out_.empty()) formats::check_writable(out_);  // nor has it been read meanwhile
  const std::vector<float> vectors = run_model(model_.load(file), texts, console);
  if (out_.empty()) return print(console, texts, vectors);
  const auto dim = static_cast<std::size_t>(file.config().model_dim);
  formats::write_npy(out_, ConstView(vectors.data(), {texts.ids.size(), dim}));
}

}  // namespace

std::unique_ptr<Command> make_embed() { return std::make_unique<Embed>(); }

}  // namespace polyhead::cli
