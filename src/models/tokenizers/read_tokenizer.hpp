// Where a TokenizerSpec comes from, by format.
#pragma once

#include <string>
#include <string_view>

#include "models/formats/gguf.hpp"
#include "models/tokenizers/spec.hpp"

namespace polyhead::inline v0::models {

/// From GGUF metadata: tokenizer.ggml.* and tokenizer.chat_template. Models gpt2 (byte-level BPE;
/// the split by tokenizer.ggml.pre), llama (SentencePiece) and bert; others are refused by name.
TokenizerSpec tokenizer_from_gguf(const formats::Gguf& file);

/// From a folder of Hugging Face's files: tokenizer.json, else vocab.json and merges.txt (gpt2,
/// Qwen2), else vocab.txt (BERT); with config.json, tokenizer_config.json, added_tokens.json,
/// special_tokens_map.json, generation_config.json and chat_template.jinja where they are there.
/// What a tokenizer.json does to text before it is cut is compared with the forms known here;
/// another form is refused, none is guessed or compiled.
TokenizerSpec tokenizer_from_folder(const std::string& folder);

/// From the text of a tokenizer.json alone; `path` is its name in messages.
TokenizerSpec tokenizer_from_json(const std::string& path, std::string_view text);

/// Either, by what the path is: a folder, or a .safetensors, .json or .txt file of a model's in the
/// folder meant; else a GGUF file.
TokenizerSpec read_tokenizer(const std::string& path);

}  // namespace polyhead::inline v0::models
