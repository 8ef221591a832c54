// Showing a file in the user's browser.
#pragma once

#include <string>

namespace polyhead::cli {

/// Starts xdg-open (open on macOS) on the file, without a shell, and does not wait for it. The path
/// is handed over absolute, so that it cannot be taken for an option. Throws FileError where the
/// program cannot be started.
void open_in_browser(const std::string& path);

}  // namespace polyhead::cli
