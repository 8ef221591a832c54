// Any bytes as a GGUF file, and as a model in one: metadata, weights and tensors that can all be
// read, or a FileError.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "models/formats/file_error.hpp"
#include "models/formats/gguf.hpp"
#include "models/model_file.hpp"

namespace {

using polyhead::formats::FileError;
using polyhead::formats::Gguf;
namespace models = polyhead::models;

template <class Read>
void may_be_refused(const Read& read) {
  try {
    read();
  } catch (const FileError&) {
  }
}

void read_values(const Gguf& file) {
  for (const std::string_view key : file.keys()) {
    may_be_refused([&] { file.text(key); });
    may_be_refused([&] { file.integer(key); });
    may_be_refused([&] { file.real(key); });
    may_be_refused([&] { file.boolean(key); });
    may_be_refused([&] { file.texts(key); });
    may_be_refused([&] { file.integers(key); });
    may_be_refused([&] { file.reals(key); });
  }
}

void read_weights(const models::WeightTensor& tensor) {
  const std::int64_t columns = tensor.shape.empty() ? 1 : tensor.shape.back();
  std::int64_t rows = 1;
  for (std::size_t axis = 0; axis + 1 < tensor.shape.size(); ++axis) rows *= tensor.shape[axis];
  std::vector<float> row(static_cast<std::size_t>(columns));
  for (const std::int64_t first : {std::int64_t{0}, rows - 1})
    dequantise_rows(tensor, first, 1, row.data());
}

/// A file in memory: ModelFile maps what it reads.
void read_model(const std::uint8_t* data, std::size_t size) {
  const int file = ::memfd_create("fuzz", MFD_CLOEXEC);
  if (file < 0 || ::write(file, data, size) != static_cast<ssize_t>(size)) std::abort();
  may_be_refused([&] {
    const models::ModelFile model("/proc/self/fd/" + std::to_string(file));
    for (const models::WeightTensor& tensor : model.tensors()) read_weights(tensor);
  });
  ::close(file);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  may_be_refused([&] {
    const Gguf file("fuzz", std::as_bytes(std::span(data, size)), nullptr);
    read_values(file);
    for (const auto& tensor : file.tensors()) {
      read_weights({tensor.name, tensor.type, tensor.shape, false, tensor.data, tensor.name});
    }
    read_model(data, size);
  });
  return 0;
}
