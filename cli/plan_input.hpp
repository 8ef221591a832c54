// What `polyhead plan` is told: lengths, sizes, models.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "polyhead/cost.h"
#include "polyhead/error.h"

namespace polyhead::cli {

/// "4096", "4,096", "32k" (32,000), "32Ki" (32,768), "1.5M": a whole number. Throws UsageError that
/// names the option.
std::int64_t parse_count(const std::string& option, const std::string& text);
/// The same, at least 1.
std::int64_t parse_some(const std::string& option, const std::string& text);

/// "80GB", "80GiB", "3.35TB/s", "989T", "989TFLOP/s": a positive number of at most 9e18; k, M, G,
/// T, P and their Ki forms, with or without what they are of behind. Throws UsageError.
enum class Amount : std::uint8_t { bytes, bytes_a_second, flops_a_second };
double parse_amount(const std::string& option, const std::string& text, Amount of);

/// A comma-separated list of counts. Contexts that could be one number with commas (64,128) are
/// refused, and any entry but the only one that begins with 0. Throws UsageError.
std::vector<std::int64_t> parse_counts(const std::string& option, const std::string& text);

/// A preset, a model that scripts/get-model fetches, a GGUF file, a .safetensors file or folder, or
/// a config.json. A name with a slash, a known ending or a file behind it is a path. Throws
/// InvalidArgument or FileError.
cost::ModelDescription find_model(const std::string& name);

/// From a Hugging Face config.json by model_type: llama, mistral, mixtral, qwen2, qwen3, qwen3_moe,
/// gemma3, gemma3_text, gpt2, bert, deepseek_v2, deepseek_v3, gpt_oss. Throws FileError naming the
/// key.
cost::ModelDescription model_of_config(const std::string& path, const std::string& text);

/// What cost refuses of a description, without the call's name.
std::string reason_of(const InvalidArgument& error);

/// KV heads of the first layer, "8", or "MLA" where its attention is latent.
std::string heads_text(const cost::ModelDescription& model);

}  // namespace polyhead::cli
