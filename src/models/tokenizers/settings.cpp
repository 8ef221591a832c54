#include "models/tokenizers/settings.hpp"

#include <nlohmann/json.hpp>

#include "models/formats/file_error.hpp"
#include "models/formats/json_text.hpp"

namespace polyhead::inline v0::models {
namespace {

using formats::member;
using nlohmann::json;

[[noreturn]] void refuse_type(const std::string& source, const json& found, const std::string& name,
                              const char* expected) {
  const std::string text = found.dump(-1, ' ', false, json::error_handler_t::replace);
  refuse_tokenizer(source, name + " is " + formats::quote(text) + " (expected " + expected + ")");
}

}  // namespace

json read_tokenizer_file(const std::string& path) {
  constexpr std::size_t kMaxBytes = std::size_t{256} << 20;  // Gemma's tokenizer.json has 33 MB
  return formats::read_json(path, kMaxBytes, kTokenizerDepth);
}

void refuse_tokenizer(const std::string& source, const std::string& what) {
  throw formats::FileError(source, "tokenizer: " + what);
}

std::optional<bool> flag(const std::string& source, const json& object, const char* name,
                         const std::string& where) {
  const json& found = member(object, name);
  if (found.is_null()) return std::nullopt;
  if (!found.is_boolean()) refuse_type(source, found, where + name, "true or false");
  return found.get<bool>();
}

std::string text_setting(const std::string& source, const json& object, const char* name,
                         const std::string& where) {
  const json& found = member(object, name);
  if (found.is_null()) return "";
  if (!found.is_string()) refuse_type(source, found, where + name, "a text");
  return found.get<std::string>();
}

json list_setting(const std::string& source, const json& object, const char* name,
                  const std::string& where) {
  json found = member(object, name);
  if (found.is_null()) return json::array();
  if (!found.is_array()) refuse_type(source, found, where + name, "a list");
  return found;
}

std::string token_text(const json& token) {
  const json text = token.is_object() ? member(token, "content") : token;
  return text.is_string() ? text.get<std::string>() : "";
}

}  // namespace polyhead::inline v0::models
