#include "cli/page_rows.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace polyhead::cli {
namespace {

static_assert(std::endian::native == std::endian::little, "pages are little-endian");

constexpr double kByte = 255, kWord = 65535;

template <class T>
void append(std::string& to, const std::vector<T>& values) {
  to.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

char root_byte(double weight) {
  return static_cast<char>(std::lround(kByte * std::sqrt(std::clamp(weight, 0.0, 1.0))));
}

/// Room for `more` values. Grows by a quarter: hundreds of heads grow at once, and doubling would
/// leave half of their memory empty.
void make_room(std::vector<std::uint16_t>& values, std::size_t more) {
  if (values.size() + more <= values.capacity()) return;
  values.reserve(values.size() + std::max(more, values.size() / 4));
}

std::uint16_t root_word(double weight) {
  return static_cast<std::uint16_t>(std::lround(kWord * std::sqrt(std::clamp(weight, 0.0, 1.0))));
}

double of_root_word(std::uint16_t root) { return (root / kWord) * (root / kWord); }

}  // namespace

FullRows::FullRows(std::int64_t q_len, std::int64_t kv_len, bool causal)
    : kv_len_(kv_len), before_(causal ? kv_len - q_len : 0), causal_(causal) {
  tops_.reserve(static_cast<std::size_t>(q_len));
  cells_.reserve(static_cast<std::size_t>(bytes(q_len, kv_len, causal) - 4 * q_len));
}

std::int64_t FullRows::bytes(std::int64_t q_len, std::int64_t kv_len, bool causal) {
  std::int64_t cells = q_len * kv_len;
  if (causal) cells = q_len * (kv_len - q_len) + q_len * (q_len + 1) / 2;
  return cells + 4 * q_len;
}

void FullRows::take(const HeadRowBlock& block) {
  for (std::int64_t r = 0; r < block.rows; ++r) {
    take_row(block.full + r * block.full_keys, block.full_keys, block.first_query + r);
  }
}

void FullRows::take_row(const float* weights, std::int64_t count, std::int64_t query) {
  const std::int64_t cells = causal_ ? query + before_ + 1 : kv_len_;
  const std::int64_t known = std::min(cells, count);
  const float top = known > 0 ? *std::max_element(weights, weights + known) : 0.0f;
  double sum = 0, kept = 0;
  for (std::int64_t j = 0; j < cells; ++j) {
    const double w = j < known ? static_cast<double>(weights[j]) : 0;
    const double share = top > 0 ? w / static_cast<double>(top) : 0;
    const char byte = root_byte(share);
    const double root = static_cast<unsigned char>(byte) / kByte;
    const double back = static_cast<double>(top) * root * root;
    cells_ += byte;
    sum += w;
    kept += back;
    weight_error_ = std::max(weight_error_, std::abs(back - w));
  }
  row_sum_error_ = std::max(row_sum_error_, std::abs(kept - sum));
  tops_.push_back(top);
}

std::string FullRows::encoded() const {
  std::string bytes;
  append(bytes, tops_);
  return bytes + cells_;
}

SparseRows::SparseRows(std::int64_t q_len, std::int64_t kv_len)
    : key_words_(kv_len > 65536 ? 2 : 1) {
  counts_.reserve(static_cast<std::size_t>(q_len));
  rests_.reserve(static_cast<std::size_t>(q_len));
}

void SparseRows::take(const HeadRowBlock& block) {
  const auto entries = static_cast<std::size_t>(block.offsets[block.rows]);
  make_room(keys_, entries * static_cast<std::size_t>(key_words_));
  make_room(roots_, entries);
  for (std::int64_t r = 0; r < block.rows; ++r) {
    counts_.push_back(static_cast<std::uint16_t>(block.offsets[r + 1] - block.offsets[r]));
    rests_.push_back(root_word(static_cast<double>(block.rest[r])));
    for (std::int64_t n = block.offsets[r]; n < block.offsets[r + 1]; ++n) {
      const auto key = static_cast<std::uint32_t>(block.keys[n]);
      keys_.push_back(static_cast<std::uint16_t>(key));
      if (key_words_ == 2) keys_.push_back(static_cast<std::uint16_t>(key >> 16));
      roots_.push_back(root_word(static_cast<double>(block.weights[n])));
    }
  }
}

void SparseRows::drop_all() { *this = SparseRows(); }

/// visit(row, first, count, smallest root that stays): of equal roots at the floor all stay.
template <class Visit>
void SparseRows::visit_rows(const Keep& keep, const Visit& visit) const {
  const std::uint16_t tau = root_word(keep.tau);
  std::vector<std::uint16_t> sorted;
  std::size_t first = 0;
  for (std::size_t row = 0; row < counts_.size(); ++row) {
    const std::size_t count = counts_[row];
    const auto from = roots_.begin() + static_cast<std::ptrdiff_t>(first);
    sorted.assign(from, from + static_cast<std::ptrdiff_t>(count));
    std::uint16_t smallest = tau;
    const auto least = std::min(static_cast<std::size_t>(keep.least), count);
    if (least > 0) {
      const auto at = sorted.begin() + static_cast<std::ptrdiff_t>(least) - 1;
      std::nth_element(sorted.begin(), at, sorted.end(), std::greater<>());
      smallest = std::min(smallest, *at);
    }
    visit(row, first, count, smallest);
    first += count;
  }
}

std::int64_t SparseRows::bytes(const Keep& keep) const {
  std::int64_t entries = 0;
  visit_rows(keep, [&](std::size_t, std::size_t first, std::size_t count, std::uint16_t smallest) {
    for (std::size_t n = first; n < first + count; ++n) entries += roots_[n] >= smallest;
  });
  return 4 * static_cast<std::int64_t>(counts_.size()) + 2 * (key_words_ + 1) * entries;
}

std::string SparseRows::encoded(const Keep& keep) const {
  std::vector<std::uint16_t> counts, rests, keys, roots;
  const auto words = static_cast<std::size_t>(key_words_);
  visit_rows(keep,
             [&](std::size_t row, std::size_t first, std::size_t count, std::uint16_t smallest) {
               double rest = of_root_word(rests_[row]);
               const std::size_t before = roots.size();
               for (std::size_t n = first; n < first + count; ++n) {
                 if (roots_[n] < smallest) {
                   rest += of_root_word(roots_[n]);
                   continue;
                 }
                 for (std::size_t w = 0; w < words; ++w) keys.push_back(keys_[n * words + w]);
                 roots.push_back(roots_[n]);
               }
               counts.push_back(static_cast<std::uint16_t>(roots.size() - before));
               rests.push_back(root_word(rest));
             });
  std::string bytes;
  for (const auto* part : {&counts, &rests, &keys, &roots}) append(bytes, *part);
  return bytes;
}

std::string encoded_statistics(const HeadRowStatistics& rows, std::span<const std::int64_t> seen) {
  std::string entropy, first, largest;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const double most = std::log(static_cast<double>(std::max<std::int64_t>(seen[i], 2)));
    const double share = static_cast<double>(rows.entropy[i]) / most;
    entropy += static_cast<char>(std::lround(kByte * std::clamp(share, 0.0, 1.0)));
    first += root_byte(static_cast<double>(rows.first[i]));
    largest += root_byte(static_cast<double>(rows.largest[i]));
  }
  return entropy + first + largest;
}

std::string encoded_roots(std::span<const float> weights) {
  std::string bytes;
  bytes.reserve(weights.size());
  for (const float w : weights) bytes += root_byte(static_cast<double>(w));
  return bytes;
}

std::string encoded_map(std::span<const float> map, std::int64_t rows, std::int64_t columns,
                        bool causal) {
  if (!causal || rows != columns) return encoded_roots(map);
  std::string bytes;
  for (std::int64_t r = 0; r < rows; ++r) {
    bytes += encoded_roots(
        map.subspan(static_cast<std::size_t>(r * columns), static_cast<std::size_t>(r + 1)));
  }
  return bytes;
}

}  // namespace polyhead::cli
