// Safetensors files: named arrays, a JSON header and one block of bytes.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/formats/array.hpp"

namespace polyhead::inline v0::formats {

/// The tensors of a .safetensors file, mapped: nothing is read before it is asked for.
///
/// The whole header is checked on opening: its length against the file, JSON without duplicate
/// names, every tensor's type, shape and offsets against each other, and that the tensors cover the
/// data without overlaps, holes or trailing bytes. Headers over 16 MiB are refused. Tensors of
/// types other than F32, F16, BF16, F64 (read as float32), I32, I64, BOOL and U8 (as boolean) are
/// listed, and refused only when asked for.
/// Throws FileError. Source: the format's description, huggingface/safetensors.
class Safetensors {
 public:
  explicit Safetensors(const std::string& path);

  /// The same for a file that is already in memory; `path` is only the name used in messages.
  Safetensors(const std::string& path, std::span<const std::byte> file,
              std::shared_ptr<const void> owner);

  std::vector<std::string> names() const;

  /// The tensor of that name; throws FileError when there is none (listing near names), when its
  /// type is not supported or when it has more than kMaxAxes axes.
  Array tensor(std::string_view name) const;

  /// A tensor of any type as it lies in the file, wherever that is; views live as long as this.
  struct Stored {
    std::string_view dtype;
    std::span<const std::int64_t> shape;
    std::span<const std::byte> data;
  };
  Stored stored(std::string_view name) const;  ///< throws FileError when there is none

  const std::string& path() const { return path_; }

 private:
  struct Entry {
    std::string dtype;
    std::vector<std::int64_t> shape;
    std::uint64_t begin = 0, end = 0;  ///< bytes in the data block
  };

  const Entry& find(std::string_view name) const;
  void parse(std::span<const std::byte> file);
  void check_coverage(std::uint64_t data_bytes) const;

  std::string path_;
  std::shared_ptr<const void> owner_;
  const std::byte* data_ = nullptr;
  std::map<std::string, Entry, std::less<>> tensors_;
};

}  // namespace polyhead::inline v0::formats
