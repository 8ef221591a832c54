// JSON from files that nobody vouches for.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace polyhead::inline v0::formats {

/// Parses `text`, refusing names that stand twice in one object (two readers could see two files)
/// and nesting deeper than `max_depth`. Throws FileError naming `path` and `what`.
nlohmann::json parse_json(const std::string& path, const std::string& what, std::string_view text,
                          int max_depth);

/// The same for a whole file of at most `max_bytes`.
nlohmann::json read_json(const std::string& path, std::size_t max_bytes, int max_depth);

/// The object's member, which lasts as long as the object; null where there is none, or no object.
const nlohmann::json& member(const nlohmann::json& object, const char* name);
const nlohmann::json& member(nlohmann::json&& object, const char* name) = delete;

}  // namespace polyhead::inline v0::formats
