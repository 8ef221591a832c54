// A whole file as read-only memory.
#pragma once

#include <cstddef>
#include <string>

namespace polyhead::inline v0::formats {

/// A regular file mapped read-only for as long as this object lives; pages are read when touched.
///
/// The size is taken once, when the file is opened. A file that another program cuts while it is
/// mapped raises SIGBUS when the missing pages are touched: do not overwrite inputs in place while
/// they are in use (replacing them by rename is safe, the mapping keeps the old file). The program
/// says so and leaves with a failure (cli/signals.hpp). Throws FileError when the path is missing,
/// unreadable or not a regular file.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  friend const char* mapped_file_at(const void* address) noexcept;

  std::string path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  int slot_ = -1;  ///< place in the list that mapped_file_at() walks
};

/// The path of the file that is mapped at `address`, or null. Safe in a signal handler.
const char* mapped_file_at(const void* address) noexcept;

}  // namespace polyhead::inline v0::formats
