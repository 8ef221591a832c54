// Which query may see which key. A Mask is a small value that points to what the caller owns; masks
// compose with &.
#pragma once

#include <cstdint>

#include "polyhead/types.h"

#pragma GCC visibility push(default)
namespace polyhead::inline v0 {

/// Where query i of q_len stands among kv_len keys. With the sequence's valid lengths:
/// `end`: q_pos = kv_length - q_length + i, the last query sees the last key (FlashAttention,
/// decoding); `start`: q_pos = i (torch's is_causal).
enum class Align : std::uint8_t { unstated, start, end };

/// The pair (query, key) is visible when every part that is given says so.
struct Mask {
  bool causal = false;    ///< key at kv_pos <= q_pos, or kv_pos < prefix_length
  bool windowed = false;  ///< q_pos - left <= kv_pos <= q_pos + right; -1 is unbounded
  /// The kind of two different ones that were joined, "window" for example: refused at the door.
  const char* conflict = nullptr;
  Align align = Align::unstated;
  std::int64_t left = -1, right = -1;  ///< of a window: anything but -1 is refused without one
  /// Of a window: keys before it are visible however far back (the first tokens that StreamingLLM
  /// keeps, which it calls attention sinks). `right` and causality still hold for them.
  std::int64_t first_tokens = 0;
  /// With `causal`; one for all sequences, `prefix_lengths` has one each.
  std::int64_t prefix_length = 0;
  ConstView prefix_lengths{};  ///< int32/int64 [batch]
  /// int32/int64 [batch]: the valid tokens of each sequence, padded or ragged.
  ConstView kv_lengths{}, q_lengths{};
  /// int32/int64 [batch or 1, tokens]: equal ids see each other. Ragged: all sequences' tokens
  /// concatenated, [tokens] or [1, tokens].
  ConstView q_documents{}, kv_documents{};
  /// Boolean or bit [batch|1, heads|1, q_len|1, kv_len|1]: true may attend. Ragged: indices within
  /// the sequence, extents at least those of the longest. Bits: [.., kv_len], key stride 1, others
  /// whole bytes.
  ConstView visible{};
  /// The same, but true may not attend: what nn.MultiheadAttention's attn_mask and key_padding_mask
  /// mean.
  ConstView hidden{};
  /// A second one of each, where & puts it: a pair must be visible in both and hidden in neither.
  ConstView also_visible{}, also_hidden{};
};

/// Each query sees the keys up to its own position. The alignment must be stated unless q_len
/// equals kv_len.
Mask causal(Align align = Align::unstated);

/// Each query sees keys q_pos - left .. q_pos + right, itself included; -1 is unbounded. A window
/// of W keys that ends with the query is window(W - 1, 0). Throws InvalidArgument for values under
/// -1. Source: Beltagy et al. 2020.
Mask window(std::int64_t left, std::int64_t right, Align align = Align::unstated);

/// A window that also sees the first `first_tokens` keys. Throws as window() does. Source: Xiao et
/// al. 2024 (StreamingLLM).
Mask window_and_first(std::int64_t left, std::int64_t right, std::int64_t first_tokens,
                      Align align = Align::unstated);

/// Padding: sequence b has kv_lengths[b] valid keys and, where given, q_lengths[b] valid queries;
/// rows past them become zeros with an LSE of -inf, and positions under Align::end count valid
/// tokens only.
Mask lengths(ConstView kv_lengths, ConstView q_lengths = {});

/// Prefix-LM: causal, but the first `length` keys are visible to every query. prefix(0) is
/// causal(). Source: Raffel et al. 2020.
Mask prefix(std::int64_t length, Align align = Align::unstated);
Mask prefix(ConstView lengths, Align align = Align::unstated);

/// Block-diagonal: a query sees the keys whose document id equals its own.
Mask documents(ConstView q_documents, ConstView kv_documents);

/// Any pattern: [batch|1, heads|1, q_len|1, kv_len|1], true may attend; bytes, or packed bits,
/// which have all kv_len.
Mask boolean(ConstView visible);

/// The same patterns where true may not attend, beside which `boolean` may be given. Of
/// nn.MultiheadAttention both masks are hidden(attn_mask) & hidden(key_padding_mask), the latter
/// [batch, kv_len] as a view of [batch, 1, 1, kv_len].
Mask hidden(ConstView hidden);

/// Both must allow the pair, but for one case: `prefix` is a causal mask with an exception, which
/// `causal` beside it does not take back. Two parts of one kind: windows that keep the same first
/// tokens intersect, and so do two boolean and two hidden masks; any other pair must be equal (of
/// views: the same view) or is refused when the mask is used.
Mask operator&(const Mask& a, const Mask& b);

}  // namespace polyhead::inline v0
#pragma GCC visibility pop
