// A file that appears under its name only when it is complete.
#pragma once

#include <cstddef>
#include <string>

namespace polyhead::inline v0::formats {

/// Writes to a name of its own beside `path` (base::part_name) and renames it to `path` on
/// commit(). Destroyed before that, or when the process is interrupted and its signal handler calls
/// remove_unfinished_outputs(), nothing is left behind and what stood under `path` before is
/// untouched. A file that is replaced hands on its permissions; where `path` is a symbolic link,
/// what it points to is written. Throws FileError, for "-" too: files alone appear when complete.
class OutputFile {
 public:
  explicit OutputFile(const std::string& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  const std::string& path() const { return path_; }  ///< as given

  void write(const void* data, std::size_t bytes);

  /// Ends the writing, so that commit() only renames: what a full disk refuses is refused here.
  /// For several files that should all appear or none.
  void finish();
  void commit();

 private:
  void flush();
  void write_through(const char* at, std::size_t bytes);

  std::string path_;    ///< as given, for messages
  std::string target_;  ///< the same behind symbolic links
  std::string part_;
  std::string buffer_;    ///< small writes gathered: strided arrays come an element at a time
  int descriptor_ = -1;   ///< until it is finished
  bool unnamed_ = false;  ///< the part is there, and not yet under its name
  int slot_ = -1;         ///< place in the list that remove_unfinished_outputs() walks
};

/// Throws what OutputFile would for a place that cannot be written: for long work, before it.
inline void check_writable(const std::string& path) { const OutputFile probe(path); }

/// Removes the parts of all OutputFiles not yet committed. Safe to call in a signal handler, before
/// leaving.
void remove_unfinished_outputs() noexcept;

}  // namespace polyhead::inline v0::formats
