// What the library refuses of a file, said of the file and not of what was called.
#pragma once

#include <string>
#include <string_view>

#include "models/formats/file_error.hpp"
#include "polyhead/error.h"

namespace polyhead::cli {

/// "is damaged" for "load_notes: begin.kv is damaged".
std::string said_of(const std::string& file, std::string_view what);

/// Calls what reads or writes `file`. Throws FileError for what is refused.
template <class Call>
auto said_of_file(const std::string& file, const Call& call) {
  try {
    return call();
  } catch (const InvalidArgument& error) {
    throw formats::FileError(file, said_of(file, error.what()));
  }
}

}  // namespace polyhead::cli
