#include "models/formats/files_read.hpp"

namespace polyhead::inline v0::formats {
namespace {

thread_local FilesRead* this_run = nullptr;

}  // namespace

FilesRead::FilesRead() { this_run = this; }
FilesRead::~FilesRead() { this_run = nullptr; }

void note_read(const struct stat& file) {
  if (this_run != nullptr) this_run->files_.emplace(file.st_dev, file.st_ino);
}

bool was_read(const struct stat& file) {
  return this_run != nullptr && this_run->files_.contains({file.st_dev, file.st_ino});
}

}  // namespace polyhead::inline v0::formats
