#include "models/formats/npy.hpp"

#include <bit>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "models/formats/file_error.hpp"
#include "models/formats/mapped_file.hpp"
#include "models/formats/npy_header.hpp"

namespace polyhead::inline v0::formats {
namespace {

static_assert(std::endian::native == std::endian::little,
              "array files are little-endian and read in place");

constexpr std::string_view kMagic("\x93NUMPY", 6);
constexpr std::size_t kMaxHeaderBytes =
    65536;  // NumPy itself refuses more than 10,000 unless told to trust the file
constexpr std::size_t kDataAlignment = 64;  // what NumPy writes since 1.14

struct NpyType {
  std::optional<ElementType> type;  ///< none: float64, converted
  std::size_t bytes;
};

/// What a type string stands for; throws with the reason for those not accepted.
NpyType npy_type(const std::string& path, const std::string& descr) {
  if (descr == "<f4") return {ElementType::float32, 4};
  if (descr == "<f2") return {ElementType::float16, 2};
  if (descr == "<f8") return {std::nullopt, 8};
  if (descr == "<i4") return {ElementType::int32, 4};
  if (descr == "<i8") return {ElementType::int64, 8};
  if (descr == "|b1" || descr == "|u1") return {ElementType::boolean, 1};
  const auto refuse = [&](const std::string& why) {
    throw FileError(path, "type '" + descr + "' " + why);
  };
  if (descr.find('O') != std::string::npos)
    refuse("(Python objects, pickled) is refused: nothing in a file is evaluated");
  if (descr.starts_with('>')) refuse("is big-endian; save it with .astype('<f4')");
  if (descr == "|V2" || descr == "<V2") {
    refuse(
        "(raw bytes, perhaps bfloat16) is refused: .npy has no bfloat16; use safetensors, or save "
        "it as float32");
  }
  refuse("is not supported (expected '<f4', '<f2', '<f8', '<i4', '<i8', '|b1' or '|u1')");
  return {};
}

/// The header's text and the place where the data begins.
std::pair<std::string_view, std::size_t> header_text(const std::string& path,
                                                     std::span<const std::byte> file) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  if (text.size() < 10 || !text.starts_with(kMagic)) {
    throw FileError(path, text.starts_with(kMagic)
                              ? "is cut short in its first ten bytes"
                              : "is not a .npy file (it does not begin with \\x93NUMPY)");
  }
  const int major = static_cast<unsigned char>(text[6]),
            minor = static_cast<unsigned char>(text[7]);
  if (major < 1 || major > 3 || minor != 0) {
    throw FileError(path, "has .npy version " + std::to_string(major) + "." +
                              std::to_string(minor) + " (expected 1.0, 2.0 or 3.0)");
  }
  const std::size_t begin = major == 1 ? 10 : 12;
  if (text.size() < begin) throw FileError(path, "is cut short in its first twelve bytes");
  std::size_t length = 0;
  for (std::size_t i = 8; i < begin; ++i)
    length |= std::size_t{static_cast<unsigned char>(text[i])} << (8 * (i - 8));
  if (length > kMaxHeaderBytes) {
    throw FileError(path, "has a header of " + std::to_string(length) + " bytes (at most " +
                              std::to_string(kMaxHeaderBytes) + ")");
  }
  if (length > text.size() - begin) {
    throw FileError(path, "promises a header of " + std::to_string(length) +
                              " bytes, the file has " + std::to_string(text.size() - begin));
  }
  return {text.substr(begin, length), begin + length};
}

const char* descr_of(const std::string& path, ElementType type) {
  switch (type) {
    case ElementType::float32:
      return "<f4";
    case ElementType::float16:
      return "<f2";
    case ElementType::int32:
      return "<i4";
    case ElementType::int64:
      return "<i8";
    case ElementType::boolean:
      return "|b1";
    default:
      break;
  }
  throw FileError(path,
                  std::string("cannot be written: .npy has no type for ") + element_name(type));
}

std::string header_of(const std::string& path, const ConstView& array) {
  std::string shape;
  for (int axis = 0; axis < array.layout.axes; ++axis)
    shape += std::to_string(array.layout.extents[axis]) + ", ";
  if (array.layout.axes > 1) shape.resize(shape.size() - 2);
  if (array.layout.axes == 1) shape.resize(shape.size() - 1);  // "(3,)"
  std::string text = std::string("{'descr': '") + descr_of(path, array.type) +
                     "', 'fortran_order': False, 'shape': (" + shape + "), }";
  const std::size_t unpadded = kMagic.size() + 4 + text.size() + 1;
  text.append((kDataAlignment - unpadded % kDataAlignment) % kDataAlignment, ' ');
  text += '\n';
  std::string header(kMagic);
  header += '\1';
  header += '\0';
  header += static_cast<char>(text.size() & 0xff);
  header += static_cast<char>(text.size() >> 8);
  return header + text;
}

/// Writes the elements under `axis` and later ones in C order, runs that lie dense at once.
void write_axis(OutputFile& file, const std::byte* at, const ConstView& array, int axis) {
  const std::int64_t bytes = element_bytes(array.type);
  const detail::Layout& layout = array.layout;
  if (axis == layout.axes) return file.write(at, static_cast<std::size_t>(bytes));
  if (axis == layout.axes - 1 && (layout.strides[axis] == 1 || layout.extents[axis] == 1)) {
    return file.write(at, static_cast<std::size_t>(layout.extents[axis] * bytes));
  }
  for (std::int64_t i = 0; i < layout.extents[axis]; ++i) {
    write_axis(file, at + i * layout.strides[axis] * bytes, array, axis + 1);
  }
}

}  // namespace

Array parse_npy(const std::string& path, std::span<const std::byte> file,
                std::shared_ptr<const void> owner) {
  const auto [text, begin] = header_text(path, file);
  const NpyHeader header = parse_npy_header(path, text);
  const NpyType type = npy_type(path, header.descr);
  if (header.shape.size() > static_cast<std::size_t>(kMaxAxes)) {
    throw FileError(path, "has " + std::to_string(header.shape.size()) + " axes (at most " +
                              std::to_string(kMaxAxes) + ")");
  }
  const std::int64_t count = element_count(header.shape);
  const std::size_t available = file.size() - begin;
  if (count < 0 || static_cast<std::uint64_t>(count) > std::size_t(-1) / type.bytes) {
    throw FileError(path,
                    "has a shape of more bytes than can be addressed: " + shape_text(header.shape));
  }
  const std::size_t wanted = static_cast<std::size_t>(count) * type.bytes;
  if (wanted != available) {
    throw FileError(path, "shape " + shape_text(header.shape) + " of type '" + header.descr +
                              "' is " + std::to_string(wanted) + " bytes, the file has " +
                              std::to_string(available) +
                              (available > wanted ? " (trailing bytes)" : " (cut short)"));
  }
  const detail::Layout layout = dense_layout(header.shape, header.fortran_order);
  const std::byte* data = file.data() + begin;
  if (!type.type) return array_of_float64(path, data, layout, count);
  return array_at(data, *type.type, layout, count, std::move(owner));
}

Array read_npy(const std::string& path) {
  auto file = std::make_shared<const MappedFile>(path);
  const std::span<const std::byte> bytes(file->data(), file->size());
  return parse_npy(path, bytes, std::move(file));
}

void write_npy(OutputFile& file, const ConstView& array) {
  const std::string header = header_of(file.path(), array);
  file.write(header.data(), header.size());
  for (int axis = 0; axis < array.layout.axes; ++axis) {
    if (array.layout.extents[axis] == 0) return;
  }
  write_axis(file, static_cast<const std::byte*>(array.data), array, 0);
}

void write_npy(const std::string& path, const ConstView& array) {
  OutputFile file(path);
  write_npy(file, array);
  file.commit();
}

}  // namespace polyhead::inline v0::formats
