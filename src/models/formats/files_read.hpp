// The files that a run has read, of which no result may take the place.
#pragma once

#include <sys/stat.h>

namespace polyhead::inline v0::formats {

/// A run, before and after which nothing has been read. Of one thread: the one that opens a
/// command's files.
class FilesRead {
 public:
  FilesRead();
  ~FilesRead();
  FilesRead(const FilesRead&) = delete;
  FilesRead& operator=(const FilesRead&) = delete;
};

/// By device and number: two names of one file are the same.
void note_read(const struct stat& file);
bool was_read(const struct stat& file);

}  // namespace polyhead::inline v0::formats
