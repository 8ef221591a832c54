// Rows of keys or values as every cache keeps them: [head][slot][token][dim], a head's tokens one
// after the other; a slot is a sequence or a page. Pages that follow each other are one piece of
// memory for each head, which is read faster than its parts. Codes have their scales beside them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/memory.hpp"
#include "polyhead/types.h"

namespace polyhead::inline v0::cache {

/// What a store holds and how much of it.
struct StoreShape {
  ElementType type = ElementType::float32;
  std::int64_t slots = 0, heads = 0, tokens = 0, dim = 0;
};

/// One token's row of one head as it comes from outside: float32, float16 or bfloat16, `step`
/// bytes from element to element.
struct SourceRow {
  const std::byte* data;
  ElementType type;
  std::int64_t step;
};

class Store {
 public:
  Store() = default;
  /// `channel_scales`, where not empty, are [heads][dim] and hold for all tokens; else codes of
  /// int8 and int4 have a scale a token and block of 32 dims. Throws InvalidArgument, beginning
  /// with `name`, where the sizes overflow.
  Store(const char* name, const StoreShape& shape, std::vector<float> channel_scales = {});

  const StoreShape& shape() const { return shape_; }
  std::int64_t row_bytes() const { return row_bytes_; }
  std::int64_t bytes() const;

  void write(std::int64_t slot, std::int64_t head, std::int64_t token, const SourceRow& from);
  /// One value, as attention reads it.
  float value(std::int64_t slot, std::int64_t head, std::int64_t token, std::int64_t dim) const;
  /// Tokens [0, tokens) of a slot of `from`, which has the same type, heads and dim.
  void copy(std::int64_t slot, const Store& from, std::int64_t from_slot, std::int64_t tokens);

  /// A token's rows, codes and scales as they are, to the place of another.
  void copy_token(std::int64_t slot, std::int64_t token, std::int64_t from_slot,
                  std::int64_t from_token);

  /// [slots, tokens, heads, dim], and the scales as KvView has them (not given where there are
  /// none).
  ConstView rows() const;
  ConstView scales() const;

  /// The first `tokens` rows of a head, and their scales of one block of dims, as they lie. For
  /// files.
  std::span<std::byte> head_rows(std::int64_t slot, std::int64_t head, std::int64_t tokens) {
    return {row(slot, head, 0), static_cast<std::size_t>(tokens * row_bytes_)};
  }
  std::span<std::byte> head_scales(std::int64_t slot, std::int64_t head, std::int64_t block,
                                   std::int64_t tokens) {
    return {reinterpret_cast<std::byte*>(scale(slot, head, block, 0)),
            static_cast<std::size_t>(tokens) * 4};
  }
  /// Scales of a token and head; 0: none, or by channel.
  std::int64_t blocks() const { return blocks_; }
  const std::vector<float>& channel_scales() const { return channel_scales_; }

 private:
  std::byte* row(std::int64_t slot, std::int64_t head, std::int64_t token) {
    return data_.data() + ((head * shape_.slots + slot) * shape_.tokens + token) * row_bytes_;
  }
  float* scale(std::int64_t slot, std::int64_t head, std::int64_t block, std::int64_t token) {
    return scales_.data() + ((head * shape_.slots + slot) * blocks_ + block) * shape_.tokens +
           token;
  }
  void encode(std::byte* to, std::int64_t slot, std::int64_t head, std::int64_t token,
              const SourceRow& from);

  StoreShape shape_;
  std::int64_t row_bytes_ = 0;
  std::int64_t blocks_ = 0;
  base::AlignedBuffer<std::byte> data_;
  base::AlignedBuffer<float> scales_;  // [head][slot][block][token]
  std::vector<float> channel_scales_;  // [head][dim]
};

/// Whether a cache can hold the element type of that number, which a file may have from anywhere.
bool is_storable(std::int64_t type);

/// Throws InvalidArgument, in the name of `call`, unless a cache can hold `type`.
void check_storable(const char* call, ElementType type);

/// The scale of each channel of k [batch, tokens, heads, dim] for codes of `type`, [heads][dim]:
/// from the value of largest magnitude. Throws InvalidArgument, beginning with `call`, where one is
/// not finite.
std::vector<float> scales_by_channel(const char* call, const ConstView& k, ElementType type);

}  // namespace polyhead::inline v0::cache
