// A text whose heads are studied: ids with copies, and delimiters.
#pragma once

#include <cstdint>
#include <vector>

#include "polyhead/heads.h"
#include "support/problem.h"

namespace polyhead::test {

/// Ids with many copies, some of them of the first token; delimiters every few keys.
struct Text {
  std::vector<std::int32_t> tokens;
  std::vector<std::uint8_t> delimiters;
  explicit Text(std::int64_t n, std::uint64_t seed = 3, std::int32_t vocabulary = 9) {
    std::uint64_t state = seed;
    for (std::int64_t i = 0; i < n; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      tokens.push_back(
          static_cast<std::int32_t>((state >> 33) % static_cast<std::uint64_t>(vocabulary)) - 4);
      delimiters.push_back((state >> 40) % 5 == 0);
    }
  }
};

inline HeadStudy study_of(const Case& c, const Text& text) {
  HeadStudy study;
  study.q_heads = c.q_heads;
  study.q_len = c.q_len;
  study.kv_len = c.kv_len;
  study.tokens = text.tokens;
  study.delimiters = text.delimiters;
  study.maps = {{7, 5, HeadMapSpec::maximum}, {48, 48, HeadMapSpec::sum}};
  return study;
}

}  // namespace polyhead::test
