#include "models/formats/safetensors.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "models/formats/file_error.hpp"
#include "models/formats/json_text.hpp"
#include "models/formats/mapped_file.hpp"

namespace polyhead::inline v0::formats {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMaxHeaderBytes = 16u << 20;  // models of a thousand tensors have 100 KiB
constexpr int kMaxDepth = 4;                          // { name: { "shape": [ number ] } }

struct DType {
  const char* name;
  int bits;
  std::optional<ElementType> type;  ///< none: known to the format, not to this library
};

constexpr std::array<DType, 16> kDTypes{
    {{"F32", 32, ElementType::float32},
     {"F16", 16, ElementType::float16},
     {"BF16", 16, ElementType::bfloat16},
     {"I32", 32, ElementType::int32},
     {"I64", 64, ElementType::int64},
     {"BOOL", 8, ElementType::boolean},
     {"F64", 64, std::nullopt},  // tensor() converts it
     {"C64", 64, std::nullopt},
     {"I16", 16, std::nullopt},
     {"I8", 8, std::nullopt},
     {"U8", 8, ElementType::boolean},  // as .npy's: bytes, or the bits of a mask
     {"U16", 16, std::nullopt},
     {"U32", 32, std::nullopt},
     {"U64", 64, std::nullopt},
     {"F8_E4M3", 8, std::nullopt},
     {"F8_E5M2", 8, std::nullopt}}};

const DType* find_dtype(std::string_view name) {
  const auto* found =
      std::find_if(kDTypes.begin(), kDTypes.end(), [&](const DType& d) { return d.name == name; });
  return found == kDTypes.end() ? nullptr : found;
}

/// A list of whole numbers from 0 to 2^63 - 1.
std::vector<std::int64_t> whole_numbers(const json& from,
                                        const std::function<void(const std::string&)>& refuse,
                                        const char* what) {
  if (!from.is_array()) refuse(std::string(what) + " is not a list");
  std::vector<std::int64_t> numbers;
  for (const json& number : from) {
    if (!number.is_number_unsigned() ||
        number.get<std::uint64_t>() >
            static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      refuse(std::string(what) + " holds something else than whole numbers from 0 to 2^63 - 1");
    }
    numbers.push_back(number.get<std::int64_t>());
  }
  return numbers;
}

void check_metadata(const std::string& path, const json& metadata) {
  const bool strings =
      metadata.is_object() &&
      std::all_of(metadata.begin(), metadata.end(), [](const json& v) { return v.is_string(); });
  if (!strings) throw FileError(path, "safetensors header: __metadata__ is not a table of strings");
}

}  // namespace

Safetensors::Safetensors(const std::string& path) : path_(path) {
  auto file = std::make_shared<const MappedFile>(path);
  const std::span<const std::byte> bytes(file->data(), file->size());
  owner_ = std::move(file);
  parse(bytes);
}

Safetensors::Safetensors(const std::string& path, std::span<const std::byte> file,
                         std::shared_ptr<const void> owner)
    : path_(path), owner_(std::move(owner)) {
  parse(file);
}

void Safetensors::parse(std::span<const std::byte> file) {
  if (file.size() < 8)
    throw FileError(path_,
                    "is not a safetensors file: shorter than the 8 bytes of its header's length");
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  if (length > file.size() - 8) {
    throw FileError(path_, "promises a safetensors header of " + std::to_string(length) +
                               " bytes, the file has " + std::to_string(file.size() - 8));
  }
  if (length > kMaxHeaderBytes) {
    throw FileError(
        path_, "has a safetensors header of " + std::to_string(length) + " bytes (at most 16 MiB)");
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + 8,
                              static_cast<std::size_t>(length));
  if (!text.starts_with('{'))
    throw FileError(path_, "is not a safetensors file: its header does not begin with '{'");
  data_ = file.data() + 8 + length;
  const json header = parse_json(path_, "safetensors header", text, kMaxDepth);
  if (text[text.find_last_not_of(' ')] != '}')
    throw FileError(path_, "safetensors header: ends with something else than '}' and spaces");
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      check_metadata(path_, value);
      continue;
    }
    const auto refuse = [&, tensor = name](const std::string& why) {
      throw FileError(path_, "tensor " + quote(tensor) + ": " + why);
    };
    if (!value.is_object() || value.size() != 3 || !value.contains("dtype") ||
        !value.contains("shape") || !value.contains("data_offsets")) {
      refuse("expected exactly dtype, shape and data_offsets");
    }
    if (!value["dtype"].is_string()) refuse("dtype is not a string");
    Entry entry;
    entry.dtype = value["dtype"].get<std::string>();
    entry.shape = whole_numbers(value["shape"], refuse, "shape");
    const std::vector<std::int64_t> offsets =
        whole_numbers(value["data_offsets"], refuse, "data_offsets");
    if (offsets.size() != 2 || offsets[0] > offsets[1]) refuse("data_offsets is not [begin, end]");
    entry.begin = static_cast<std::uint64_t>(offsets[0]);
    entry.end = static_cast<std::uint64_t>(offsets[1]);
    const DType* dtype = find_dtype(entry.dtype);
    const std::int64_t count = element_count(entry.shape);
    if (count < 0)
      refuse("shape " + shape_text(entry.shape) + " has more elements than can be addressed");
    if (dtype != nullptr) {
      const std::uint64_t bytes = static_cast<std::uint64_t>(dtype->bits / 8);
      if (static_cast<std::uint64_t>(count) > std::numeric_limits<std::uint64_t>::max() / bytes ||
          static_cast<std::uint64_t>(count) * bytes != entry.end - entry.begin) {
        refuse("shape " + shape_text(entry.shape) + " of " + entry.dtype + " does not fill its " +
               std::to_string(entry.end - entry.begin) + " bytes");
      }
    }
    tensors_.emplace(name, std::move(entry));
  }
  check_coverage(file.size() - 8 - length);
}

void Safetensors::check_coverage(std::uint64_t data_bytes) const {
  std::vector<std::pair<const Entry*, const std::string*>> order;
  order.reserve(tensors_.size());
  for (const auto& [name, entry] : tensors_) order.emplace_back(&entry, &name);
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first->begin, a.first->end) < std::pair(b.first->begin, b.first->end);
  });
  std::uint64_t covered = 0;
  for (const auto& [entry, name] : order) {
    if (entry->begin != covered) {
      throw FileError(path_, "tensor " + quote(*name) + " begins at byte " +
                                 std::to_string(entry->begin) + " of the data where " +
                                 std::to_string(covered) +
                                 " was expected: tensors overlap or leave a hole");
    }
    covered = entry->end;
  }
  if (covered != data_bytes) {
    throw FileError(path_, "its tensors take " + std::to_string(covered) + " bytes, the file has " +
                               std::to_string(data_bytes) +
                               (covered < data_bytes ? " (trailing bytes)" : " (cut short)"));
  }
}

std::vector<std::string> Safetensors::names() const {
  std::vector<std::string> list;
  list.reserve(tensors_.size());
  for (const auto& [name, entry] : tensors_) list.push_back(name);
  return list;
}

const Safetensors::Entry& Safetensors::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  if (found != tensors_.end()) return found->second;
  std::string known;
  int listed = 0;
  for (const auto& [other, entry] : tensors_) {
    if (++listed > 8) break;
    known += (listed > 1 ? ", " : "") + quote(other);
  }
  throw FileError(path_, "has no tensor " + quote(name) + " (it has " +
                             (known.empty() ? "none" : known + (listed > 8 ? ", ..." : "")) + ")");
}

Safetensors::Stored Safetensors::stored(std::string_view name) const {
  const Entry& entry = find(name);
  return {entry.dtype, entry.shape,
          std::span(data_ + entry.begin, static_cast<std::size_t>(entry.end - entry.begin))};
}

Array Safetensors::tensor(std::string_view name) const {
  const Entry& entry = find(name);
  const DType* dtype = find_dtype(entry.dtype);
  const bool float64 = entry.dtype == "F64";
  if (dtype == nullptr || (!dtype->type && !float64)) {
    throw FileError(path_, "tensor " + quote(name) + " has type " + quote(entry.dtype) +
                               " (expected F32, F16, BF16, F64, I32, I64, BOOL or U8)");
  }
  if (entry.shape.size() > static_cast<std::size_t>(kMaxAxes)) {
    throw FileError(path_, "tensor " + quote(name) + " has " + std::to_string(entry.shape.size()) +
                               " axes (at most " + std::to_string(kMaxAxes) + ")");
  }
  const std::byte* const data = data_ + entry.begin;
  const detail::Layout layout = dense_layout(entry.shape);
  const std::int64_t count = element_count(entry.shape);
  if (float64) return array_of_float64(path_ + ":" + std::string(name), data, layout, count);
  return array_at(data, *dtype->type, layout, count, owner_);
}

}  // namespace polyhead::inline v0::formats
