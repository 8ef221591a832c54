#include "models/formats/output_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/link_target.hpp"
#include "base/part_name.hpp"
#include "models/formats/file_error.hpp"

namespace polyhead::inline v0::formats {
namespace {

constexpr int kSlots = 64;  // files being written at once that a signal handler can remove
constexpr std::size_t kBufferBytes = 1 << 16;  // small writes are gathered up to this size

// The names a signal handler removes: plain C strings that their OutputFile keeps alive while they
// are listed.
std::atomic<const char*> unfinished[kSlots];

int list_unfinished(const char* name) {
  for (int slot = 0; slot < kSlots; ++slot) {
    const char* none = nullptr;
    if (unfinished[slot].compare_exchange_strong(none, name)) return slot;
  }
  return -1;
}

std::string target_of(const std::string& path) {
  std::error_code error;
  std::string target = base::link_target(path, error);
  if (error) throw FileError(path, "cannot be written: " + error.message());
  return target;
}

}  // namespace

OutputFile::OutputFile(const std::string& path)
    : path_(path), target_(target_of(path)), part_(base::part_name(target_)) {
  if (path == "-") throw FileError(path, "cannot be written: standard output takes no file");
  struct stat status {};
  const bool replaces = ::stat(path.c_str(), &status) == 0;
  if (replaces && !S_ISREG(status.st_mode)) {
    throw FileError(path, "cannot be written: not a regular file");
  }
  slot_ = list_unfinished(part_.c_str());
  // Private until it has the permissions of what it replaces, which the umask does not narrow.
  descriptor_ = ::open(part_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC,
                       replaces ? S_IRUSR | S_IWUSR : 0666);
  if (descriptor_ < 0) {
    const int error = errno;
    if (slot_ >= 0) unfinished[slot_] = nullptr;
    throw FileError(path, std::string("cannot be written: ") + std::strerror(error));
  }
  unnamed_ = true;
  // A file system without permissions refuses; the content matters more.
  if (replaces) static_cast<void>(::fchmod(descriptor_, status.st_mode & 0777));
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (unnamed_) ::unlink(part_.c_str());
  if (slot_ >= 0) unfinished[slot_] = nullptr;
}

void OutputFile::write(const void* data, std::size_t bytes) {
  if (bytes >= kBufferBytes) {
    flush();
    return write_through(static_cast<const char*>(data), bytes);
  }
  buffer_.append(static_cast<const char*>(data), bytes);
  if (buffer_.size() >= kBufferBytes) flush();
}

void OutputFile::flush() {
  write_through(buffer_.data(), buffer_.size());
  buffer_.clear();
}

void OutputFile::write_through(const char* at, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t written = ::write(descriptor_, at, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0)
      throw FileError(path_, std::string("cannot be written: ") + std::strerror(errno));
    at += written;
    bytes -= static_cast<std::size_t>(written);
  }
}

void OutputFile::finish() {
  if (descriptor_ < 0) return;
  flush();
  // A full disk may show itself only here.
  if (::close(std::exchange(descriptor_, -1)) != 0)
    throw FileError(path_, std::string("cannot be written: ") + std::strerror(errno));
}

void OutputFile::commit() {
  finish();
  if (std::rename(part_.c_str(), target_.c_str()) != 0)
    throw FileError(path_, std::string("cannot be written: ") + std::strerror(errno));
  unnamed_ = false;
}

void remove_unfinished_outputs() noexcept {
  for (const auto& name : unfinished) {
    if (const char* part = name.load()) ::unlink(part);
  }
}

}  // namespace polyhead::inline v0::formats
