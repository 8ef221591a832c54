#include "cache/saved_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/link_target.hpp"
#include "base/part_name.hpp"
#include "base/refuse.hpp"

namespace polyhead::inline v0::cache {
namespace {

/// An open file, closed when it goes.
class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File() { close(); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int descriptor() const { return descriptor_; }
  bool close() { return descriptor_ < 0 || ::close(std::exchange(descriptor_, -1)) == 0; }

  bool write(std::span<const std::byte> bytes) const {
    while (!bytes.empty()) {
      const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
      if (written < 0 && errno != EINTR) return false;
      bytes = bytes.subspan(static_cast<std::size_t>(std::max<ssize_t>(written, 0)));
    }
    return true;
  }

 private:
  int descriptor_;
};

[[noreturn]] void cannot(const char* call, const std::string& path, const char* what) {
  const int error = errno;
  base::refuse(call, path, " cannot be ", what, ": ", std::strerror(error));
}

/// Removes a file that is not wanted any more, unless it is told that it is.
class Unfinished {
 public:
  explicit Unfinished(const std::string& name) : name_(name) {}
  ~Unfinished() {
    if (!kept_) ::unlink(name_.c_str());
  }
  Unfinished(const Unfinished&) = delete;
  Unfinished& operator=(const Unfinished&) = delete;
  void keep() { kept_ = true; }

 private:
  const std::string& name_;
  bool kept_ = false;
};

/// Opens a new file beside `target` and gives its name.
int open_part(const std::string& target, mode_t mode, std::string& part) {
  for (;;) {
    part = base::part_name(target);
    const int descriptor = ::open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (descriptor >= 0 || errno != EEXIST) return descriptor;
  }
}

void write_through(const char* call, const std::string& path, std::span<const std::byte> bytes) {
  File file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (file.descriptor() < 0 || !file.write(bytes) || !file.close()) cannot(call, path, "written");
}

}  // namespace

std::vector<std::byte> read_file(const char* call, const std::string& path,
                                 std::string_view magic) {
  constexpr std::size_t kStep = 1 << 16;  // bytes, of a pipe that does not say how many come
  const File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (file.descriptor() < 0 || ::fstat(file.descriptor(), &status) != 0)
    cannot(call, path, "opened");
  std::vector<std::byte> bytes(kStep);
  bool known = false;
  for (std::size_t size = 0;;) {
    if (size == bytes.size()) bytes.resize(2 * size);
    const ssize_t read = ::read(file.descriptor(), bytes.data() + size, bytes.size() - size);
    if (read < 0 && errno == EINTR) continue;
    if (read < 0) cannot(call, path, "read");
    size += static_cast<std::size_t>(read);
    const bool other =
        size >= magic.size() && std::memcmp(bytes.data(), magic.data(), magic.size()) != 0;
    if (read == 0 || other) {
      bytes.resize(size);
      return bytes;
    }
    if (known || size < magic.size()) continue;
    known = true;
    // One more than there are, to see the end.
    if (S_ISREG(status.st_mode))
      bytes.resize(std::max(size, static_cast<std::size_t>(status.st_size) + 1));
  }
}

void write_file(const char* call, const std::string& path, std::span<const std::byte> bytes) {
  std::error_code error;
  const std::string target = base::link_target(path, error);
  if (error) base::refuse(call, path, " cannot be written: ", error.message());
  struct stat before {};
  const bool exists = ::stat(target.c_str(), &before) == 0;
  if (exists && !S_ISREG(before.st_mode)) return write_through(call, path, bytes);
  std::string part;
  // Private until it has the permissions of what it replaces.
  File file(open_part(target, exists ? S_IRUSR | S_IWUSR : 0666, part));
  if (file.descriptor() < 0) cannot(call, path, "written");
  Unfinished unfinished(part);
  if (exists) ::fchmod(file.descriptor(), before.st_mode & 07777);
  // A full disk may show itself only in close().
  if (!file.write(bytes) || !file.close() || std::rename(part.c_str(), target.c_str()) != 0)
    cannot(call, path, "written");
  unfinished.keep();
}

}  // namespace polyhead::inline v0::cache
