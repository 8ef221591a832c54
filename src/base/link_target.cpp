#include "base/link_target.hpp"

#include <filesystem>

namespace polyhead::inline v0::base {

std::string link_target(const std::string& path, std::error_code& error) {
  namespace fs = std::filesystem;
  constexpr int kMostLinks = 40;  // as many as Linux follows
  fs::path at = path;
  std::error_code nothing_there;
  error.clear();
  for (int links = 0; fs::is_symlink(at, nothing_there); ++links) {
    if (links == kMostLinks) error = std::make_error_code(std::errc::too_many_symbolic_link_levels);
    const fs::path to = error ? fs::path() : fs::read_symlink(at, error);
    if (error) return path;
    at = at.parent_path() / to;  // `to` alone where it is absolute
  }
  return at.string();
}

}  // namespace polyhead::inline v0::base
