// Tokenizers of folders without a tokenizer.json.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "models/tokenizers/spec.hpp"

namespace polyhead::inline v0::models {

/// What lies beside a vocabulary; null where a file is missing.
struct VocabularyFiles {
  const nlohmann::json& tokenizer_config;
  const nlohmann::json& config;
  const nlohmann::json& special_tokens_map;
  const nlohmann::json& added_tokens;  ///< added_tokens.json: {piece: id}
};

/// Qwen2's or gpt2's vocab.json (spec.source) and merges.txt.
void read_vocab_and_merges(TokenizerSpec& spec, const std::string& merges,
                           const VocabularyFiles& files);

/// BERT's vocab.txt (spec.source).
void read_vocab_txt(TokenizerSpec& spec, const VocabularyFiles& files);

}  // namespace polyhead::inline v0::models
