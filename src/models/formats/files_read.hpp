// The files that a run has read, of which no result may take the place.
#pragma once

#include <sys/stat.h>

#include <set>
#include <utility>

namespace polyhead::inline v0::formats {

/// A run of one thread, the one that opens its files, from here to its end: one at a time.
class FilesRead {
 public:
  FilesRead();
  ~FilesRead();
  FilesRead(const FilesRead&) = delete;
  FilesRead& operator=(const FilesRead&) = delete;

 private:
  friend void note_read(const struct stat& file);
  friend bool was_read(const struct stat& file);
  std::set<std::pair<dev_t, ino_t>> files_;
};

/// By device and number: two names of one file are the same. Without a run nothing has been read.
void note_read(const struct stat& file);
bool was_read(const struct stat& file);

}  // namespace polyhead::inline v0::formats
