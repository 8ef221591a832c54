// The tiny Llama of tests/data/tiny with a tokenizer, and one whose answers to some texts are no
// numbers.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "support/json.hpp"
#include "support/scratch_directory.hpp"

namespace polyhead::test {

/// Context 64; its tokens are the letters a to j, of 80 that it may say. `folder` holds it, and is
/// what it returns.
inline std::string tiny_llama(const ScratchDirectory& folder) {
  const std::string tiny = POLYHEAD_TEST_DATA "/tiny/llama3/";
  for (const char* name : {"config.json", "model.safetensors"})
    folder.write(name, ScratchDirectory::read(tiny + name));
  folder.write("tokenizer.json", R"({
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "merges": [], "vocab":
      {"a": 0, "b": 1, "c": 2, "d": 3, "e": 4, "f": 5, "g": 6, "h": 7, "i": 8, "j": 9}}})");
  return std::filesystem::path(folder.file("config.json")).parent_path().string();
}

/// The same with this as the first number (bfloat16) of row `id` of a tensor: what stands for that
/// token, unless another is named.
inline std::string tiny_llama_with(const ScratchDirectory& folder, int id, std::uint16_t number,
                                   const char* tensor = "model.embed_tokens.weight") {
  const std::string path = tiny_llama(folder);
  std::string weights = ScratchDirectory::read(folder.file("model.safetensors"));
  std::uint64_t header = 0;
  std::memcpy(&header, weights.data(), sizeof header);
  const auto tensors = json_of(weights.substr(sizeof header, header));
  const auto& matrix = tensors[tensor];
  const std::size_t width = matrix["shape"][1], first = matrix["data_offsets"][0];
  const std::size_t row = static_cast<std::size_t>(id) * width * sizeof number;
  std::memcpy(weights.data() + sizeof header + header + first + row, &number, sizeof number);
  folder.write("model.safetensors", weights);
  return path;
}

/// The same with a NaN in what stands for token 7, h, so that texts with it give no numbers.
inline std::string model_with_a_nan(const ScratchDirectory& folder) {
  return tiny_llama_with(folder, 7, 0x7fc0);
}

}  // namespace polyhead::test
