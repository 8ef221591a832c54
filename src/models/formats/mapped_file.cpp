#include "models/formats/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "models/formats/file_error.hpp"
#include "models/formats/files_read.hpp"

namespace polyhead::inline v0::formats {
namespace {

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

constexpr int kSlots = 256;  // mapped files that a signal handler can name

// Listed while they live: files are neither copied nor moved.
std::atomic<const MappedFile*> mapped_files[kSlots];

int list_mapped(const MappedFile* file) {
  for (int slot = 0; slot < kSlots; ++slot) {
    const MappedFile* none = nullptr;
    if (mapped_files[slot].compare_exchange_strong(none, file)) return slot;
  }
  return -1;
}

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  // O_NONBLOCK: opening a named pipe would otherwise wait for a writer; regular files ignore it.
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) throw FileError(path, std::string("cannot be opened: ") + std::strerror(errno));
  struct stat status {};
  if (::fstat(file.fd, &status) != 0) {
    throw FileError(path, std::string("cannot be examined: ") + std::strerror(errno));
  }
  if (!S_ISREG(status.st_mode)) throw FileError(path, "is not a regular file");
  note_read(status);
  size_ = static_cast<std::size_t>(status.st_size);
  if (size_ == 0) return;  // an empty mapping is an error to mmap, not to us
  void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (mapped == MAP_FAILED)
    throw FileError(path, std::string("cannot be mapped: ") + std::strerror(errno));
  data_ = static_cast<const std::byte*>(mapped);
  slot_ = list_mapped(this);
}

MappedFile::~MappedFile() {
  if (slot_ >= 0) mapped_files[slot_] = nullptr;
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

const char* mapped_file_at(const void* address) noexcept {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  for (const std::atomic<const MappedFile*>& slot : mapped_files) {
    const MappedFile* file = slot;
    if (file == nullptr) continue;
    const auto begin = reinterpret_cast<std::uintptr_t>(file->data_);
    if (at >= begin && at - begin < file->size_) return file->path_.c_str();
  }
  return nullptr;
}

}  // namespace polyhead::inline v0::formats
