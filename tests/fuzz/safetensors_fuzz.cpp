// Any bytes as a safetensors file: tensors whose every element can be read, or a FileError.
#include <cstddef>
#include <cstdint>

#include "fuzz/touch.hpp"
#include "models/formats/file_error.hpp"
#include "models/formats/safetensors.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using polyhead::formats::FileError;
  try {
    const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
    const polyhead::formats::Safetensors file("fuzz", bytes, nullptr);
    for (const std::string& name : file.names()) {
      try {
        polyhead::fuzz::touch(file.tensor(name).view);
      } catch (const FileError&) {
      }
    }
  } catch (const FileError&) {
  }
  return 0;
}
