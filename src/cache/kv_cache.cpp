// The contiguous cache: [sequence][head][capacity][dim], so that a head's keys lie one after the
// other.
#include "polyhead/kv_cache.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "base/element.hpp"
#include "base/memory.hpp"
#include "base/refuse.hpp"

namespace polyhead::inline v0 {
namespace {

constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kLeastGrowth =
    64;  // tokens: the first allocation of a cache that begins empty

/// Bytes of `count` things of `size`, refused where int64 cannot hold them.
std::int64_t product(std::int64_t count, std::int64_t size) {
  if (size != 0 && count > kLargest / size) base::refuse("KvCache", "the sizes overflow 64 bits");
  return count * size;
}

/// Keys or values: rows of `dim` elements.
struct Rows {
  base::AlignedBuffer<std::byte> data;
  std::int64_t dim = 0;
  std::int64_t row_bytes = 0;
};

}  // namespace

struct KvCache::State {
  KvCacheConfig config;
  std::int64_t capacity = 0;
  Rows keys, values;
  std::vector<std::int64_t> lengths;

  std::int64_t heads() const { return config.batch * config.kv_heads; }

  std::byte* row(Rows& rows, std::int64_t sequence, std::int64_t head, std::int64_t token) const {
    return rows.data.data() +
           ((sequence * config.kv_heads + head) * capacity + token) * rows.row_bytes;
  }

  /// Memory of another capacity, with what is held copied into it. Nothing changes if it cannot be
  /// had.
  void move_to(std::int64_t new_capacity) {
    const auto bytes = [&](const Rows& rows) {
      return static_cast<std::size_t>(product(product(heads(), new_capacity), rows.row_bytes));
    };
    base::AlignedBuffer<std::byte> new_keys(bytes(keys)), new_values(bytes(values));
    const std::pair<Rows*, std::byte*> moves[] = {{&keys, new_keys.data()},
                                                  {&values, new_values.data()}};
    for (const auto& [rows, to] : moves) {
      for (std::int64_t head = 0; head < heads(); ++head) {
        const std::int64_t held = lengths[static_cast<std::size_t>(head / config.kv_heads)];
        if (held == 0 || rows->row_bytes == 0) continue;
        std::memcpy(to + head * new_capacity * rows->row_bytes,
                    rows->data.data() + head * capacity * rows->row_bytes,
                    static_cast<std::size_t>(held * rows->row_bytes));
      }
    }
    keys.data = std::move(new_keys);
    values.data = std::move(new_values);
    capacity = new_capacity;
  }

  ConstView view(const Rows& rows, std::int64_t tokens) const {
    detail::Layout layout{
        {config.batch, tokens, config.kv_heads, rows.dim},
        {config.kv_heads * capacity * rows.dim, rows.dim, capacity * rows.dim, std::int64_t{1}}};
    return {rows.data.data(), config.type, layout};
  }

  void write(Rows& rows, const ConstView& from, std::int64_t sequence, std::int64_t count);
};

namespace {

/// Copies one row, converting; equal types are copied as bits.
void copy_row(std::byte* to, ElementType to_type, const std::byte* from, ElementType from_type,
              std::int64_t from_step, std::int64_t dim) {
  const std::int64_t to_bytes = element_bytes(to_type);
  if (from_type == to_type && from_step == to_bytes) {
    std::memcpy(to, from, static_cast<std::size_t>(dim * to_bytes));
    return;
  }
  for (std::int64_t i = 0; i < dim; ++i, to += to_bytes, from += from_step) {
    if (from_type == to_type)
      std::memcpy(to, from, static_cast<std::size_t>(to_bytes));
    else
      base::store_float32(to, to_type, base::load_float32(from, from_type));
  }
}

void check_config(const KvCacheConfig& config) {
  const std::pair<const char*, std::int64_t> sizes[] = {{"batch", config.batch},
                                                        {"kv_heads", config.kv_heads},
                                                        {"head_dim", config.head_dim},
                                                        {"value_dim", config.value_dim},
                                                        {"capacity", config.capacity}};
  for (const auto& [name, size] : sizes) {
    if (size < 0) base::refuse("KvCache", name, " (", size, ") is negative");
  }
  if (config.values_in_keys && config.value_dim > config.head_dim) {
    base::refuse("KvCache", "value_dim (", config.value_dim, ") exceeds head_dim (",
                 config.head_dim, "), expected at most that with values_in_keys");
  }
  if (!base::is_floating(config.type)) {
    base::refuse("KvCache", "type (", element_name(config.type),
                 ") is not float32, float16 or bfloat16");
  }
}

/// Whether `view` can be appended as k or v: [batch, tokens, kv_heads, dim].
void check_rows(const char* name, const ConstView& view, const KvCacheConfig& config,
                std::int64_t tokens, std::int64_t dim) {
  if (view.layout.axes != 4 || view.layout.too_many_axes) {
    base::refuse("KvCache::append", name, " has ", view.layout.axes,
                 " axes; expected [batch, tokens, kv_heads, dim]");
  }
  if (!base::is_floating(view.type)) {
    base::refuse("KvCache::append", name, " is ", element_name(view.type),
                 "; expected float32, float16 or bfloat16");
  }
  const std::int64_t expected[] = {config.batch, tokens, config.kv_heads, dim};
  const char* const axes[] = {"batch", "tokens", "kv_heads", "dim"};
  bool empty = false;
  for (int axis = 0; axis < 4; ++axis) {
    const std::int64_t extent = view.layout.extents[static_cast<std::size_t>(axis)];
    empty = empty || extent == 0;
    if (extent < 0 || extent != expected[axis]) {
      base::refuse("KvCache::append", name, " has ", axes[axis], " ", extent, "; expected ",
                   expected[axis]);
    }
  }
  if (!empty && view.data == nullptr) base::refuse("KvCache::append", name, " has a null pointer");
}

std::int64_t count_at(const ConstView& counts, std::int64_t sequence, std::int64_t tokens) {
  if (!counts.given()) return tokens;
  const std::int64_t at = counts.layout.extents[0] == 1 ? 0 : sequence * counts.layout.strides[0];
  return counts.type == ElementType::int32 ? static_cast<const std::int32_t*>(counts.data)[at]
                                           : static_cast<const std::int64_t*>(counts.data)[at];
}

void check_counts(const ConstView& counts, const KvCacheConfig& config, std::int64_t tokens) {
  if (!counts.given()) return;
  if (!base::is_integer(counts.type)) {
    base::refuse("KvCache::append", "counts are ", element_name(counts.type),
                 "; expected int32 or int64");
  }
  if (counts.layout.axes != 1 || counts.layout.extents[0] != config.batch) {
    base::refuse("KvCache::append", "counts are not [batch] with batch ", config.batch);
  }
  if (config.batch > 0 && counts.data == nullptr)
    base::refuse("KvCache::append", "counts have a null pointer");
  for (std::int64_t b = 0; b < config.batch; ++b) {
    const std::int64_t count = count_at(counts, b, tokens);
    if (count < 0 || count > tokens) {
      base::refuse("KvCache::append", "counts[", b, "] (", count, ") is not from 0 to tokens (",
                   tokens, ")");
    }
  }
}

}  // namespace

void KvCache::State::write(Rows& rows, const ConstView& from, std::int64_t sequence,
                           std::int64_t count) {
  const std::int64_t bytes = element_bytes(from.type);
  const auto& strides = from.layout.strides;
  const std::int64_t length = lengths[static_cast<std::size_t>(sequence)];
  // A single element's stride means nothing, so any will do.
  const std::int64_t step = rows.dim == 1 ? bytes : strides[3] * bytes;
  for (std::int64_t head = 0; head < config.kv_heads; ++head) {
    const std::byte* const source = static_cast<const std::byte*>(from.data) +
                                    ((config.batch == 1 ? 0 : sequence * strides[0]) +
                                     (config.kv_heads == 1 ? 0 : head * strides[2])) *
                                        bytes;
    for (std::int64_t token = 0; token < count; ++token) {
      copy_row(row(rows, sequence, head, length + token), config.type,
               source + token * strides[1] * bytes, from.type, step, rows.dim);
    }
  }
}

KvCache::KvCache(const KvCacheConfig& config) : state_(std::make_unique<State>()) {
  check_config(config);
  State& s = *state_;
  s.config = config;
  if (s.config.value_dim == 0) s.config.value_dim = config.head_dim;
  s.keys.dim = config.head_dim;
  s.values.dim = config.values_in_keys ? 0 : s.config.value_dim;
  s.keys.row_bytes = product(s.keys.dim, element_bytes(config.type));
  s.values.row_bytes = product(s.values.dim, element_bytes(config.type));
  product(config.batch, config.kv_heads);
  s.lengths.assign(static_cast<std::size_t>(config.batch), 0);
  s.move_to(config.capacity);
}

KvCache::KvCache(KvCache&&) noexcept = default;
KvCache& KvCache::operator=(KvCache&&) noexcept = default;
KvCache::~KvCache() = default;

const KvCacheConfig& KvCache::config() const { return state_->config; }
std::int64_t KvCache::capacity() const { return state_->capacity; }

std::int64_t KvCache::bytes() const {
  return static_cast<std::int64_t>(state_->keys.data.bytes() + state_->values.data.bytes());
}

std::int64_t KvCache::length(std::int64_t sequence) const {
  if (sequence < 0 || sequence >= state_->config.batch) {
    base::refuse("KvCache::length", "sequence (", sequence, ") is not below batch (",
                 state_->config.batch, ")");
  }
  return state_->lengths[static_cast<std::size_t>(sequence)];
}

std::int64_t KvCache::max_length() const {
  const auto& lengths = state_->lengths;
  return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
}

ConstView KvCache::keys() const { return state_->view(state_->keys, max_length()); }
ConstView KvCache::values() const {
  if (!state_->config.values_in_keys) return state_->view(state_->values, max_length());
  ConstView values = keys();
  values.layout.extents[3] = state_->config.value_dim;
  return values;
}
ConstView KvCache::lengths() const { return {state_->lengths.data(), {state_->config.batch}}; }

void KvCache::append(ConstView k, ConstView v, ConstView counts) {
  State& s = *state_;
  const std::int64_t tokens = k.layout.axes == 4 ? k.layout.extents[1] : 0;
  check_rows("k", k, s.config, tokens, s.keys.dim);
  if (!s.config.values_in_keys) {
    check_rows("v", v, s.config, tokens, s.values.dim);
  } else if (v.given()) {
    base::refuse("KvCache::append", "v is given, but values are in the keys");
  }
  check_counts(counts, s.config, tokens);
  std::int64_t needed = 0;
  for (std::int64_t b = 0; b < s.config.batch; ++b) {
    const std::int64_t length = s.lengths[static_cast<std::size_t>(b)];
    const std::int64_t count = count_at(counts, b, tokens);
    if (count > kLargest - length)
      base::refuse("KvCache::append", "the length of sequence ", b, " overflows 64 bits");
    if (!s.config.growing && length + count > s.capacity) {
      base::refuse("KvCache::append", "sequence ", b, " holds ", length, " tokens; ", count,
                   " more exceed the capacity (", s.capacity, ")");
    }
    needed = std::max(needed, length + count);
  }
  if (needed > s.capacity) {
    const std::int64_t doubled =
        s.capacity > kLargest / 2 ? needed : std::max(2 * s.capacity, kLeastGrowth);
    s.move_to(std::max(needed, doubled));
  }
  for (std::int64_t b = 0; b < s.config.batch; ++b) {
    const std::int64_t count = count_at(counts, b, tokens);
    s.write(s.keys, k, b, count);
    if (!s.config.values_in_keys) s.write(s.values, v, b, count);
  }
  for (std::int64_t b = 0; b < s.config.batch; ++b) {
    s.lengths[static_cast<std::size_t>(b)] += count_at(counts, b, tokens);
  }
}

void KvCache::truncate(std::int64_t sequence, std::int64_t length) {
  const std::int64_t held = this->length(sequence);
  if (length < 0 || length > held) {
    base::refuse("KvCache::truncate", "length (", length, ") is not from 0 to what sequence ",
                 sequence, " holds (", held, ")");
  }
  state_->lengths[static_cast<std::size_t>(sequence)] = length;
}

void KvCache::clear() { std::fill(state_->lengths.begin(), state_->lengths.end(), 0); }

}  // namespace polyhead::inline v0
