// What attention reads of a cache: the one contract between caches and kernels.
#pragma once

#include <cstdint>

#include "polyhead/types.h"

#pragma GCC visibility push(default)
namespace polyhead::inline v0 {

/// Keys and values as a cache holds them, instead of k and v in AttentionArguments. Key t of a
/// sequence has position t. The view owns nothing; what it points to outlives the call.
///
/// Without `page_table`: k [batch, tokens, kv_heads, head_dim], v [.., value_dim].
/// With it: k [pages, page_tokens, kv_heads, head_dim], v [.., value_dim], one pool for all
/// sequences; page_tokens is a power of two from 8 to 256. Token t of sequence b is token
/// t % page_tokens of page page_table[b, t / page_tokens].
///
/// Element types float32, float16, bfloat16 and the codes int8, int4, float8_e4m3 and float8_e5m2,
/// k and v alike where they are codes. Rows of codes are dense and padded to blocks of 32 dims
/// (int4: byte i of a block's 16 holds dim i in its low half, dim 16 + i in its high half), so
/// that their strides, in elements, are multiples of 32. A code of int8 or int4 means code * scale,
/// in float32 (docs/numerics.md has what is rounded where they are multiplied as integers):
///   v_scales float32 [pages or batch, tokens, kv_heads, blocks]: a scale a block of 32 dims;
///   k_scales the same, or [kv_heads, head_dim]: a scale a channel, for all tokens.
///
/// A ring says with `oldest` what it has written over: keys t of sequence b with first_tokens <= t
/// < oldest[b]. A call whose causality and window let a query see one of them is refused, whatever
/// other parts of its mask hide.
struct KvView {
  ConstView k{}, v{};
  ConstView k_scales{}, v_scales{};  ///< int8 and int4 only
  ConstView page_table{};            ///< int32 [batch, pages a sequence at most], dense rows
  ConstView lengths{};            ///< int32/int64 [batch]: keys of each sequence; needed when paged
  ConstView oldest{};             ///< optional int32/int64 [batch]; not given: every key is there
  std::int64_t first_tokens = 0;  ///< beside `oldest`: keys that stay, however old

  constexpr bool given() const { return k.given() || v.given() || page_table.given(); }
};

}  // namespace polyhead::inline v0
#pragma GCC visibility pop
