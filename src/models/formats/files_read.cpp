#include "models/formats/files_read.hpp"

#include <set>
#include <utility>

namespace polyhead::inline v0::formats {
namespace {

using Identity = std::pair<dev_t, ino_t>;

thread_local std::set<Identity> files_read;

Identity identity_of(const struct stat& file) { return {file.st_dev, file.st_ino}; }

}  // namespace

void note_read(const struct stat& file) { files_read.insert(identity_of(file)); }

bool was_read(const struct stat& file) { return files_read.contains(identity_of(file)); }

FilesRead::FilesRead() { files_read.clear(); }
FilesRead::~FilesRead() { files_read.clear(); }

}  // namespace polyhead::inline v0::formats
