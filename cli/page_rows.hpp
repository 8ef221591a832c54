// Rows of one head in the encodings of a page (docs/page.md), taken as they become known.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "polyhead/heads.h"

namespace polyhead::cli {

/// Every weight in 8 bits: w = top (b / 255)^2, top the row's largest, float32. The error of a
/// weight is at most top / 255 (half a step of b, at its steepest: 2 (1 / 510) (b / 255) top).
class FullRows {
 public:
  FullRows() = default;
  FullRows(std::int64_t q_len, std::int64_t kv_len, bool causal);
  void take(const HeadRowBlock& block);
  std::string encoded() const;
  double weight_error() const { return weight_error_; }
  double row_sum_error() const { return row_sum_error_; }

  /// Bytes of a head encoded so.
  static std::int64_t bytes(std::int64_t q_len, std::int64_t kv_len, bool causal);

 private:
  void take_row(const float* weights, std::int64_t count, std::int64_t query);

  std::int64_t kv_len_ = 0, before_ = 0;  ///< keys before the first query's own
  bool causal_ = true;
  std::vector<float> tops_;
  std::string cells_;
  double weight_error_ = 0, row_sum_error_ = 0;
};

/// Which entries of a row stay: those >= tau, and at least the `least` largest.
struct Keep {
  double tau = 0.01;
  std::int64_t least = 4;
};

/// The largest weights of every row in 16 bits each, w = (x / 65535)^2, and the others' sum.
class SparseRows {
 public:
  SparseRows() = default;
  SparseRows(std::int64_t q_len, std::int64_t kv_len);
  void take(const HeadRowBlock& block);
  void drop_all();  ///< gives the memory back

  /// Bytes that encoded(keep) will have.
  std::int64_t bytes(const Keep& keep) const;
  std::string encoded(const Keep& keep) const;

 private:
  template <class Visit>
  void visit_rows(const Keep& keep, const Visit& visit) const;

  std::int64_t key_words_ = 1;  ///< 16-bit words a key
  std::vector<std::uint16_t> counts_, rests_, keys_, roots_;
};

/// Three figures a row, 8 bits each: entropy as a share of the largest possible, and the square
/// roots of the weight on the first key and of the largest weight.
std::string encoded_statistics(const HeadRowStatistics& rows, std::span<const std::int64_t> seen);

/// 255 sqrt(weight), rounded.
std::string encoded_roots(std::span<const float> weights);

/// The same of a map; of a causal map with as many rows as columns, the lower triangle.
std::string encoded_map(std::span<const float> map, std::int64_t rows, std::int64_t columns,
                        bool causal);

}  // namespace polyhead::cli
