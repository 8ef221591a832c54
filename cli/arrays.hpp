// Arrays named on the command line: read, converted, allocated.
#pragma once

#include <cstdint>
#include <limits>
#include <set>
#include <span>
#include <string>

#include "models/formats/array.hpp"
#include "polyhead/types.h"

namespace polyhead::cli {

using formats::Array;

/// How the axes of q, k, v and out lie in a file: [batch, tokens, heads, dim] or [batch, heads,
/// tokens, dim].
enum class AxisOrder { bthd, bhtd };

/// "FILE.npy", or "FILE.safetensors:NAME". Throws FileError.
Array load_array(const std::string& place);

/// The same of floating-point numbers; `what` names them where the file has others.
Array load_float_array(const std::string& place, const std::string& what);

/// Numbers written out ("5,7,7") or an integer array of one to `most_axes` axes in a file; `what`
/// names the option in messages.
Array load_integers(const std::string& text, const std::string& what, int most_axes = 1);

/// A list of float32 numbers, likewise; 16-bit files are widened.
Array load_floats(const std::string& text, const std::string& what);

/// Throws UsageError where numbers that are written out are none that load_integers or load_floats
/// take, or less than `least`. Files are not looked at.
void check_integers(const std::string& text, const std::string& what,
                    std::int64_t least = std::numeric_limits<std::int64_t>::min());
void check_floats(const std::string& text, const std::string& what);

/// A dense array of its own; its elements are 0. Throws InvalidArgument with its shape where there
/// is no memory for it.
struct OwnedArray {
  Array array;
  View view;
};
OwnedArray allocate(ElementType type, std::span<const std::int64_t> extents);

/// What --type may say, and the type that such a name means.
std::set<std::string> float_types();
ElementType float_type(const std::string& name);

/// The same numbers as float32, float16 or bfloat16; the array itself where it is of that type
/// already. A finite one that would become infinite is refused by the name of the array's `place`.
Array converted(const Array& array, ElementType type, const std::string& place);

/// One element of a float32, float16 or bfloat16 view, by its indices.
double element(const ConstView& view, std::span<const std::int64_t> index);

/// The same of an int32 or int64 view, which double does not hold exactly.
std::int64_t integer_element(const ConstView& view, std::span<const std::int64_t> index);

/// An array of 2 axes [tokens, dim] (not for bhtd), 3 ([tokens, heads, dim]; [heads, tokens, dim]
/// for bhtd) or 4 as the library's [batch, tokens, heads, dim]. Throws InvalidArgument naming
/// `what` for other numbers of axes.
ConstView as_batch_tokens_heads_dim(const ConstView& view, AxisOrder order,
                                    const std::string& what);

/// A view with axes of extent 1 put in front until it has `axes` of them.
ConstView with_leading_axes(ConstView view, int axes);

}  // namespace polyhead::cli
