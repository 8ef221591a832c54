// The one contract between the door and every backend: validated arguments, raw pointers, byte
// strides. Kernels rely on it without checking: sizes are consistent, pointers valid for their
// extents, nothing overlaps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/limits.hpp"
#include "polyhead/executor.h"
#include "polyhead/isa.h"
#include "polyhead/modifiers.h"
#include "polyhead/types.h"

namespace polyhead::inline v0::kernels {

using base::kMaxDim;  // of head_dim and value_dim

/// Scales of codes: value = code * scale, one float32 product. Strides in elements; `shift` is log2
/// of the dims that share a scale: 5, or 0 for keys by channel, whose batch and token strides are
/// 0.
struct Scales {
  const float* data = nullptr;  ///< null: none (8-bit floats)
  std::int64_t batch = 0, token = 0, head = 0, block = 0;
  int shift = 5;
};

/// An operand with axes [batch, token, head, dim]; strides in bytes, 0 for broadcast axes. Of a
/// paged call's k and v the first axis is the page. Rows of codes are dense, in blocks of 32
/// (base/codes.hpp), and have no dim stride.
struct Operand {
  std::byte* data = nullptr;  ///< null: not given. Inputs are never written.
  ElementType type = ElementType::float32;
  std::int64_t batch = 0, token = 0, head = 0, dim = 0;
  Scales scales{};
};

/// Bytes from the first to the last element of a dense row.
inline std::int64_t row_bytes(const Operand& x, std::int64_t dim) {
  return x.type == ElementType::int4 ? (dim + 31) / 32 * 16 : dim * element_bytes(x.type);
}

/// A pair table ([batch, head, query, key]: bias or boolean mask). Strides in bytes; in bits for
/// ElementType::bit. Query and key count within their sequence, ragged batches included.
struct PairTable {
  const std::byte* data = nullptr;
  ElementType type = ElementType::float32;
  std::int64_t batch = 0, head = 0, query = 0, key = 0;
};

/// A boolean mask of pairs: true may attend, or may not.
struct BooleanTable : PairTable {
  bool hides = false;
};

/// One integer a sequence (or a token): int32 or int64, stride in bytes (0: the same for all).
struct Integers {
  const std::byte* data = nullptr;
  ElementType type = ElementType::int64;
  std::int64_t stride = 0;
  bool given() const { return data != nullptr; }
  std::int64_t operator[](std::int64_t i) const {
    const std::byte* at = data + i * stride;
    return type == ElementType::int32 ? *reinterpret_cast<const std::int32_t*>(at)
                                      : *reinterpret_cast<const std::int64_t*>(at);
  }
};

/// Document ids [batch, token]; ragged batches count the tokens of all sequences (Sequence::token0
/// + query).
struct DocumentIds {
  const std::byte* data = nullptr;
  ElementType type = ElementType::int64;
  std::int64_t batch = 0, token = 0;  ///< bytes
  std::int64_t at(std::int64_t b, std::int64_t i) const {
    return Integers{data + b * batch, type, token}[i];
  }
};

/// Where the tokens of each sequence lie in a pool: token t on page [sequence][t >> shift], its
/// t & (page_tokens - 1)th. Pages hold a power of two from 8 to 256 tokens.
struct PageTable {
  const std::int32_t* data = nullptr;
  std::int64_t stride = 0;  ///< entries from one sequence to the next
  int shift = 0;
  bool given() const { return data != nullptr; }
  std::int64_t page_tokens() const { return std::int64_t{1} << shift; }
};

enum class Positions : std::uint8_t { end, start };

/// Everything a mask says. A pair is visible when all given parts agree (include/polyhead/mask.h).
struct MaskSpec {
  bool causal = false;
  std::int64_t left = -1, right = -1;  ///< window, -1 unbounded
  std::int64_t kept = 0;               ///< keys before it are seen whatever `left` says
  std::int64_t prefix_length = 0;      ///< all sequences; prefix_lengths, where given, one each
  Integers prefix_lengths;
  DocumentIds q_documents, kv_documents;
  static constexpr int kMostBooleans = 4;
  BooleanTable boolean[kMostBooleans];  ///< boolean or bit; those given come first
  int boolean_count = 0;

  std::span<const BooleanTable> booleans() const {
    return {boolean, static_cast<std::size_t>(boolean_count)};
  }
  /// Whether it says something of single pairs, beside which keys a query sees by its position.
  bool has_tables() const { return boolean_count > 0 || q_documents.data; }
};

/// Times any distance between positions, of which there are 2^50, still less than what the largest
/// float32 is rounded by: up to here ALiBi makes no score infinite.
inline constexpr float kSteepSlope = 0x1p50f;

/// The score pipeline: s = scale * q.k, soft-cap, bias, ALiBi, custom; then mask, softmax with
/// sink, dropout.
struct ScoreSpec {
  float scale = 1.0f;
  float soft_cap = 0.0f;  ///< 0: none
  PairTable bias;
  bool alibi = false;
  const float* alibi_slopes = nullptr;  ///< null with alibi set: the closed form
  std::int64_t alibi_stride = 0;        ///< elements
  bool steep = false;                   ///< a slope is beyond kSteepSlope
  const TileModifier* custom[kMaxCustomModifiers] = {};
  int custom_count = 0;
  const float* sink = nullptr;
  std::int64_t sink_stride = 0;  ///< elements
  float dropout = 0.0f;
  std::uint64_t seed = 0;
  Integers sequence_ids;  ///< not given: the batch index

  /// Anything that changes a score after scale * q.k.
  bool modifies_scores() const {
    return soft_cap != 0.0f || bias.data != nullptr || alibi || custom_count > 0;
  }

  /// Whether a modifier may make a score -inf, which then hides its pair. Where none may, -inf is a
  /// product beyond float32 and has a weight of 0.
  bool may_hide() const { return bias.data != nullptr || custom_count > 0 || steep; }
};

/// One whole call. Ragged batches have offsets; then the batch stride of q, k, v, out is 0 and
/// `token` walks all.
struct AttendCall {
  std::int64_t batch = 0, q_len = 0, kv_len = 0;  ///< the largest of any sequence
  std::int64_t q_heads = 0, kv_heads = 0, head_dim = 0, value_dim = 0;
  Operand q, k, v, out;
  Integers q_offsets, kv_offsets;  ///< ragged; each side for itself
  PageTable pages;                 ///< of k and v
  Integers q_lengths, kv_lengths;  ///< padding
  Integers q_start;                ///< explicit first positions; else `positions`
  Positions positions = Positions::end;
  /// Of each query, where they do not follow each other: rows of several sequences. Only ALiBi
  /// counts from them.
  const std::int64_t* q_positions = nullptr;
  /// Of each query and head of such rows, where in the bias its row begins, in bytes; else by the
  /// bias's strides.
  const std::int64_t* bias_rows = nullptr;
  MaskSpec mask;
  ScoreSpec score;
  Operand lse;                           ///< float32 [batch, token, head]; dim unused
  Operand entropy, max_weight, max_key;  ///< statistics, same axes; float32, float32, int64

  std::int64_t group() const { return kv_heads > 0 ? q_heads / kv_heads : 1; }
};

/// An output of the second pass: float32 [batch, head, row, key] in bytes; `row` and `key` unused
/// where it has no such axis.
struct WeightMap {
  std::byte* data = nullptr;  ///< null: not wanted
  std::int64_t batch = 0, head = 0, row = 0, key = 0;
};

/// A second pass over q and k given the LSE: `attend.lse` is read, `attend.v` and `attend.out` are
/// not given.
struct InspectCall {
  AttendCall attend;
  Integers heads;               ///< the query heads of `weights`; not given: 0, 1, ...
  std::int64_t head_count = 0;  ///< of `weights`
  std::int64_t first_query = 0, query_count = 0;
  WeightMap weights, received, pooled;
  std::int64_t q_bins = 0, kv_bins = 0;
};

/// Rows of the widest tile of any instruction set.
inline constexpr int kMostTileRows = 48;

/// What a row's weight may fall on; the order of HeadTarget (include/polyhead/heads.h).
enum Target : std::uint8_t { induction, duplicate, previous, self, local, delimiter };
inline constexpr int kTargets = 6;
inline constexpr std::int64_t kLocalWindow = 8;  // keys before the query that are local

/// Sums over one tile's rows, lane by lane. Key 0 stands apart; all else counts keys from 1 on.
/// `seen` counts visible keys.
struct TileSums {
  float first[kMostTileRows], first_seen[kMostTileRows];
  float rest[kMostTileRows], rest_seen[kMostTileRows];
  float information[kMostTileRows];  ///< -sum w log2 w
  float distance[kMostTileRows];     ///< sum w |q_pos - kv_pos|
  float target[kTargets][kMostTileRows], target_seen[kTargets][kMostTileRows];
  float largest[kMostTileRows];  ///< of all keys, key 0 included
  std::int32_t largest_key[kMostTileRows];
};

/// The heaviest keys of one row while it is swept: every weight >= the threshold in key order, and
/// the `least` largest, heaviest first, the lower key first on ties.
struct RowEntries {
  float floor = 0.0f;  ///< a weight must exceed it to matter
  int count = 0, most = 0;
};

/// Where the sweep over one tile of one head leaves its results. Null: not wanted.
struct HeadTile {
  TileSums* sums = nullptr;
  float* received = nullptr;      ///< [kv_len of the run]: added to, in query order
  float* maps[4] = {};            ///< [q_bins][kv_bins]: pooled into
  RowEntries* entries = nullptr;  ///< [kMostTileRows]
  std::int32_t* keys = nullptr;   ///< [kMostTileRows][capacity], then the largest
  float* weights = nullptr;       ///< likewise
  float* full = nullptr;          ///< [rows][call's kv_len], filled with 0
};

/// Pooling of one map over the whole run.
struct HeadMap {
  std::int64_t q_bins = 0, kv_bins = 0;
  bool maximum = true;
};

/// A sweep that gathers head statistics over one call, which may be a chunk of the queries.
struct HeadSweep {
  AttendCall attend;             ///< one sequence
  std::int64_t first_query = 0;  ///< of the call's rows within the run
  std::int64_t q_total = 0, kv_total = 0;
  /// [kv_total + 1] whole numbers: [j + 1] is the class of key j; equal classes >= 0 are copies.
  const float* classes = nullptr;
  const std::uint8_t* delimiters = nullptr;  ///< [kv_total]
  bool cross = false;                        ///< positions of queries and keys do not compare
  HeadMap maps[4];
  int map_count = 0;
  float threshold = 0.0f;        ///< of entries
  float below_threshold = 0.0f;  ///< the float before it
  int least = 0;
  std::int64_t capacity = 0;  ///< of entries at or above the threshold a row
};

/// Where a row's bias begins, in bytes.
inline std::int64_t bias_row(const AttendCall& call, std::int64_t batch, std::int64_t head,
                             std::int64_t query) {
  if (call.bias_rows) return call.bias_rows[query * call.q_heads + head];
  const PairTable& bias = call.score.bias;
  return batch * bias.batch + head * bias.head + query * bias.query;
}

/// One sequence of a call, resolved: where it lies and how long it is.
struct Sequence {
  std::int64_t batch = 0;
  const std::byte *q = nullptr, *k = nullptr, *v = nullptr;
  std::byte* out = nullptr;
  std::int64_t token0 =
      0;  ///< first query token of the sequence in out, lse and statistics (ragged; else 0)
  std::int64_t kv_token0 = 0;          ///< first key token (ragged; else 0)
  std::int64_t q_rows = 0;             ///< query rows that exist in out (padding rows included)
  std::int64_t q_len = 0, kv_len = 0;  ///< valid ones
  std::int64_t q_pos0 = 0;             ///< position of query 0; key j has position j
  const std::int32_t* pages = nullptr;
  std::int64_t prefix = 0;
};

inline Sequence sequence_of(const AttendCall& call, std::int64_t b) {
  Sequence s;
  s.batch = b;
  if (call.q_offsets.given()) {
    s.token0 = call.q_offsets[b];
    s.q_rows = call.q_offsets[b + 1] - s.token0;
  } else {
    s.q_rows = call.q_len;
  }
  if (call.kv_offsets.given()) {
    s.kv_token0 = call.kv_offsets[b];
    s.kv_len = call.kv_offsets[b + 1] - s.kv_token0;
  } else {
    s.kv_len = call.kv_len;
  }
  s.q_len = s.q_rows;
  if (call.q_lengths.given()) s.q_len = call.q_lengths[b];
  if (call.kv_lengths.given()) s.kv_len = call.kv_lengths[b];
  s.q = call.q.data + b * call.q.batch + s.token0 * call.q.token;
  s.out = call.out.data + b * call.out.batch + s.token0 * call.out.token;
  if (call.pages.given()) {
    s.pages = call.pages.data + b * call.pages.stride;
    s.k = call.k.data;
    s.v = call.v.data;
  } else {
    s.k = call.k.data + b * call.k.batch + s.kv_token0 * call.k.token;
    s.v = call.v.data + b * call.v.batch + s.kv_token0 * call.v.token;
  }
  if (call.q_start.given())
    s.q_pos0 = call.q_start[b];
  else if (call.positions == Positions::end)
    s.q_pos0 = s.kv_len - s.q_len;
  s.prefix =
      call.mask.prefix_lengths.given() ? call.mask.prefix_lengths[b] : call.mask.prefix_length;
  return s;
}

/// Consecutive rows of k or v of one head, `token` apart, and their scales where they have some.
struct KeyRows {
  const std::byte* data;
  const float* scales;
};

/// The rows from `key` on of k (`first` is Sequence::k) or v (Sequence::v): run_of() of them.
inline KeyRows key_rows(const AttendCall& call, const Sequence& s, const Operand& x,
                        const std::byte* first, std::int64_t head, std::int64_t key) {
  std::int64_t page = s.batch;
  if (s.pages) {
    page = s.pages[key >> call.pages.shift];
    key &= call.pages.page_tokens() - 1;
    first += page * x.batch;
  }
  const Scales& scales = x.scales;
  return {first + head * x.head + key * x.token,
          scales.data ? scales.data + page * scales.batch + head * scales.head + key * scales.token
                      : nullptr};
}

/// How many keys from `key` on lie `token` apart.
inline std::int64_t run_of(const AttendCall& call, const Sequence& s, std::int64_t key) {
  if (!s.pages) return INT64_MAX;
  return call.pages.page_tokens() - (key & (call.pages.page_tokens() - 1));
}

/// The sequence as one without pages where those of its keys [first, end) follow each other and are
/// one piece of memory, as a pool has them if it can: read so, they are read as fast as one. Scales
/// of tokens are not one piece. Other keys are not where it then says.
inline Sequence without_pages(const AttendCall& call, Sequence s, std::int64_t first,
                              std::int64_t end) {
  if (s.kv_len < end) end = s.kv_len;
  if (!s.pages || first >= end) return s;
  const std::int64_t tokens = call.pages.page_tokens();
  const auto one_piece = [&](const Operand& x) {
    return x.batch == tokens * x.token && (!x.scales.data || x.scales.token == 0);
  };
  if (!one_piece(call.k) || !one_piece(call.v)) return s;
  const std::int32_t page = s.pages[first / tokens];
  for (std::int64_t at = first + tokens; at < end; at += tokens) {
    if (s.pages[at / tokens] != page + (at - first) / tokens) return s;
  }
  s.pages = nullptr;
  s.k += page * call.k.batch - first * call.k.token;
  s.v += page * call.v.batch - first * call.v.token;
  return s;
}

/// The address of a sequence's value in a [batch, token, head] output such as the LSE.
inline std::byte* row_address(const Operand& to, const Sequence& s, std::int64_t query,
                              std::int64_t head) {
  return to.data + s.batch * to.batch + (s.token0 + query) * to.token + head * to.head;
}

/// Keys [begin, end) that position q_pos may see by structure: causal, window, prefix and length.
/// Those before both mask.kept and `end` are seen too.
struct KeyRange {
  std::int64_t begin = 0, end = 0;
};

inline KeyRange structural_range(const MaskSpec& mask, const Sequence& s, std::int64_t q_pos) {
  KeyRange range{0, s.kv_len};
  if (mask.causal) {
    const std::int64_t causal_end = q_pos + 1 > s.prefix ? q_pos + 1 : s.prefix;
    if (causal_end < range.end) range.end = causal_end;
  }
  if (mask.left >= 0 && q_pos > mask.left) range.begin = q_pos - mask.left;
  // Written without q_pos + right, which may overflow for a huge `right`.
  if (mask.right >= 0 && q_pos < range.end - mask.right) {
    const std::int64_t window_end = q_pos + mask.right + 1;
    if (window_end < range.end) range.end = window_end;
  }
  if (range.end < 0) range.end = 0;
  if (range.begin > range.end) range.begin = range.end;
  return range;
}

}  // namespace polyhead::inline v0::kernels
