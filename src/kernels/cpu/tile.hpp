// One tile of query lanes: its state, its lanes' places, and what it may see of a key block.
// Included inside an ISA namespace after rows.hpp.

/// Running softmax state of a tile, lane by lane; o is [value_dim][kTile], or what
/// MatrixProducts::add_by_rows says, of so many rows.
/// max is the reference the sums are relative to, in score units; total sums the weights that
/// multiply V (rounded ones for bfloat16), exact_total the unrounded ones. spread is sum p * (score
/// - max), for the entropy.
struct State {
  float max[kTile], total[kTile], exact_total[kTile];
  float spread[kTile], best[kTile];
  std::int32_t best_key[kTile];
  int rows;  // where not 0
  float* o;

  void reset() {
    rows = 0;
    for (int i = 0; i < kTile; ++i) {
      max[i] = best[i] = -kInfinity;
      total[i] = exact_total[i] = spread[i] = 0.0f;
      best_key[i] = -1;
    }
  }
};

/// A run of keys of a block, in steps of 8, that vectors [first, last) of a tile look at. `full`:
/// all of its pairs are visible.
struct Segment {
  int key_begin, key_end;
  int first, last;
  bool full;
};

struct Lanes {
  int count = 0, vectors = 0;
  std::int64_t query[kTile], head[kTile], q_pos[kTile];
  std::int64_t begin[kTile], end[kTile];  // visible keys by structure
  std::int64_t min_begin, max_begin, min_end, max_end;
  std::int64_t window_begin;  // of any lane; min_begin is 0 where first keys are kept
  float slope[kTile];
  bool hide = false;  // whether a score of -inf hides its pair (ScoreSpec::may_hide)
  // Where each lane's row of a dense table begins, in the units of its strides.
  std::int64_t bias_row[kTile], boolean_row[kernels::MaskSpec::kMostBooleans][kTile];
  std::int64_t document[kTile];  // of each lane's query, where there are documents

  /// Rows first_row .. of `group` heads from first_head on: row r is query r / group of head
  /// first_head + r % group. Lanes past the last row repeat it; their results are discarded.
  void place(const AttendCall& call, const Sequence& s, std::int64_t first_head, std::int64_t group,
             std::int64_t first_row, int rows) {
    count = rows;
    vectors = (rows + kLanes - 1) / kLanes;
    std::int64_t token = first_row / group, member = first_row % group;
    for (int i = 0; i < kTile; ++i) {
      query[i] = token;
      head[i] = first_head + member;
      if (i < rows - 1 && ++member == group) member = 0, ++token;
    }
    // Simple loops, so that the compiler makes vectors of them.
    for (int i = 0; i < kTile; ++i) {
      q_pos[i] = s.q_pos0 + query[i];
      const KeyRange range = structural_range(call.mask, s, q_pos[i]);
      begin[i] = range.begin;
      end[i] = range.end;
    }
    if (call.q_positions) {
      for (int i = 0; i < kTile; ++i) q_pos[i] = call.q_positions[query[i]];
    }
    min_begin = min_end = std::numeric_limits<std::int64_t>::max();
    max_begin = max_end = 0;
    for (int i = 0; i < kTile; ++i) {
      min_begin = std::min(min_begin, begin[i]);
      max_begin = std::max(max_begin, begin[i]);
      min_end = std::min(min_end, end[i]);
      max_end = std::max(max_end, end[i]);
    }
    window_begin = min_begin;
    if (call.mask.kept > 0) min_begin = 0;
    hide = call.score.may_hide();
    if (call.score.alibi) place_slopes(call, group);
    for (int i = 0; i < kTile && call.score.bias.data; ++i)
      bias_row[i] = kernels::bias_row(call, s.batch, head[i], query[i]);
    for (int t = 0; t < call.mask.boolean_count; ++t)
      place_rows(call.mask.boolean[t], s.batch, boolean_row[t]);
    const kernels::DocumentIds& documents = call.mask.q_documents;
    for (int i = 0; i < kTile && documents.data; ++i)
      document[i] = documents.at(s.batch, s.token0 + query[i]);
  }

  void place_rows(const PairTable& table, std::int64_t batch, std::int64_t* rows) const {
    for (int i = 0; i < kTile; ++i)
      rows[i] = batch * table.batch + head[i] * table.head + query[i] * table.query;
  }

  /// Heads repeat every `group` lanes, and the closed form is a pow.
  void place_slopes(const AttendCall& call, std::int64_t group) {
    const ScoreSpec& spec = call.score;
    for (int i = 0; i < kTile; ++i) {
      if (spec.alibi_slopes)
        slope[i] = spec.alibi_slopes[head[i] * spec.alibi_stride];
      else
        slope[i] = i >= group && head[i] == head[i - group] ? slope[i - group]
                                                            : alibi_slope(head[i], call.q_heads);
    }
  }
};

/// What the lanes of a tile see of one key block: nothing, everything, or segments with a word of
/// 64 bits a lane.
struct Sight {
  enum Kind { nothing, everything, some } kind = nothing;
  int segments = 0;
  Segment segment[9];                            // at most one a group of 8 keys, and a sentinel
  std::uint32_t words[2][kTile];                 // bit j of [j / 32][lane]: key j is visible
  Simd::StoredMask masks[kKeyBlock * kVectors];  // by key and vector, filled by the softmax

  /// From everything to what the scores leave: every pair may be visible, none is taken for it.
  void see_by_score(int keys, int vectors) {
    kind = some;
    segments = 1;
    segment[0] = {0, keys, 0, vectors, false};
    std::memset(words, 0xff, sizeof words);
  }
};

/// Bits [begin, end) of a block that starts at key `block`.
POLYHEAD_INLINE std::uint64_t range_word(std::int64_t begin, std::int64_t end, std::int64_t block) {
  const std::int64_t low = std::clamp<std::int64_t>(begin - block, 0, kKeyBlock);
  const std::int64_t high = std::clamp<std::int64_t>(end - block, 0, kKeyBlock);
  // The bits below `high` without those below `low`; a shift by 64 is not defined.
  const auto below = [](std::int64_t n) {
    return n >= kKeyBlock ? ~std::uint64_t{0} : (std::uint64_t{1} << n) - 1;
  };
  return below(high) & ~below(low);
}

/// The same with the first keys that are kept.
POLYHEAD_INLINE std::uint64_t structural_word(const MaskSpec& mask, std::int64_t begin,
                                              std::int64_t end, std::int64_t block) {
  const std::uint64_t word = range_word(begin, end, block);
  if (block >= mask.kept) return word;
  return word | range_word(0, std::min(mask.kept, end), block);
}

/// Whether a split lies wholly after the kept first keys and before the window.
inline bool between(const MaskSpec& mask, std::int64_t window, std::int64_t split) {
  return split * kSplitKeys >= mask.kept && (split + 1) * kSplitKeys <= window;
}

/// The documents of a block of keys. Most blocks have one or two, and most rows see all of a block
/// or none of it: loops that become vectors tell.
struct KeyDocuments {
  int count;
  std::int64_t id[kKeyBlock];

  KeyDocuments(const AttendCall& call, const Sequence& s, std::int64_t block, int n) : count(n) {
    const kernels::DocumentIds& ids = call.mask.kv_documents;
    const std::byte* const first =
        ids.data + s.batch * ids.batch + (s.kv_token0 + block) * ids.token;
    if (ids.type == ElementType::int32)
      load<std::int32_t>(first, ids.token);
    else
      load<std::int64_t>(first, ids.token);
  }

  template <class Id>
  void load(const std::byte* first, std::int64_t stride) {
    if (stride == std::int64_t{sizeof(Id)}) {
      const Id* const from = reinterpret_cast<const Id*>(first);
      for (int j = 0; j < count; ++j) id[j] = from[j];
    } else {
      for (int j = 0; j < count; ++j) id[j] = *reinterpret_cast<const Id*>(first + j * stride);
    }
  }

  /// Bit j: key j is of the document; bits from `count` on say nothing.
  std::uint64_t word(std::int64_t document) const {
    std::int64_t same = 0;
    for (int j = 0; j < count; ++j) same += id[j] == document;
    if (same == 0) return 0;
    if (same == count) return ~std::uint64_t{0};
    std::uint64_t word = 0;
    for (int j = 0; j < count; ++j) word |= std::uint64_t{id[j] == document} << j;
    return word;
  }
};

/// What the tables of the mask leave of one row's `word`.
inline std::uint64_t table_word(const AttendCall& call, const Sequence& s, std::int64_t head,
                                std::int64_t query, std::uint64_t word, std::int64_t block,
                                std::int64_t n) {
  for (const BooleanTable& table : call.mask.booleans()) {
    if (word == 0) return 0;
    const std::uint64_t bits = table_bits(table, s.batch, head, query, block, n);
    word &= table.hides ? ~bits : bits;
  }
  if (word != 0 && call.mask.q_documents.data)
    word &= KeyDocuments(call, s, block, static_cast<int>(n))
                .word(call.mask.q_documents.at(s.batch, s.token0 + query));
  return word;
}

/// What a boolean mask leaves of the lanes' words, whose rows begin at `rows`: short loops for
/// whole blocks of a dense one.
template <bool kHides>
inline void apply_boolean(std::uint64_t* words, const PairTable& table, const std::int64_t* rows,
                          const Sequence& s, const Lanes& lanes, std::int64_t block, int keys) {
  constexpr std::uint64_t kFlip = kHides ? ~std::uint64_t{0} : 0;
  const bool whole = keys == kKeyBlock;
  const int count = lanes.count;
  if (whole && table.type == ElementType::bit) {
    for (int i = 0; i < count; ++i) {
      std::uint64_t word;
      std::memcpy(&word, table.data + (rows[i] + block) / 8, sizeof word);
      words[i] &= word ^ kFlip;
    }
  } else if (whole && table.key == 1) {
    for (int i = 0; i < count; ++i)
      words[i] &= Simd::nonzero_bytes(table.data + rows[i] + block) ^ kFlip;
  } else {
    for (int i = 0; i < count; ++i) {
      if (words[i] != 0)
        words[i] &= table_bits(table, s.batch, lanes.head[i], lanes.query[i], block, keys) ^ kFlip;
    }
  }
}

/// What documents leave of them: lanes of one document follow each other.
inline void apply_documents(std::uint64_t* words, const AttendCall& call, const Sequence& s,
                            const Lanes& lanes, std::int64_t block, int keys) {
  const KeyDocuments of_keys(call, s, block, keys);
  std::uint64_t word = 0;
  for (int i = 0; i < lanes.count; ++i) {
    if (i == 0 || lanes.document[i] != lanes.document[i - 1])
      word = of_keys.word(lanes.document[i]);
    words[i] &= word;
  }
}

/// What the tables of the mask leave of every lane's word.
inline void apply_tables(std::uint64_t* words, const AttendCall& call, const Sequence& s,
                         const Lanes& lanes, std::int64_t block, int keys) {
  for (int t = 0; t < call.mask.boolean_count; ++t) {
    const BooleanTable& table = call.mask.boolean[t];
    if (table.hides)
      apply_boolean<true>(words, table, lanes.boolean_row[t], s, lanes, block, keys);
    else
      apply_boolean<false>(words, table, lanes.boolean_row[t], s, lanes, block, keys);
  }
  if (call.mask.q_documents.data) apply_documents(words, call, s, lanes, block, keys);
  for (int i = lanes.count; i < kTile; ++i) words[i] = words[lanes.count - 1];
}

/// Cuts the block into segments from what each vector's lanes see, any of them and all of them.
inline void cut_segments(Sight& sight, const std::uint64_t* any, const std::uint64_t* all,
                         int vectors, int keys, bool one_segment) {
  sight.segments = 0;
  if (one_segment) {
    sight.segment[sight.segments++] = {0, keys, 0, vectors, false};
    return;
  }
  for (int key = 0; key < keys; key += 8) {
    const std::uint64_t chunk = std::uint64_t{0xff} << key;
    int first = vectors, last = 0;
    for (int v = 0; v < vectors; ++v) {
      if (any[v] & chunk) first = std::min(first, v), last = v + 1;
    }
    if (first >= last) continue;
    const int end = std::min(key + 8, keys);
    const std::uint64_t whole =
        end - key == 8 ? chunk : (chunk & (~std::uint64_t{0} >> (kKeyBlock - end)));
    bool full = true;
    for (int v = first; v < last; ++v) full = full && (all[v] & whole) == whole;
    if (sight.segments > 0) {
      Segment& before = sight.segment[sight.segments - 1];
      if (before.key_end == key && before.first == first && before.last == last &&
          before.full == full) {
        before.key_end = end;
        continue;
      }
    }
    sight.segment[sight.segments++] = {key, end, first, last, full};
  }
}

/// Decides what the tile sees of keys [block, block + keys).
inline void look(Sight& sight, const AttendCall& call, const Sequence& s, const Lanes& lanes,
                 std::int64_t block, int keys) {
  sight.kind = Sight::nothing;
  if (block >= lanes.max_end) return;
  if (block + keys <= lanes.window_begin && block >= call.mask.kept) return;
  const bool tables = call.mask.has_tables();
  if (!tables && block >= lanes.max_begin && block + keys <= lanes.min_end) {
    sight.kind = Sight::everything;
    return;
  }
  alignas(64) std::uint64_t words[kTile];
  if (block >= lanes.max_begin && block + keys <= lanes.min_end) {
    for (std::uint64_t& word : words) word = ~std::uint64_t{0} >> (kKeyBlock - keys);
  } else {
    for (int i = 0; i < kTile; ++i)
      words[i] = structural_word(call.mask, lanes.begin[i], lanes.end[i], block);
  }
  if (tables) apply_tables(words, call, s, lanes, block, keys);
  std::uint64_t any[kVectors] = {}, all[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    all[v] = ~std::uint64_t{0};
    for (int i = v * kLanes; i < (v + 1) * kLanes; ++i) {
      sight.words[0][i] = static_cast<std::uint32_t>(words[i]);
      sight.words[1][i] = static_cast<std::uint32_t>(words[i] >> 32);
      any[v] |= words[i];
      all[v] &= words[i];
    }
  }
  std::uint64_t seen = 0, whole = ~std::uint64_t{0};
  for (int v = 0; v < lanes.vectors; ++v) seen |= any[v], whole &= all[v];
  if (seen == 0) return;
  const std::uint64_t block_word = ~std::uint64_t{0} >> (kKeyBlock - keys);
  if ((whole & block_word) == block_word) {
    sight.kind = Sight::everything;
    return;
  }
  sight.kind = Sight::some;
  if (lanes.hide) {
    for (int v = 0; v < lanes.vectors; ++v) all[v] = 0;
  }
  cut_segments(sight, any, all, lanes.vectors, keys, call.score.custom_count > 0);
}

/// K and V of one block as the microkernel reads them: 4-byte elements (floats or bfloat16 pairs).
struct KeyBlock {
  BroadcastOperand k;  // row = key, step = dim or pair of dims
  BroadcastOperand v;  // row = dim, step = key or pair of keys
  bool ready = false;
  enum { unknown, yes, no } finite = unknown;  // no NaN or Inf in V: a weight of 0 hides it exactly
};

/// Rows so many bytes apart.
struct StridedRows {
  const std::byte* data;
  std::int64_t stride;
};

/// A worker's memory, laid out once for each item.
struct Scratch {
  float *q, *k, *v, *scores, *bias, *rows, *o;
  float *v_scales, *rounded;  // integer path: [block of dims][key]; weights in pairs, [pair][kTile]
  Sight* sight;
  Lanes* lanes;
  State* states;  // per sub-tile: the split's, then the running one
  // Where there is a matrix unit: what to fetch beside its products, the rows of 16 keys each and
  // of the values of every key, and whether the item has one tile alone.
  class Fetcher* fetcher;
  StridedRows rows_of_keys[kKeyBlock / 16];
  const std::uint16_t** value_rows;
  bool lone_tile;
};
