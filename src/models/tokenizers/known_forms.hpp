// The "normalizer" and "pre_tokenizer" of a tokenizer.json, recognised by comparison.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "models/tokenizers/spec.hpp"

namespace polyhead::inline v0::models {

/// Sets the kind of BPE, the split and what happens to text before it. Throws FileError, naming the
/// parts, for a combination that is none of those known here.
void recognise_bpe(TokenizerSpec& spec, const nlohmann::json& normalizer,
                   const nlohmann::json& pre_tokenizer);

/// The same for WordPiece.
void recognise_word_piece(TokenizerSpec& spec, const nlohmann::json& normalizer,
                          const nlohmann::json& pre_tokenizer);

/// The tokens that "post_processor" puts before and after one text: bos and eos (first and
/// separator). Throws FileError unless the text stands there once, with one token or none on each
/// side, whose id is the vocabulary's.
void recognise_template(TokenizerSpec& spec, const nlohmann::json& post_processor);

}  // namespace polyhead::inline v0::models
