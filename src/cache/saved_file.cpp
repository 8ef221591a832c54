#include "cache/saved_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <optional>
#include <system_error>
#include <utility>

#include "base/part_file.hpp"
#include "base/refuse.hpp"

namespace polyhead::inline v0::cache {
namespace {

constexpr std::size_t kBufferBytes = 1 << 18;

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

void check_named(const char* call, const std::string& path) {
  if (path.empty()) base::refuse(call, "path is empty, expected the name of a file");
}

[[noreturn]] void cannot(const char* call, const std::string& path, const char* what) {
  const int error = errno;
  base::refuse(call, path, " cannot be ", what, ": ", std::strerror(error));
}

/// A length that memory has no room for is the file's fault until something says otherwise: one
/// that has grown by mistake is refused by its name as any other.
void grow(const char* call, const std::string& path, std::vector<std::byte>& bytes,
          std::size_t size) {
  try {
    bytes.resize(size);
  } catch (const std::exception&) {
    base::refuse(call, path, " is too long: there is no memory for ", size, " bytes");
  }
}

}  // namespace

std::vector<std::byte> read_file(const char* call, const std::string& path,
                                 std::string_view magic) {
  check_named(call, path);
  constexpr std::size_t kStep = 1 << 16;  // bytes, of a pipe that does not say how many come
  const File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (file.descriptor() < 0 || ::fstat(file.descriptor(), &status) != 0)
    cannot(call, path, "opened");
  std::vector<std::byte> bytes(kStep);
  bool known = false;
  for (std::size_t size = 0;;) {
    if (size == bytes.size()) grow(call, path, bytes, 2 * size);
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
      grow(call, path, bytes, std::max(size, static_cast<std::size_t>(status.st_size) + 1));
  }
}

/// One of the two is there: a file that appears when it is complete, or what is written to.
class FileWriter::Target {
 public:
  Target(const char* call, const std::string& path) : call_(call), path_(path) {
    check_named(call, path);
    struct stat before {};
    if (::stat(path.c_str(), &before) == 0 && !S_ISREG(before.st_mode)) {
      through_.emplace(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
      check(through_->descriptor() >= 0);
    } else {
      part_.emplace(path);
      check(part_->error());
    }
  }

  void write(std::span<const std::byte> bytes) {
    part_ ? check(part_->write(bytes)) : check(through_->write(bytes));
  }
  void commit() { part_ ? check(part_->commit()) : check(through_->close()); }

 private:
  void check(std::error_code error) const {
    if (error) base::refuse(call_, path_, " cannot be written: ", error.message());
  }
  void check(bool done) const {
    if (!done) cannot(call_, path_, "written");
  }

  const char* call_;
  const std::string path_;
  std::optional<base::PartFile> part_;
  std::optional<File> through_;
};

FileWriter::FileWriter(const char* call, const std::string& path)
    : target_(std::make_unique<Target>(call, path)) {
  buffer_.reserve(kBufferBytes);
}
FileWriter::~FileWriter() = default;

void FileWriter::write(std::span<const std::byte> piece) {
  if (buffer_.size() + piece.size() > kBufferBytes) flush();
  if (piece.size() >= kBufferBytes) return target_->write(piece);
  buffer_.insert(buffer_.end(), piece.begin(), piece.end());
}

void FileWriter::flush() {
  target_->write(buffer_);
  buffer_.clear();
}

void FileWriter::commit() {
  flush();
  target_->commit();
}

}  // namespace polyhead::inline v0::cache
