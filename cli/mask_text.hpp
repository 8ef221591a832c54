// A mask in words: a line for each kind that was given.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "polyhead/mask.h"

namespace polyhead::cli {

/// The sequence whose mask is put into words, and the tokens of the whole arrays.
struct MaskOf {
  std::int64_t batch = 0, q_len = 0, kv_len = 0;
  std::optional<std::int64_t> q_start = std::nullopt;  ///< position of its first query, if given
};

/// Empty where the mask hides nothing by itself. A pair must pass every line.
std::vector<std::string> mask_lines(const Mask& mask, const MaskOf& of);

}  // namespace polyhead::cli
