// The head page: one HTML file, offline, in which people see what each head did. Format:
// docs/page.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "polyhead/heads.h"

namespace polyhead::cli {

/// One head as the page keeps it.
struct PageHead {
  bool known = false;  ///< false: it was not asked for, and nothing of it is kept
  HeadMeasures measures;
  enum Form : std::uint8_t { full, sparse, map } form = map;
  std::string bytes;  ///< encoded by page_rows.hpp
};

struct PageLayer {
  double scale = 1;                       ///< multiplies q.k
  double soft_cap = 0;                    ///< then bounds it; 0: no soft-cap
  std::int64_t window = 0;                ///< keys a query sees, itself included; 0: no window
  std::vector<PageHead> heads;            ///< one a query head
  std::string norms;                      ///< float16 [kv_heads][kv_len]: |v|
  std::vector<std::int64_t> steps_heads;  ///< ascending; heads whose q, k, v are kept
  /// float16: q [those heads][q_len][dim], then k and v of the KV heads they read.
  std::string steps;
};

/// Everything a page shows. Sizes agree with each other.
struct PageData {
  std::string model, precision, program;
  std::vector<std::string> tokens;      ///< bytes of each query's token
  std::vector<std::string> key_tokens;  ///< cross attention; empty: the same text
  bool causal = true;
  std::int64_t q_len = 0, kv_len = 0, q_heads = 0, kv_heads = 0, head_dim = 0, value_dim = 0;
  std::int64_t thumb_q = 0, thumb_k = 0, map_q = 0, map_k = 0;  ///< bins
  std::string thumbs;  ///< [layers][q_heads][thumb_q][thumb_k], 255 sqrt(largest weight)
  std::vector<PageLayer> layers;
  double tau = 0;                              ///< of sparse rows; 0: none
  std::int64_t least = 0;                      ///< entries a sparse row has at least
  double weight_error = 0, row_sum_error = 0;  ///< largest of the heads kept whole
  std::vector<std::string> left_out;           ///< sentences for people
};

/// Writes the page to `path`, complete or not at all. Throws FileError.
void write_page(const std::string& path, const PageData& page);

/// The same as text; for tests and small pages.
std::string page_text(const PageData& page);

}  // namespace polyhead::cli
