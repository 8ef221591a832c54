// A file that appears under its name only when it is complete.
#pragma once

#include <cstddef>
#include <string>
#include <system_error>

#include "base/part_file.hpp"

namespace polyhead::inline v0::formats {

/// What a PartFile is, with a buffer and with errors that name the path. Throws FileError, for "-"
/// too, for what is no regular file (files alone appear when complete), and for one that this run
/// has read (files_read.hpp).
class OutputFile {
 public:
  explicit OutputFile(const std::string& path);

  const std::string& path() const { return path_; }  ///< as given

  void write(const void* data, std::size_t bytes);

  /// Ends the writing, so that commit() only renames: what a full disk refuses is refused here.
  /// For several files that should all appear or none.
  void finish();
  void commit();

 private:
  void check(std::error_code error) const;
  void flush();

  std::string path_;  ///< as given, for messages
  base::PartFile part_;
  std::string buffer_;  ///< small writes gathered: strided arrays come an element at a time
};

/// Throws what OutputFile would for a place that cannot be written: for long work, before it.
inline void check_writable(const std::string& path) { const OutputFile probe(path); }

}  // namespace polyhead::inline v0::formats
