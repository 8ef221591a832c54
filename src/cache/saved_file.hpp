// Files of saved caches: read whole, written all or nothing.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace polyhead::inline v0::cache {

/// All of a file, or only its beginning where that is not `magic`: what has no end may be no such
/// file. Throws InvalidArgument, beginning with `call` and naming the path, where it cannot be
/// read.
std::vector<std::byte> read_file(const char* call, const std::string& path, std::string_view magic);

/// A file that is written piece by piece. A regular one, also where `path` leads to it by links,
/// appears or is replaced at once, by commit(), and not without it; its permissions stay. What is
/// something else (a pipe, a device) is written to. Throws InvalidArgument as read_file does.
class FileWriter {
 public:
  FileWriter(const char* call, const std::string& path);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void write(std::span<const std::byte> piece);
  void commit();

 private:
  class Target;
  void flush();

  std::unique_ptr<Target> target_;
  std::vector<std::byte> buffer_;  ///< small pieces gathered
};

}  // namespace polyhead::inline v0::cache
