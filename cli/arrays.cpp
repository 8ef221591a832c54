#include "cli/arrays.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <limits>
#include <memory>
#include <vector>

#include "base/element.hpp"
#include "cli/command.hpp"
#include "cli/count_text.hpp"
#include "cli/list_text.hpp"
#include "models/formats/file_error.hpp"
#include "models/formats/npy.hpp"
#include "models/formats/safetensors.hpp"
#include "polyhead/error.h"

namespace polyhead::cli {
namespace {

constexpr const char* kSafetensors = ".safetensors";
constexpr ElementType kFloatTypes[] = {ElementType::float32, ElementType::float16,
                                       ElementType::bfloat16};

/// Numbers, or a list with one that is none (nan), rather than the name of a file.
bool is_written_out(const std::string& text) {
  const std::vector<std::string> pieces = pieces_of(text);
  const auto is_nan = [](const std::string& piece) {
    return piece == "nan" || piece == "NaN" || piece == "-nan";
  };
  if (std::any_of(pieces.begin(), pieces.end(), is_nan)) return true;
  return !text.empty() && text.find_first_not_of("0123456789+-.,eEinf ") == std::string::npos &&
         text.find(".npy") == std::string::npos;
}

/// `expected`: what each is, in words.
template <class T, class Parse>
Array numbers_written_out(const std::string& text, const std::string& what, const char* expected,
                          Parse parse) {
  auto values = std::make_shared<std::vector<T>>();
  for (const std::string& piece : pieces_of(text)) {
    std::size_t used = 0;
    try {
      values->push_back(static_cast<T>(parse(piece, &used)));
    } catch (const std::logic_error&) {  // what stoll and stof throw
      used = 0;
    }
    if (piece.empty() || used != piece.size())
      throw UsageError(std::string(what).append(": '").append(piece) + "' is not " + expected);
  }
  const ConstView view(values->data(), {static_cast<std::int64_t>(values->size())});
  return {view, std::move(values)};
}

/// As std::stoll, but that 000, which a comma left of 1,000, is no number.
long long integer_of(const std::string& text, std::size_t* used) {
  if (begins_with_zero(text)) throw std::invalid_argument(text);
  return std::stoll(text, used);
}

void check_axes(const Array& list, const std::string& place, const std::string& what,
                int most_axes) {
  const detail::Layout& layout = list.view.layout;
  if (layout.axes >= 1 && layout.axes <= most_axes) return;
  throw formats::FileError(place,
                           "has shape " + formats::shape_text(layout) + " (" + what +
                               (most_axes == 1 ? " takes one axis)" : " takes one axis or two)"));
}

/// The file of a list that is not written out.
Array load_list(const std::string& place, const std::string& what) {
  try {
    return load_array(place);
  } catch (const formats::FileError& error) {
    throw formats::FileError(
        what, std::string(error.what()) + " (expected numbers separated by commas, or a file)");
  }
}

const std::byte* address_of(const ConstView& view, std::span<const std::int64_t> index) {
  std::int64_t offset = 0;
  for (std::size_t axis = 0; axis < index.size(); ++axis)
    offset += index[axis] * view.layout.strides[axis];
  return static_cast<const std::byte*>(view.data) + offset * element_bytes(view.type);
}

/// Calls visit(byte offset) for each element in C order.
template <class Visit>
void for_each_offset(const ConstView& view, int axis, std::int64_t offset, const Visit& visit) {
  if (axis == view.layout.axes) return visit(offset);
  const std::int64_t step = view.layout.strides[axis] * element_bytes(view.type);
  for (std::int64_t i = 0; i < view.layout.extents[axis]; ++i)
    for_each_offset(view, axis + 1, offset + i * step, visit);
}

}  // namespace

Array load_array(const std::string& place) {
  const std::size_t suffix = place.rfind(std::string(kSafetensors) + ":");
  if (suffix != std::string::npos) {
    const std::size_t colon = suffix + std::strlen(kSafetensors);
    return formats::Safetensors(place.substr(0, colon)).tensor(place.substr(colon + 1));
  }
  if (place.ends_with(kSafetensors)) {
    const std::vector<std::string> names = formats::Safetensors(place).names();
    throw formats::FileError(
        place, "which tensor? Write " + place + ":" + (names.empty() ? "NAME" : names.front()));
  }
  return formats::read_npy(place);
}

Array load_float_array(const std::string& place, const std::string& what) {
  Array array = load_array(place);
  const ElementType type = array.view.type;
  if (!base::is_floating(type)) {
    throw formats::FileError(place, std::string("has type ") + element_name(type) + " (" + what +
                                        " takes float32, float16, bfloat16 or float64)");
  }
  return array;
}

Array load_integers(const std::string& text, const std::string& what, int most_axes) {
  if (is_written_out(text)) {
    return numbers_written_out<std::int64_t>(text, what, "a whole number of 64 bits", integer_of);
  }
  Array array = load_list(text, what);
  if (array.view.type != ElementType::int32 && array.view.type != ElementType::int64) {
    throw formats::FileError(text, std::string("has type ") + element_name(array.view.type) + " (" +
                                       what + " takes int32 or int64)");
  }
  check_axes(array, text, what, most_axes);
  return array;
}

Array load_floats(const std::string& text, const std::string& what) {
  if (is_written_out(text)) {
    const auto parse = [&](const std::string& s, std::size_t* n) {
      const float number = std::stof(s, n);
      // A sink of -inf is none.
      if (std::isnan(number) || number == std::numeric_limits<float>::infinity())
        throw UsageError(what + ": '" + s + "' is not finite");
      return number;
    };
    return numbers_written_out<float>(text, what, "a number of 32 bits", parse);
  }
  Array array = load_list(text, what);
  if (!base::is_floating(array.view.type)) {
    throw formats::FileError(text, std::string("has type ") + element_name(array.view.type) + " (" +
                                       what + " takes float32, float16 or bfloat16)");
  }
  check_axes(array, text, what, 1);
  return converted(array, ElementType::float32, text);
}

void check_integers(const std::string& text, const std::string& what, std::int64_t least) {
  if (!is_written_out(text)) return;
  const Array list = load_integers(text, what);
  for (std::int64_t i = 0; i < list.view.layout.extents[0]; ++i) {
    const std::int64_t index[] = {i};
    const std::int64_t number = integer_element(list.view, index);
    if (number >= least) continue;
    throw UsageError(what + ": " + std::to_string(number) + " is not at least " +
                     std::to_string(least));
  }
}

void check_floats(const std::string& text, const std::string& what) {
  if (is_written_out(text)) load_floats(text, what);
}

OwnedArray allocate(ElementType type, std::span<const std::int64_t> extents) {
  const auto refuse = [&](const std::string& why) {
    throw InvalidArgument(std::string("an array of ") + element_name(type) + " " +
                          formats::shape_text(extents) + " " + why);
  };
  const std::int64_t count = formats::element_count(extents);
  std::int64_t size = 0;
  if (count < 0 || __builtin_mul_overflow(count, element_bytes(type), &size))
    refuse("cannot be addressed");
  // Zeros that take no memory until they are touched: a call may only be described.
  const std::shared_ptr<void> bytes(
      std::calloc(static_cast<std::size_t>(std::max<std::int64_t>(size, 1)), 1), std::free);
  if (bytes == nullptr)
    refuse("is needed, and there is no memory for its " + std::to_string(size) + " bytes");
  const View view(bytes.get(), type, formats::dense_layout(extents));
  return {{view, bytes}, view};
}

std::set<std::string> float_types() {
  std::set<std::string> names;
  for (const ElementType type : kFloatTypes) names.insert(element_name(type));
  return names;
}

ElementType float_type(const std::string& name) {
  const auto* const found = std::ranges::find(
      kFloatTypes, name, [](ElementType type) -> std::string { return element_name(type); });
  return found == std::end(kFloatTypes) ? ElementType::float32 : *found;
}

Array converted(const Array& array, ElementType type, const std::string& place) {
  if (array.view.type == type) return array;
  const ConstView& from = array.view;
  const std::span<const std::int64_t> extents(from.layout.extents.data(),
                                              static_cast<std::size_t>(from.layout.axes));
  OwnedArray to = allocate(type, extents);
  auto* out = static_cast<std::byte*>(to.view.data);
  const auto* in = static_cast<const std::byte*>(from.data);
  if (formats::element_count(extents) == 0) return to.array;  // the other extents may be huge
  for_each_offset(from, 0, 0, [&](std::int64_t offset) {
    const float value = base::load_float32(in + offset, from.type);
    base::store_float32(out, type, value);
    if (std::isfinite(value) && std::isinf(base::load_float32(out, type)))
      throw formats::too_large(place, value, type);
    out += element_bytes(type);
  });
  return to.array;
}

double element(const ConstView& view, std::span<const std::int64_t> index) {
  return base::load_float32(address_of(view, index), view.type);
}

std::int64_t integer_element(const ConstView& view, std::span<const std::int64_t> index) {
  const std::byte* at = address_of(view, index);
  if (view.type == ElementType::int32) return *reinterpret_cast<const std::int32_t*>(at);
  return *reinterpret_cast<const std::int64_t*>(at);
}

ConstView with_leading_axes(ConstView view, int axes) {
  detail::Layout& layout = view.layout;
  const int missing = axes - layout.axes;
  if (missing <= 0) return view;
  std::move_backward(layout.extents.begin(), layout.extents.begin() + layout.axes,
                     layout.extents.begin() + axes);
  std::move_backward(layout.strides.begin(), layout.strides.begin() + layout.axes,
                     layout.strides.begin() + axes);
  for (int axis = 0; axis < missing; ++axis) {
    layout.extents[axis] = 1;
    layout.strides[axis] = 0;
  }
  layout.axes = axes;
  return view;
}

ConstView as_batch_tokens_heads_dim(const ConstView& view, AxisOrder order,
                                    const std::string& what) {
  const int axes = view.layout.axes;
  if (axes < 2 || axes > 4) {
    throw InvalidArgument(what + " has " + std::to_string(axes) + " axes " +
                          formats::shape_text(view.layout) +
                          " (expected [tokens, dim], 3 axes with heads or 4 with batch and heads)");
  }
  if (axes == 2 && order == AxisOrder::bhtd) {
    throw InvalidArgument(what + " has 2 axes " + formats::shape_text(view.layout) +
                          " (--layout bhtd expects [heads, tokens, dim] or [batch, heads, tokens, "
                          "dim])");
  }
  if (axes == 2) {  // one head: its axis goes between tokens and dim
    ConstView headed = with_leading_axes(view, 4);
    std::swap(headed.layout.extents[1], headed.layout.extents[2]);
    std::swap(headed.layout.strides[1], headed.layout.strides[2]);
    return headed;
  }
  const ConstView whole = with_leading_axes(view, 4);
  return order == AxisOrder::bhtd ? from_batch_heads_tokens_dim(whole) : whole;
}

}  // namespace polyhead::cli
