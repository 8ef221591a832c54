// NumPy's .npy files: one array each.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "models/formats/array.hpp"
#include "models/formats/output_file.hpp"

namespace polyhead::inline v0::formats {

/// Reads a .npy file (format versions 1.0, 2.0 and 3.0) through a memory map: nothing is copied,
/// except float64, which becomes float32, and data at an address that does not suit its type.
///
/// Accepted: little-endian float16, float32, float64, int32, int64, and bool and uint8 (both as
/// `boolean`), in C or Fortran order, of at most kMaxAxes axes. Refused by name: object and other
/// pickled types (nothing is ever evaluated), records, strings, foreign byte order, unknown
/// versions, headers whose shape does not match the bytes that follow, and trailing bytes. Throws
/// FileError. Source: numpy.lib.format, NEP 1.
Array read_npy(const std::string& path);

/// The same for a file that is already in memory; `path` is only the name used in messages.
Array parse_npy(const std::string& path, std::span<const std::byte> file,
                std::shared_ptr<const void> owner);

/// Writes a .npy file (version 1.0, C order, data aligned to 64 bytes) of any strided view of
/// float16, float32, int32, int64 or boolean. The file appears under its name only when it is
/// complete (see OutputFile). Throws FileError; bfloat16, which .npy has no type for, is refused.
void write_npy(const std::string& path, const ConstView& array);

/// The same into a file that the caller commits.
void write_npy(OutputFile& file, const ConstView& array);

}  // namespace polyhead::inline v0::formats
