// Settings of a tokenizer's JSON files, by type: one of another type than it should have is refused
// and never falls back to what is usual. Messages say `where` before the name ("model.").
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

namespace polyhead::inline v0::models {

constexpr int kTokenizerDepth = 64;  ///< of JSON's nesting, at most

/// A tokenizer's file: of limited size and nesting.
nlohmann::json read_tokenizer_file(const std::string& path);

/// "FILE: tokenizer: WHAT".
[[noreturn]] void refuse_tokenizer(const std::string& source, const std::string& what);

/// True or false; none where it is null or missing.
std::optional<bool> flag(const std::string& source, const nlohmann::json& object, const char* name,
                         const std::string& where = "");

/// A text; "" where it is null or missing.
std::string text_setting(const std::string& source, const nlohmann::json& object, const char* name,
                         const std::string& where = "");

/// A list; an empty one where it is null or missing.
nlohmann::json list_setting(const std::string& source, const nlohmann::json& object,
                            const char* name, const std::string& where = "");

/// A token's spelling: "x" or {"content": "x"}; "" for anything else.
std::string token_text(const nlohmann::json& token);

}  // namespace polyhead::inline v0::models
