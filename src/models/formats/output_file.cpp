#include "models/formats/output_file.hpp"

#include <sys/stat.h>

#include <span>
#include <system_error>

#include "models/formats/file_error.hpp"
#include "models/formats/files_read.hpp"

namespace polyhead::inline v0::formats {
namespace {

constexpr std::size_t kBufferBytes = 1 << 16;  // small writes are gathered up to this size

/// `path`, where a file can be.
const std::string& checked(const std::string& path) {
  if (path == "-") throw FileError(path, "cannot be written: standard output takes no file");
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return path;  // nothing there, or PartFile says why
  if (!S_ISREG(status.st_mode)) throw FileError(path, "cannot be written: not a regular file");
  if (was_read(status))
    throw FileError(path, "cannot be written: it is read by this command, expected another file");
  return path;
}

}  // namespace

OutputFile::OutputFile(const std::string& path) : path_(checked(path)), part_(path) {
  check(part_.error());
}

void OutputFile::check(std::error_code error) const {
  if (error) throw FileError(path_, "cannot be written: " + error.message());
}

void OutputFile::write(const void* data, std::size_t bytes) {
  if (bytes >= kBufferBytes) {
    flush();
    return check(part_.write({static_cast<const std::byte*>(data), bytes}));
  }
  buffer_.append(static_cast<const char*>(data), bytes);
  if (buffer_.size() >= kBufferBytes) flush();
}

void OutputFile::flush() {
  check(part_.write(std::as_bytes(std::span(buffer_))));
  buffer_.clear();
}

void OutputFile::finish() {
  flush();
  check(part_.finish());
}

void OutputFile::commit() {
  flush();
  check(part_.commit());
}

}  // namespace polyhead::inline v0::formats
