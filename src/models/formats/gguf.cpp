#include "models/formats/gguf.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "base/joined.hpp"
#include "models/formats/array.hpp"
#include "models/formats/file_error.hpp"
#include "models/formats/mapped_file.hpp"

namespace polyhead::inline v0::formats {
namespace {

static_assert(std::endian::native == std::endian::little, "values are copied as they lie");

constexpr std::uint64_t kDefaultAlignment = 32;
constexpr std::uint64_t kMaxAlignment = 1u << 20;             // GGUF names no limit; files have 32
constexpr std::uint64_t kMaxNameBytes = 65535;                // gguf.md: keys are at most this long
constexpr std::uint32_t kMaxTensorAxes = 4;                   // GGML_MAX_DIMS
constexpr std::uint64_t kMinValueBytes = 8 + 1 + 4 + 1;       // key of one letter, type, one byte
constexpr std::uint64_t kMinTensorBytes = 8 + 1 + 4 + 4 + 8;  // name, axes (none), type, offset

struct TensorType {
  std::uint32_t id;  ///< ggml_type
  WeightType type;
};

constexpr std::array<TensorType, kWeightTypes> kTensorTypes{{{0, WeightType::float32},
                                                             {1, WeightType::float16},
                                                             {30, WeightType::bfloat16},
                                                             {2, WeightType::q4_0},
                                                             {3, WeightType::q4_1},
                                                             {6, WeightType::q5_0},
                                                             {7, WeightType::q5_1},
                                                             {8, WeightType::q8_0},
                                                             {10, WeightType::q2_k},
                                                             {11, WeightType::q3_k},
                                                             {12, WeightType::q4_k},
                                                             {13, WeightType::q5_k},
                                                             {14, WeightType::q6_k}}};

template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

}  // namespace

/// Walks through the file's bytes and refuses to leave them.
class Gguf::Cursor {
 public:
  Cursor(const std::string& path, std::span<const std::byte> file) : path_(path), file_(file) {}

  std::size_t at() const { return at_; }
  std::uint64_t left() const { return file_.size() - at_; }

  std::span<const std::byte> take(std::uint64_t bytes, const char* what) {
    if (bytes > left()) {
      throw FileError(path_, std::string("ends within ") + what + ": " + std::to_string(bytes) +
                                 " bytes expected at byte " + std::to_string(at_) + ", " +
                                 std::to_string(left()) + " are left");
    }
    const auto taken = file_.subspan(at_, static_cast<std::size_t>(bytes));
    at_ += static_cast<std::size_t>(bytes);
    return taken;
  }

  template <class T>
  T number(const char* what) {
    return load<T>(take(sizeof(T), what).data());
  }

  std::string_view text(const char* what) {
    const auto bytes = take(number<std::uint64_t>(what), what);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

 private:
  const std::string& path_;
  std::span<const std::byte> file_;
  std::size_t at_ = 0;
};

Gguf::Gguf(const std::string& path) : path_(path) {
  auto file = std::make_shared<const MappedFile>(path);
  const std::span<const std::byte> bytes(file->data(), file->size());
  owner_ = std::move(file);
  parse(bytes);
}

Gguf::Gguf(const std::string& path, std::span<const std::byte> file,
           std::shared_ptr<const void> owner)
    : path_(path), owner_(std::move(owner)) {
  parse(file);
}

std::size_t Gguf::type_bytes(Type type) {
  constexpr std::size_t bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return bytes[static_cast<std::size_t>(type)];
}

const char* Gguf::type_name(Type type) {
  constexpr const char* names[] = {"uint8",  "int8",    "uint16", "int16", "uint32",
                                   "int32",  "float32", "bool",   "text",  "array",
                                   "uint64", "int64",   "float64"};
  return names[static_cast<std::size_t>(type)];
}

void Gguf::parse(std::span<const std::byte> file) {
  Cursor cursor(path_, file);
  if (file.size() < 4 || std::memcmp(file.data(), "GGUF", 4) != 0) {
    throw FileError(path_, "is not a GGUF file: it does not begin with 'GGUF'");
  }
  cursor.take(4, "the header");
  const auto version = cursor.number<std::uint32_t>("the header");
  if (version == 0x02000000u || version == 0x03000000u) {
    throw FileError(path_, "is a big-endian GGUF file (expected little-endian)");
  }
  if (version != 2 && version != 3) {
    throw FileError(path_, "has GGUF version " + std::to_string(version) + " (expected 3 or 2)");
  }
  const auto tensors = cursor.number<std::uint64_t>("the header");
  const auto values = cursor.number<std::uint64_t>("the header");
  if (values > cursor.left() / kMinValueBytes ||
      tensors > (cursor.left() - values * kMinValueBytes) / kMinTensorBytes) {
    throw FileError(path_, "promises " + std::to_string(values) + " metadata values and " +
                               std::to_string(tensors) + " tensors, more than its " +
                               std::to_string(file.size()) + " bytes can hold");
  }
  for (std::uint64_t i = 0; i < values; ++i) {
    const std::string_view key = cursor.text("a metadata key");
    if (key.empty() || key.size() > kMaxNameBytes) {
      throw FileError(path_, "has a metadata key of " + std::to_string(key.size()) +
                                 " bytes (expected 1 to 65535)");
    }
    if (!values_.try_emplace(key, read_value(cursor, key)).second) {
      throw FileError(path_, "metadata key " + quote(key) + " stands twice");
    }
  }
  std::vector<std::uint64_t> offsets(static_cast<std::size_t>(tensors));
  tensors_.reserve(static_cast<std::size_t>(tensors));
  for (std::uint64_t& offset : offsets) tensors_.push_back(read_tensor(cursor, offset));
  place_tensors(file, cursor.at(), offsets);
}

Gguf::Value Gguf::read_value(Cursor& cursor, std::string_view key) const {
  const auto type_of = [&](std::uint32_t id) {
    if (id > static_cast<std::uint32_t>(Type::float64)) {
      throw FileError(path_, "metadata " + quote(key) + " has type " + std::to_string(id) +
                                 " (expected 0 to 12)");
    }
    return static_cast<Type>(id);
  };
  Value value;
  value.type = type_of(cursor.number<std::uint32_t>("a metadata value"));
  if (value.type == Type::array) {
    value.array = true;
    value.type = type_of(cursor.number<std::uint32_t>("a metadata array"));
    value.count = cursor.number<std::uint64_t>("a metadata array");
    if (value.type == Type::array) {
      throw FileError(path_, "metadata " + quote(key) + " is an array of arrays");
    }
  }
  const std::uint64_t least = value.type == Type::string ? 8 : type_bytes(value.type);
  if (value.count > cursor.left() / least) {
    throw FileError(path_, "metadata " + quote(key) + " promises " + std::to_string(value.count) +
                               " elements of type " + type_name(value.type) + ", the file has " +
                               std::to_string(cursor.left()) + " bytes left");
  }
  if (value.type != Type::string) {
    value.data = cursor.take(value.count * least, "a metadata value");
  } else {
    Cursor start = cursor;
    for (std::uint64_t i = 0; i < value.count; ++i) cursor.text("a metadata text");
    value.data = start.take(cursor.at() - start.at(), "a metadata text");
  }
  if (value.type == Type::boolean && std::any_of(value.data.begin(), value.data.end(),
                                                 [](std::byte b) { return b > std::byte{1}; })) {
    throw FileError(path_, "metadata " + quote(key) + " holds a bool that is neither 0 nor 1");
  }
  return value;
}

GgufTensor Gguf::read_tensor(Cursor& cursor, std::uint64_t& offset) const {
  GgufTensor tensor;
  tensor.name = cursor.text("a tensor's name");
  const auto refuse = [&](const std::string& why) {
    throw FileError(path_, "tensor " + quote(tensor.name) + " " + why);
  };
  if (tensor.name.empty() || tensor.name.size() > kMaxNameBytes) {
    refuse("has a name of " + std::to_string(tensor.name.size()) + " bytes (expected 1 to 65535)");
  }
  const auto axes = cursor.number<std::uint32_t>("a tensor's shape");
  if (axes > kMaxTensorAxes) {
    refuse("has " + std::to_string(axes) + " axes (at most " + std::to_string(kMaxTensorAxes) +
           ")");
  }
  for (std::uint32_t axis = 0; axis < axes; ++axis) {
    const auto extent = cursor.number<std::uint64_t>("a tensor's shape");
    if (extent == 0 ||
        extent > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      refuse("has an axis of " + std::to_string(extent) + " elements");
    }
    tensor.shape.insert(tensor.shape.begin(), static_cast<std::int64_t>(extent));
  }
  const auto id = cursor.number<std::uint32_t>("a tensor's type");
  const auto* type = std::find_if(kTensorTypes.begin(), kTensorTypes.end(),
                                  [&](const TensorType& t) { return t.id == id; });
  if (type == kTensorTypes.end()) {
    const auto name = [](const TensorType& t) { return weight_type_name(t.type); };
    refuse("has type number " + std::to_string(id) + " (expected one of " +
           base::joined(kTensorTypes, ", ", name) + ")");
  }
  tensor.type = type->type;
  offset = cursor.number<std::uint64_t>("a tensor's offset");
  return tensor;
}

void Gguf::place_tensors(std::span<const std::byte> file, std::size_t header_bytes,
                         const std::vector<std::uint64_t>& offsets) {
  const auto alignment =
      static_cast<std::uint64_t>(integer("general.alignment").value_or(kDefaultAlignment));
  if (!std::has_single_bit(alignment) || alignment > kMaxAlignment) {
    throw FileError(path_, "general.alignment is " + std::to_string(alignment) +
                               " (expected a power of two up to 1048576)");
  }
  // At most file.size() + 2^20: no overflow.
  const std::uint64_t base = (header_bytes + alignment - 1) / alignment * alignment;
  const std::uint64_t room = file.size() > base ? file.size() - base : 0;
  std::vector<std::pair<std::uint64_t, std::size_t>> order;
  order.reserve(tensors_.size());
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    GgufTensor& tensor = tensors_[i];
    const auto refuse = [&](const std::string& why) {
      throw FileError(path_, "tensor " + quote(tensor.name) + " " + why);
    };
    const std::int64_t count = element_count(tensor.shape);
    const std::int64_t columns = tensor.shape.empty() ? 1 : tensor.shape.back();
    if (count < 0) {
      refuse("of shape " + shape_text(tensor.shape) + " has more elements than can be addressed");
    }
    if (columns % block_weights(tensor.type) != 0) {
      refuse("of shape " + shape_text(tensor.shape) + " has rows that are not whole blocks of " +
             std::to_string(block_weights(tensor.type)) + " (" + weight_type_name(tensor.type) +
             ")");
    }
    const auto blocks = static_cast<std::uint64_t>(count / block_weights(tensor.type));
    const auto block = static_cast<std::uint64_t>(block_bytes(tensor.type));
    if (offsets[i] % alignment != 0) {
      refuse("begins at byte " + std::to_string(offsets[i]) +
             " of the data, no multiple of the alignment " + std::to_string(alignment));
    }
    if (offsets[i] > room || blocks > (room - offsets[i]) / block) {
      refuse("of shape " + shape_text(tensor.shape) + " and type " + weight_type_name(tensor.type) +
             " at byte " + std::to_string(offsets[i]) + " lies outside the file's " +
             std::to_string(room) + " bytes of data");
    }
    tensor.data = file.subspan(static_cast<std::size_t>(base + offsets[i]),
                               static_cast<std::size_t>(blocks * block));
    order.emplace_back(offsets[i], i);
    if (!by_name_.emplace(tensor.name, i).second) refuse("stands twice");
  }
  std::sort(order.begin(), order.end());
  for (std::size_t i = 1; i < order.size(); ++i) {
    const GgufTensor& before = tensors_[order[i - 1].second];
    if (order[i - 1].first + before.data.size() > order[i].first) {
      throw FileError(path_, "tensors " + quote(before.name) + " and " +
                                 quote(tensors_[order[i].second].name) + " overlap");
    }
  }
}

const GgufTensor* Gguf::tensor(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

std::vector<std::string_view> Gguf::keys() const {
  std::vector<std::string_view> list;
  list.reserve(values_.size());
  for (const auto& [key, value] : values_) list.push_back(key);
  return list;
}

const Gguf::Value* Gguf::find(std::string_view key, bool array) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return nullptr;
  if (found->second.array != array) refuse_type(key, found->second, array ? "an array" : "a value");
  return &found->second;
}

void Gguf::refuse_type(std::string_view key, const Value& value, const char* expected) const {
  throw FileError(path_, "metadata " + quote(key) + " is " + (value.array ? "an array of " : "") +
                             type_name(value.type) + " (expected " + expected + ")");
}

std::int64_t Gguf::integer_at(std::string_view key, const Value& value, std::uint64_t index) const {
  const std::byte* at = value.data.data() + index * type_bytes(value.type);
  switch (value.type) {
    case Type::uint8:
    case Type::boolean:
      return load<std::uint8_t>(at);
    case Type::int8:
      return load<std::int8_t>(at);
    case Type::uint16:
      return load<std::uint16_t>(at);
    case Type::int16:
      return load<std::int16_t>(at);
    case Type::uint32:
      return load<std::uint32_t>(at);
    case Type::int32:
      return load<std::int32_t>(at);
    case Type::int64:
      return load<std::int64_t>(at);
    case Type::uint64: {
      const auto wide = load<std::uint64_t>(at);
      if (wide > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        throw FileError(path_, "metadata " + quote(key) + " is " + std::to_string(wide) +
                                   " (expected at most 2^63 - 1)");
      }
      return static_cast<std::int64_t>(wide);
    }
    default:
      refuse_type(key, value, value.array ? "whole numbers" : "a whole number");
  }
}

double Gguf::real_at(std::string_view key, const Value& value, std::uint64_t index) const {
  const std::byte* at = value.data.data() + index * type_bytes(value.type);
  if (value.type == Type::float32) return static_cast<double>(load<float>(at));
  if (value.type == Type::float64) return load<double>(at);
  if (value.type == Type::boolean || value.type == Type::string) {
    refuse_type(key, value, value.array ? "numbers" : "a number");
  }
  return static_cast<double>(integer_at(key, value, index));
}

std::optional<std::string_view> Gguf::text(std::string_view key) const {
  const Value* value = find(key, false);
  if (value == nullptr) return std::nullopt;
  if (value->type != Type::string) refuse_type(key, *value, "text");
  return std::string_view(reinterpret_cast<const char*>(value->data.data()) + 8,
                          value->data.size() - 8);
}

std::optional<std::int64_t> Gguf::integer(std::string_view key) const {
  const Value* value = find(key, false);
  if (value == nullptr) return std::nullopt;
  if (value->type == Type::boolean) refuse_type(key, *value, "a whole number");
  return integer_at(key, *value, 0);
}

std::optional<double> Gguf::real(std::string_view key) const {
  const Value* value = find(key, false);
  if (value == nullptr) return std::nullopt;
  return real_at(key, *value, 0);
}

std::optional<bool> Gguf::boolean(std::string_view key) const {
  const Value* value = find(key, false);
  if (value == nullptr) return std::nullopt;
  if (value->type != Type::boolean) refuse_type(key, *value, "a bool");
  return value->data[0] != std::byte{0};
}

bool Gguf::is_array(std::string_view key) const {
  const auto found = values_.find(key);
  return found != values_.end() && found->second.array;
}

std::optional<std::vector<std::string_view>> Gguf::texts(std::string_view key) const {
  const Value* value = find(key, true);
  if (value == nullptr) return std::nullopt;
  if (value->type != Type::string) refuse_type(key, *value, "an array of text");
  std::vector<std::string_view> list;
  list.reserve(static_cast<std::size_t>(value->count));  // checked: 8 bytes each at least
  Cursor cursor(path_, value->data);
  for (std::uint64_t i = 0; i < value->count; ++i) list.push_back(cursor.text("a metadata text"));
  return list;
}

std::optional<std::vector<std::int64_t>> Gguf::integers(std::string_view key) const {
  const Value* value = find(key, true);
  if (value == nullptr) return std::nullopt;
  std::vector<std::int64_t> list;
  list.reserve(static_cast<std::size_t>(value->count));
  for (std::uint64_t i = 0; i < value->count; ++i) list.push_back(integer_at(key, *value, i));
  return list;
}

std::optional<std::vector<float>> Gguf::reals(std::string_view key) const {
  const Value* value = find(key, true);
  if (value == nullptr) return std::nullopt;
  std::vector<float> list;
  list.reserve(static_cast<std::size_t>(value->count));
  for (std::uint64_t i = 0; i < value->count; ++i) {
    list.push_back(static_cast<float>(real_at(key, *value, i)));
  }
  return list;
}

}  // namespace polyhead::inline v0::formats
