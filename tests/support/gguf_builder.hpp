// GGUF files for tests, byte by byte: honest ones, and lying ones where a test says so.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace polyhead::test {

/// Numbers as they lie in the file.
template <class T>
std::string raw(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

class GgufBuilder {
 public:
  enum Type : std::uint32_t {
    u8,
    i8,
    u16,
    i16,
    u32,
    i32,
    f32,
    boolean,
    string,
    array,
    u64,
    i64,
    f64
  };

  std::uint32_t version = 3;
  std::uint64_t alignment = 32;
  std::uint64_t extra_values = 0, extra_tensors = 0;  ///< promised, not there

  static std::string text(const std::string& value) {
    return raw<std::uint64_t>(value.size()) + value;
  }

  GgufBuilder& value(const std::string& key, std::uint32_t type, const std::string& bytes) {
    values_.push_back(text(key) + raw(type) + bytes);
    return *this;
  }
  GgufBuilder& remove(const std::string& key) {
    std::erase_if(values_, [&](const std::string& entry) { return entry.starts_with(text(key)); });
    return *this;
  }
  /// In place of what was set under that key, or besides.
  GgufBuilder& replace(const std::string& key, std::uint32_t is) {
    return remove(key).set(key, is);
  }
  GgufBuilder& set(const std::string& key, const std::string& is) {
    return value(key, string, text(is));
  }
  GgufBuilder& set(const std::string& key, std::uint32_t is) { return value(key, u32, raw(is)); }
  GgufBuilder& set(const std::string& key, float is) { return value(key, f32, raw(is)); }
  GgufBuilder& set(const std::string& key, bool is) {
    return value(key, boolean, std::string(1, is ? '\1' : '\0'));
  }
  GgufBuilder& list(const std::string& key, std::uint32_t type, std::uint64_t count,
                    const std::string& bytes) {
    return value(key, array, raw(type) + raw(count) + bytes);
  }

  /// `shape` outermost first, as everywhere here; the file has it the other way round.
  GgufBuilder& tensor(const std::string& name, std::uint32_t type,
                      const std::vector<std::uint64_t>& shape, const std::string& data) {
    return tensor_at(name, type, shape, end_of_data(), data);
  }
  GgufBuilder& tensor_at(const std::string& name, std::uint32_t type,
                         const std::vector<std::uint64_t>& shape, std::uint64_t offset,
                         const std::string& data) {
    std::string info = text(name) + raw(static_cast<std::uint32_t>(shape.size()));
    for (auto extent = shape.rbegin(); extent != shape.rend(); ++extent) info += raw(*extent);
    tensors_.push_back(info + raw(type) + raw(offset));
    data_.resize(end_of_data(), '\0');
    data_ += data;
    return *this;
  }

  std::string build() const {
    std::string file = "GGUF" + raw(version) + raw<std::uint64_t>(tensors_.size() + extra_tensors) +
                       raw<std::uint64_t>(values_.size() + extra_values);
    for (const std::string& value : values_) file += value;
    for (const std::string& tensor : tensors_) file += tensor;
    if (!data_.empty()) file.resize((file.size() + alignment - 1) / alignment * alignment, '\0');
    return file + data_;
  }

 private:
  std::uint64_t end_of_data() const {
    return (data_.size() + alignment - 1) / alignment * alignment;
  }

  std::vector<std::string> values_, tensors_;
  std::string data_;
};

}  // namespace polyhead::test
