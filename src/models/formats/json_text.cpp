#include "models/formats/json_text.hpp"

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "models/formats/file_error.hpp"
#include "models/formats/mapped_file.hpp"

namespace polyhead::inline v0::formats {

using nlohmann::json;

constexpr std::size_t kLongestReason = 300;  // bytes

json parse_json(const std::string& path, const std::string& what, std::string_view text,
                int max_depth) {
  std::vector<std::set<std::string>> keys;
  const auto check = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > max_depth) throw FileError(path, what + ": nested too deeply");
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key &&
        !keys.back().insert(parsed.get<std::string>()).second) {
      throw FileError(path, what + ": " + quote(parsed.get<std::string>()) + " stands twice");
    }
    return true;
  };
  if (text.find('\0') != std::string_view::npos)  // to the parser, the end of the text
    throw FileError(path, what + " is not JSON: it holds a byte 0");
  try {
    return json::parse(text.begin(), text.end(), check);
  } catch (const json::exception& error) {
    // It quotes what it read last, which may be the whole of the file.
    std::string why = error.what();
    if (why.size() > kLongestReason) why = why.substr(0, kLongestReason) + " ...";
    throw FileError(path, what + " is not JSON: " + why);
  }
}

json read_json(const std::string& path, std::size_t max_bytes, int max_depth) {
  const MappedFile file(path);
  if (file.size() > max_bytes) {
    throw FileError(path, "has " + std::to_string(file.size()) + " bytes (at most " +
                              std::to_string(max_bytes) + ")");
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  return parse_json(path, "the file", text, max_depth);
}

const json& member(const json& object, const char* name) {
  static const json null;
  if (!object.is_object()) return null;
  const auto found = object.find(name);
  return found == object.end() ? null : *found;
}

}  // namespace polyhead::inline v0::formats
