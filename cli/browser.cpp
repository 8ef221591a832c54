#include "cli/browser.hpp"

#include <spawn.h>
#include <sys/types.h>

#include <cstring>
#include <filesystem>

#include "models/formats/file_error.hpp"

extern char** environ;

namespace polyhead::cli {

void open_in_browser(const std::string& path) {
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
