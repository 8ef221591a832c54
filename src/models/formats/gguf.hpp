// GGUF files: metadata by key and named tensors, plain or quantised.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/weight_type.hpp"

namespace polyhead::inline v0::formats {

/// A tensor as it lies in the file.
struct GgufTensor {
  std::string_view name;
  WeightType type = WeightType::float32;
  std::vector<std::int64_t> shape;  ///< outermost first (the file has the innermost first)
  std::span<const std::byte> data;
};

/// A GGUF file of version 3 (or 2, which differs in nothing that is read here), mapped: metadata
/// and tensors are checked on opening and read when asked for.
///
/// Checked before anything is allocated by what the file says: every count against the bytes that
/// are left, types, alignment, names that stand twice, shapes whose size overflows or is not whole
/// blocks, tensors outside the file or over each other. In time linear in the header, but for the
/// sorting of its names. Refused by name: big-endian files, version 1, arrays of arrays, tensors of
/// types other than WeightType's. Throws FileError. Source: ggml's gguf.md.
///
/// The views that are handed out live as long as this object or a copy of it.
class Gguf {
 public:
  explicit Gguf(const std::string& path);

  /// The same for a file that is already in memory; `path` is only the name used in messages.
  Gguf(const std::string& path, std::span<const std::byte> file, std::shared_ptr<const void> owner);

  const std::string& path() const { return path_; }
  bool has(std::string_view key) const { return values_.contains(key); }
  std::vector<std::string_view> keys() const;  ///< sorted

  /// The value of a key; none when there is no such key. Throws FileError when it has another type
  /// or (integers) does not fit. `real` takes integers as well.
  std::optional<std::string_view> text(std::string_view key) const;
  std::optional<std::int64_t> integer(std::string_view key) const;
  std::optional<double> real(std::string_view key) const;
  std::optional<bool> boolean(std::string_view key) const;

  /// Arrays, likewise. `integers` takes booleans too.
  bool is_array(std::string_view key) const;
  std::optional<std::vector<std::string_view>> texts(std::string_view key) const;
  std::optional<std::vector<std::int64_t>> integers(std::string_view key) const;
  std::optional<std::vector<float>> reals(std::string_view key) const;

  const std::vector<GgufTensor>& tensors() const { return tensors_; }  ///< in file order
  const GgufTensor* tensor(std::string_view name) const;               ///< null: none of that name

 private:
  enum class Type : std::uint32_t {
    uint8,
    int8,
    uint16,
    int16,
    uint32,
    int32,
    float32,
    boolean,
    string,
    array,
    uint64,
    int64,
    float64
  };
  struct Value {
    Type type = Type::uint8;  ///< of the elements, where it is an array
    bool array = false;
    std::uint64_t count = 1;
    std::span<const std::byte> data;  ///< strings with their lengths before them
  };
  class Cursor;

  static std::size_t type_bytes(Type type);
  static const char* type_name(Type type);
  void parse(std::span<const std::byte> file);
  Value read_value(Cursor& cursor, std::string_view key) const;
  GgufTensor read_tensor(Cursor& cursor, std::uint64_t& offset) const;
  void place_tensors(std::span<const std::byte> file, std::size_t header_bytes,
                     const std::vector<std::uint64_t>& offsets);
  const Value* find(std::string_view key, bool array) const;
  [[noreturn]] void refuse_type(std::string_view key, const Value& value,
                                const char* expected) const;
  std::int64_t integer_at(std::string_view key, const Value& value, std::uint64_t index) const;
  double real_at(std::string_view key, const Value& value, std::uint64_t index) const;

  std::string path_;
  std::shared_ptr<const void> owner_;
  std::map<std::string_view, Value> values_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string_view, std::size_t> by_name_;
};

}  // namespace polyhead::inline v0::formats
