// Rows of a layer's arrays and the work shared out over them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>

#include "attention/schedule.hpp"
#include "base/ceil_div.hpp"
#include "base/large_pages.hpp"
#include "base/memory.hpp"
#include "base/share_out.hpp"
#include "kernels/cpu/gemm_table.hpp"
#include "kernels/cpu/rowwise_table.hpp"
#include "polyhead/types.h"

namespace polyhead::inline v0::layers {

/// What every call of a layer runs on.
struct Engine {
  Isa isa = Isa::portable;
  const kernels::cpu::GemmTable* gemm = nullptr;
  const kernels::cpu::RowTable* rows = nullptr;
  const kernels::cpu::Backend* backend = nullptr;
  Crew crew{};
};

/// The engine that `options` stand for. Throws InvalidArgument, naming `call`.
Engine engine_of(const char* call, const Options& options);

/// Bytes of a floating-point element: never 0, as the door has seen to it.
constexpr std::int64_t float_bytes(ElementType type) {
  return type == ElementType::float32 ? 4 : 2;
}

/// A checked [batch, tokens, columns] array; strides in bytes, 0 on axes of one element.
struct Rows {
  std::byte* data = nullptr;  ///< inputs are never written
  ElementType type = ElementType::float32;
  std::int64_t batch = 1, tokens = 0, columns = 0;
  std::int64_t batch_stride = 0, token_stride = 0, column_stride = 0;

  std::int64_t count() const { return batch * tokens; }
  std::byte* row(std::int64_t index) const {
    return data + index / tokens * batch_stride + index % tokens * token_stride;
  }
  /// Whether all rows lie the same distance apart, and that distance.
  bool even() const { return batch <= 1 || tokens <= 1 || batch_stride == tokens * token_stride; }
  std::int64_t step() const { return tokens > 1 ? token_stride : batch_stride; }
  /// Bytes from a column to the next, of one column too.
  std::int64_t column_step() const { return columns <= 1 ? float_bytes(type) : column_stride; }
  bool dense() const { return column_step() == float_bytes(type); }
};

/// Memory that grows to the largest size it was asked for.
class Buffer {
 public:
  /// For `rows` of `pitch` bytes. Throws std::bad_array_new_length where that overflows 64 bits.
  std::byte* need(std::int64_t rows, std::int64_t pitch) {
    std::int64_t bytes = 0;
    if (__builtin_mul_overflow(rows, pitch, &bytes)) throw std::bad_array_new_length();
    return need(bytes);
  }
  std::byte* need(std::int64_t bytes) {
    if (static_cast<std::size_t>(bytes) > memory_.size()) {
      memory_ = base::AlignedBuffer<std::byte>();  // freed first: never both at once
      memory_ = base::in_large_pages<std::byte>(static_cast<std::size_t>(bytes));
    }
    return memory_.data();
  }
  std::size_t bytes() const { return memory_.size(); }

 private:
  base::AlignedBuffer<std::byte> memory_;
};

/// Bytes between rows of `bytes`: whole cache lines, and not a large power of two, whose rows would
/// share a few sets of the L1 cache.
inline std::int64_t row_pitch(std::int64_t bytes) {
  const std::int64_t lines = base::ceil_div(bytes, base::kCacheLine);
  return (lines % 16 == 0 ? lines + 1 : lines) * 64;
}

/// Runs body(item, worker) for items 0 .. items - 1; workers claim them in order. What the body
/// throws comes out.
template <class Body>
void share_out(const Crew& crew, std::int64_t items, const Body& body) {
  base::share_out(*crew.executor, crew.workers, items, body);
}

/// Rows that one item of an elementwise stage takes.
inline constexpr std::int64_t kRowsPerItem = 16;

/// Runs body(row, worker) for every row, in runs of kRowsPerItem.
template <class Body>
void share_out_rows(const Crew& crew, std::int64_t rows, const Body& body) {
  share_out(crew, base::ceil_div(rows, kRowsPerItem), [&](std::int64_t item, int worker) {
    const std::int64_t end = std::min(rows, (item + 1) * kRowsPerItem);
    for (std::int64_t row = item * kRowsPerItem; row < end; ++row) body(row, worker);
  });
}

}  // namespace polyhead::inline v0::layers
