// Whole files: read at once, written all or nothing.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace polyhead::inline v0::cache {

/// Throws InvalidArgument, beginning with `call` and naming the path, where it cannot be read.
std::vector<std::byte> read_file(const char* call, const std::string& path);

/// A regular file, also where `path` leads to it by links, appears or is replaced at once, when it
/// is complete; its permissions stay. What is something else (a pipe, a device) is written to.
/// Throws InvalidArgument as read_file does.
void write_file(const char* call, const std::string& path, std::span<const std::byte> bytes);

}  // namespace polyhead::inline v0::cache
