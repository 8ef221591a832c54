// A file while it is written, under a name of its own beside the place that it is for.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <system_error>

namespace polyhead::inline v0::base {

/// A new file beside `path` that takes its place on commit(). Destroyed before that, or when a
/// signal handler calls remove_unfinished_parts(), nothing is left and what stood at `path` is
/// untouched. A file that is replaced hands on its permissions; where `path` is a symbolic link,
/// what it leads to is replaced. Never opens what is already there.
class PartFile {
 public:
  explicit PartFile(const std::string& path);
  ~PartFile();
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;

  /// Why there is no such file; none where there is.
  std::error_code error() const { return error_; }

  // Each says what went wrong.
  std::error_code write(std::span<const std::byte> bytes);
  /// Ends the writing, so that commit() only renames: what a full disk refuses is refused here.
  std::error_code finish();
  std::error_code commit();

 private:
  std::error_code error_;  // first: finding the target sets it
  std::string target_, part_;
  int descriptor_ = -1;   ///< until it is finished
  int slot_ = -1;         ///< place in the list that remove_unfinished_parts() walks
  bool unnamed_ = false;  ///< the part is there, and not yet under its name
};

/// Removes the parts of all PartFiles not yet committed. Safe to call in a signal handler, before
/// leaving.
void remove_unfinished_parts() noexcept;

}  // namespace polyhead::inline v0::base
