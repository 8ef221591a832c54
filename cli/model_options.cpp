#include "cli/model_options.hpp"

#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "cli/option_checks.hpp"
#include "cli/table.hpp"
#include "models/formats/file_error.hpp"
#include "models/formats/files_read.hpp"
#include "models/model_path.hpp"

namespace polyhead::cli {

void ModelOptions::add_options(CLI::App& app) {
  app.add_option("model", place_,
                 "A GGUF file, a folder of safetensors, or the name of a model that\n"
                 "scripts/get-model fetches: smollm2, gemma3, minilm")
      ->type_name("MODEL")
      ->required()
      ->check(not_empty());
  app.add_option("--weights", weights_, "f32, or bf16: half the memory, 8 bits of precision")
      ->type_name("f32|bf16")
      ->check(CLI::IsMember({"f32", "bf16"}).description(""));
  run_.add_options(app);
}

models::ModelFile ModelOptions::open() const {
  return models::ModelFile(models::model_path(place_));
}

models::ModelOptions ModelOptions::options() const {
  models::ModelOptions options;
  options.weights = weights_ == "bf16" ? models::WeightForm::bfloat16 : models::WeightForm::float32;
  options.run = run_.options();
  return options;
}

models::Model ModelOptions::load(const models::ModelFile& file) const {
  return models::Model(file, options());
}

std::string read_all(std::istream& from, const std::string& place, std::size_t most) {
  std::string text;
  char piece[1 << 16];
  while (from.read(piece, sizeof piece), from.gcount() > 0) {
    const auto size = static_cast<std::size_t>(from.gcount());
    if (size > most - text.size()) {
      throw formats::FileError(place, "has more than " + grouped(static_cast<long long>(most)) +
                                          " bytes, which is no text to run");
    }
    text.append(piece, size);
  }
  return text;
}

std::string read_text(const std::string& place) {
  struct stat status {};
  const auto note_read_from = [&](int failed) {
    if (failed == 0 && S_ISREG(status.st_mode)) formats::note_read(status);
  };
  if (place == "-") {
    std::string text = read_all(std::cin, "standard input");
    // std::cin, which shares its file with C, takes an error for the end.
    if (std::ferror(stdin)) throw formats::FileError("standard input", "cannot be read");
    note_read_from(::fstat(STDIN_FILENO, &status));
    return text;
  }
  std::error_code failed;  // what cannot be looked at is refused when it is opened
  if (std::filesystem::is_directory(place, failed))
    throw formats::FileError(place, "is a folder, expected a file");
  std::ifstream file(place, std::ios::binary);
  if (!file.is_open())
    throw formats::FileError(place, std::string("cannot be opened: ") + std::strerror(errno));
  note_read_from(::stat(place.c_str(), &status));
  std::string text = read_all(file, place);
  if (!file.good() && !file.eof()) throw formats::FileError(place, "cannot be read");
  return text;
}

std::string model_title(const models::ModelFile& file) {
  std::filesystem::path path = std::filesystem::path(file.path()).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  std::string name = path.filename().string();
  for (const std::string& ending : {std::string(".gguf"), "." + file.weight_format()}) {
    if (name.ends_with(ending)) name.resize(name.size() - ending.size());
  }
  return name;
}

std::string duration(double seconds) {
  return seconds < 1.0 ? fixed(seconds * 1e3, 1) + " ms" : fixed(seconds, 2) + " s";
}

}  // namespace polyhead::cli
