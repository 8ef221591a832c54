#include "base/part_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <utility>

#include "base/link_target.hpp"

namespace polyhead::inline v0::base {
namespace {

constexpr int kSlots = 64;  // files being written at once that a signal handler can remove

// The names a signal handler removes: plain C strings that their PartFile keeps alive while they
// are listed.
std::atomic<const char*> unfinished[kSlots];

int list_unfinished(const char* name) {
  for (int slot = 0; slot < kSlots; ++slot) {
    const char* none = nullptr;
    if (unfinished[slot].compare_exchange_strong(none, name)) return slot;
  }
  return -1;
}

/// A name beside `target` that no other writer of this process has. File systems take it wherever
/// they take the target's: of a long name it has the beginning only.
std::string part_name(const std::string& target) {
  static std::atomic<std::uint64_t> count{0};
  constexpr std::size_t kMost = 100;  // bytes: with the ending less than the least limit, 143
  const std::size_t name = target.find_last_of('/') + 1;  // 0 where there is no folder
  return target.substr(0, std::min(target.size(), name + kMost)) + ".part-" +
         std::to_string(::getpid()) + "-" + std::to_string(count++);
}

std::error_code last_error() { return {errno, std::system_category()}; }

/// Opens a new file beside `target` and gives its name. Another machine's process may have the
/// number of this one, and anybody may have put a link there.
int open_part(const std::string& target, mode_t mode, std::string& part) {
  for (;;) {
    part = part_name(target);
    const int descriptor = ::open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (descriptor >= 0 || errno != EEXIST) return descriptor;
  }
}

}  // namespace

PartFile::PartFile(const std::string& path) : target_(link_target(path, error_)) {
  if (error_) return;
  struct stat before {};
  const bool replaces = ::stat(target_.c_str(), &before) == 0;
  if (!replaces && errno != ENOENT) {  // a name that is too long, which the part's is not
    error_ = last_error();
    return;
  }
  // Private until it has the permissions of what it replaces, which the umask does not narrow.
  descriptor_ = open_part(target_, replaces ? S_IRUSR | S_IWUSR : 0666, part_);
  if (descriptor_ < 0) {
    error_ = last_error();
    return;
  }
  unnamed_ = true;
  // Not before: a handler would remove what somebody else has under this name.
  slot_ = list_unfinished(part_.c_str());
  // A file system without permissions refuses; the content matters more.
  if (replaces) static_cast<void>(::fchmod(descriptor_, before.st_mode & 0777));
}

PartFile::~PartFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (unnamed_) ::unlink(part_.c_str());
  if (slot_ >= 0) unfinished[slot_] = nullptr;
}

std::error_code PartFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return last_error();
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return {};
}

std::error_code PartFile::finish() {
  if (descriptor_ < 0) return {};
  // A full disk may show itself only here.
  if (::close(std::exchange(descriptor_, -1)) != 0) return last_error();
  return {};
}

std::error_code PartFile::commit() {
  if (const std::error_code error = finish()) return error;
  if (std::rename(part_.c_str(), target_.c_str()) != 0) return last_error();
  unnamed_ = false;
  return {};
}

void remove_unfinished_parts() noexcept {
  for (const auto& name : unfinished) {
    if (const char* part = name.load()) ::unlink(part);
  }
}

}  // namespace polyhead::inline v0::base
