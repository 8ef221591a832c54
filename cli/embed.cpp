// polyhead embed: one vector a line of text.
#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/number_text.hpp"
#include "cli/check_finite.hpp"
#include "cli/command.hpp"
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
    "  polyhead embed minilm --file sentences.txt\n"
    "  polyhead embed minilm --file sentences.txt -o vectors.npy";

std::string json_row(std::span<const float> vector) {
  std::string row = "[";
  for (const float value : vector)
    row.append(row.size() > 1 ? "," : "").append(base::number_text(value));
  return row + "]\n";
}

class Embed : public Command {
 public:
  const char* name() const override { return "embed"; }
  const char* summary() const override { return "Sentence vectors of an encoder"; }
  void add_options(CLI::App& app) override;
  void run(const Console& console) override;

 private:
  ModelOptions model_;
  std::string file_, out_;
};

void Embed::add_options(CLI::App& app) {
  model_.add_options(app);
  app.add_option("--file", file_, "Texts, one a line; - reads standard input")
      ->type_name("FILE")
      ->required()
      ->check(not_empty());
  app.add_option("-o,--out", out_, "A .npy file: float32 [lines, model_dim]")
      ->type_name("FILE")
      ->check(output_name());
  app.footer(kExample);
}

void Embed::run(const Console& console) {
  constexpr std::size_t kBatch = 256;  // lines between two signs of progress
  if (!out_.empty()) formats::check_writable(out_);
  const models::ModelFile file = model_.open();
  if (file.config().causal)
    throw InvalidArgument("embed: the model is a decoder, expected an encoder, such as minilm");
  const models::Tokenizer tokenizer(file.tokenizer());
  std::vector<std::vector<std::int32_t>> texts;
  for (const std::string& line : formats::lines_of(read_text(file_))) {
    texts.push_back(tokenizer.encode(line));
    const auto length = static_cast<std::int64_t>(texts.back().size());
    if (length > file.config().context_length) {
      throw formats::FileError(file_, "line " + std::to_string(texts.size()) + " has " +
                                          std::to_string(length) + " tokens, the model takes " +
                                          std::to_string(file.config().context_length));
    }
  }
  if (!out_.empty()) formats::check_writable(out_);  // nor has it been read meanwhile
  const models::Model model = model_.load(file);
  const auto dim = static_cast<std::size_t>(model.config().model_dim);
  std::vector<float> vectors(texts.size() * dim);
  Progress progress(console);
  for (std::size_t first = 0; first < texts.size(); first += kBatch) {
    const std::size_t count = std::min(kBatch, texts.size() - first);
    model.embed(std::span(texts).subspan(first, count), vectors.data() + first * dim);
    for (std::size_t i = first * dim; i < (first + count) * dim; ++i) {
      check_finite(static_cast<double>(vectors[i]),
                   [&] { return "embed: the vector of line " + std::to_string(i / dim + 1); });
    }
    progress.show(grouped(static_cast<long long>(first) + static_cast<long long>(count)) + " of " +
                  grouped(static_cast<long long>(texts.size())) + " lines ...");
  }
  progress.clear();
  if (!out_.empty()) {
    return formats::write_npy(out_, ConstView(vectors.data(), {texts.size(), dim}));
  }
  for (std::size_t i = 0; i < texts.size(); ++i) {
    console.out << json_row(std::span(vectors).subspan(i * dim, dim));
  }
}

}  // namespace

std::unique_ptr<Command> make_embed() { return std::make_unique<Embed>(); }

}  // namespace polyhead::cli
