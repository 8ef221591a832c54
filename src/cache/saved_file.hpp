// Whole files: read at once, written all or nothing.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace polyhead::inline v0::cache {

/// All of a file, or only its beginning where that is not `magic`: what has no end may be no such
/// file. Throws InvalidArgument, beginning with `call` and naming the path, where it cannot be
/// read.
std::vector<std::byte> read_file(const char* call, const std::string& path, std::string_view magic);

/// A regular file, also where `path` leads to it by links, appears or is replaced at once, when it
/// is complete; its permissions stay. What is something else (a pipe, a device) is written to.
/// Throws InvalidArgument as read_file does.
void write_file(const char* call, const std::string& path, std::span<const std::byte> bytes);

}  // namespace polyhead::inline v0::cache
