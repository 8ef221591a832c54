// Any bytes as a .npy file: an array whose every element can be read, or a FileError.
#include <cstddef>
#include <cstdint>

#include "fuzz/touch.hpp"
#include "models/formats/file_error.hpp"
#include "models/formats/npy.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(data), size);
    polyhead::fuzz::touch(polyhead::formats::parse_npy("fuzz", file, nullptr).view);
  } catch (const polyhead::formats::FileError&) {
  }
  return 0;
}
