#include "support/json.hpp"

#include <fstream>

namespace polyhead::test {

nlohmann::json json_of(const std::string& text) { return nlohmann::json::parse(text); }

nlohmann::json json_file(const std::string& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

}  // namespace polyhead::test
