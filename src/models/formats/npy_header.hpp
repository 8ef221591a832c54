// The header of a .npy file: a Python dictionary literal, read by a parser of exactly that much
// Python.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace polyhead::inline v0::formats {

struct NpyHeader {
  std::string descr;
  bool fortran_order = false;
  std::vector<std::int64_t> shape;
};

/// Parses `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }` and the padding after it.
/// Each of the three keys exactly once, in any order, nothing else. Throws FileError naming `path`.
NpyHeader parse_npy_header(const std::string& path, std::string_view text);

}  // namespace polyhead::inline v0::formats
