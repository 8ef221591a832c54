#include "cli/kv_options.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iterator>
#include <vector>

#include "cli/calibration_text.hpp"
#include "cli/model_options.hpp"
#include "cli/option_checks.hpp"
#include "models/formats/file_error.hpp"

namespace polyhead::cli {
namespace {

constexpr std::pair<const char*, ElementType> kTypes[] = {
    {"f32", ElementType::float32},      {"bf16", ElementType::bfloat16},
    {"f16", ElementType::float16},      {"int8", ElementType::int8},
    {"int4", ElementType::int4},        {"e4m3", ElementType::float8_e4m3},
    {"e5m2", ElementType::float8_e5m2},
};
constexpr std::int64_t kCalibration = 2048;  // tokens: keys hardly grow after that
constexpr std::int64_t kLeast = 512;         // tokens: fewer tell too little of the keys' moments

}  // namespace

std::string kv_type_name(ElementType type) {
  for (const auto& [name, of] : kTypes) {
    if (of == type) return name;
  }
  return element_name(type);
}

void KvOptions::add_options(CLI::App& app) {
  std::vector<std::string> names;
  for (const auto& [name, type] : kTypes) names.emplace_back(name);
  app.add_option("--kv-type", type_,
                 "What the KV cache holds: f32, bf16, f16, int8, int4, e4m3 or e5m2\n"
                 "(default: what --weights says)")
      ->type_name("TYPE")
      ->check(CLI::IsMember(names).description(""));
  app.add_option("--kv-keys", keys_,
                 "int8 and int4 keys have a scale a token and block; channel centres and\n"
                 "stretches their channels before, calibrated on the first 2048 tokens")
      ->type_name("token|channel")
      ->check(CLI::IsMember({"token", "channel"}).description(""));
  app.add_option("--kv-text", text_,
                 "Calibrate channels on this text for the model's whole context, so that\n"
                 "bits do not depend on what is read; --prompts needs it, or a --load-cache\n"
                 "that has its own (default: that of --load-cache, else on what is read)")
      ->type_name("FILE")
      ->check(not_empty());
}

void KvOptions::check(std::initializer_list<std::pair<const char*, std::string>> texts) const {
  if (!keys_.empty() && type_ != "int8" && type_ != "int4")
    throw UsageError("--kv-keys " + keys_ + " needs --kv-type int8 or int4");
  if (!text_.empty() && keys_ != "channel") throw UsageError("--kv-text needs --kv-keys channel");
  for (const auto& [option, place] : texts) {
    if (place == "-" && text_ == "-") {
      throw UsageError(std::string(option) +
                       " - and --kv-text - both read standard input, expected one of them");
    }
  }
}

std::optional<ElementType> KvOptions::type() const {
  if (type_.empty()) return std::nullopt;
  return std::ranges::find(kTypes, type_, [](const auto& row) { return row.first; })->second;
}

models::CacheForm KvOptions::form(const models::Model& model, const models::Tokenizer& tokenizer,
                                  std::span<const std::int32_t> ids, std::int64_t length) const {
  const std::optional<ElementType> of = type();
  if (!of || keys_ != "channel") return {of};
  const std::int64_t context = model.config().context_length;
  std::vector<std::int32_t> text;
  if (!text_.empty()) {
    text = tokenizer.encode(read_text(text_));
    if (text.empty()) throw formats::FileError(text_, "has no token to calibrate on");
    ids = text;
    length = context;
  }
  if (std::ssize(ids) < kLeast && text_.empty()) {
    text.assign(ids.begin(), ids.end());
    const models::EncodeOptions inside{.add_special = text.empty()};
    std::ranges::copy(tokenizer.encode(kCalibrationText, inside), std::back_inserter(text));
    text.resize(std::min(text.size(), static_cast<std::size_t>(kLeast)));
    ids = text;
  }
  const auto most = static_cast<std::size_t>(std::min(kCalibration, context));
  return model.calibrated(*of, ids.first(std::min(ids.size(), most)), std::min(length, context));
}

}  // namespace polyhead::cli
