// How byte-level BPE cuts text into words before it merges. The patterns are built in: one that
// comes with a file is compared with them and never compiled.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace polyhead::inline v0::models {

/// As regular expressions, first match first (\p{L}: letters, \p{N}: numbers, \s: white space):
///
///   gpt2       's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
///   smollm     the same between numbers, each of which is a word of its own
///   llama_bpe  (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}
///              | ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
///   qwen2      the same with \p{N} in place of \p{N}{1,3}
enum class Split : std::uint8_t { gpt2, smollm, llama_bpe, qwen2 };

std::optional<Split> split_named(std::string_view name);

/// `text` in words, in order and without gaps. A byte that is not UTF-8 is neither a letter nor a
/// number nor white space. Linear time.
std::vector<std::string_view> split_words(Split split, std::string_view text);

}  // namespace polyhead::inline v0::models
