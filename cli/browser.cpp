#include "cli/browser.hpp"

#include <spawn.h>
#include <sys/types.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "models/formats/file_error.hpp"

extern char** environ;

namespace polyhead::cli {

namespace {

/// A page needs a screen, or a browser that the user names.
bool can_show() {
#ifdef __APPLE__
  return true;
#else
  const auto given = [](const char* name) {
    const char* const value = std::getenv(name);
    return value != nullptr && *value != '\0';
  };
  return given("DISPLAY") || given("WAYLAND_DISPLAY") || given("BROWSER");
#endif
}

}  // namespace

void open_in_browser(const std::string& path) {
  if (!can_show()) {
    throw formats::FileError(path,
                             "was written, but there is no display to open it on (DISPLAY, "
                             "WAYLAND_DISPLAY and BROWSER are not set)");
  }
#ifdef __APPLE__
  char opener[] = "open";
#else
  char opener[] = "xdg-open";
#endif
  std::string whole = std::filesystem::absolute(path).string();
  char* arguments[] = {opener, whole.data(), nullptr};
  pid_t child = 0;
  const int failed = ::posix_spawnp(&child, opener, nullptr, nullptr, arguments, environ);
  if (failed != 0) {
    throw formats::FileError(path, std::string("was written, but ") + opener +
                                       " cannot be started: " + std::strerror(failed));
  }
}

}  // namespace polyhead::cli
