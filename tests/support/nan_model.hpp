// A model whose answers to some texts are no numbers.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "support/scratch_directory.hpp"

namespace polyhead::test {

/// The tiny Llama with a NaN in what stands for token 7, so that texts with it give no numbers.
inline std::string model_with_a_nan(const ScratchDirectory& folder) {
  const std::string tiny = POLYHEAD_TEST_DATA "/tiny/llama3/";
  std::string weights = folder.read(tiny + "model.safetensors");
  std::uint64_t header = 0;
  std::memcpy(&header, weights.data(), sizeof header);
  const auto tensors = nlohmann::json::parse(weights.substr(sizeof header, header));
  const auto& embedding = tensors["model.embed_tokens.weight"];
  const std::size_t width = embedding["shape"][1], first = embedding["data_offsets"][0];
  constexpr std::uint16_t kNan = 0x7fc0;  // as bfloat16
  std::memcpy(weights.data() + sizeof header + header + first + 7 * width * 2, &kNan, 2);
  folder.write("config.json", folder.read(tiny + "config.json"));
  return std::filesystem::path(folder.write("model.safetensors", weights)).parent_path().string();
}

}  // namespace polyhead::test
