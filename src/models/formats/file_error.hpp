// What reading or writing a file throws.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include "polyhead/types.h"

namespace polyhead::inline v0::formats {

/// A file that cannot be read, written or believed. The message begins with the file's name and
/// says what was found and what was expected, for example "q.npy: the header promises 80 bytes of
/// data, the file has 76".
class FileError : public std::runtime_error {
 public:
  FileError(const std::string& path, const std::string& what)
      : std::runtime_error(path + ": " + what) {}
};

/// "q.npy: holds 1e+39, too large for float32".
FileError too_large(const std::string& path, double value, ElementType type);

/// Text from a file with what steers a terminal as \\xNN, byte by byte: control characters (C0, C1
/// and DEL), and those that turn the direction of other text around (overrides, embeddings and
/// isolates).
std::string escape_controls(std::string_view text);

/// A name from a file as messages quote it: between ', escaped, cut after 120 bytes.
std::string quote(std::string_view name);

}  // namespace polyhead::inline v0::formats
