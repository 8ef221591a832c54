// The scores of one tile: S^T = K Q^T for a segment of a key block, and what is done to them while
// they are in registers. Included inside an ISA namespace after outer_product.hpp and tile.hpp.

/// Stores or fetches done aside, a little after every few rows of scores.
struct Aside {
  void (*step)(void*) = nullptr;
  void* context = nullptr;
};

/// What happens to scores while they are in registers; null: not wanted.
struct ScoreEnd {
  const float* bias = nullptr;  // added: [key][kTile]
  float* least = nullptr;       // [kLanes]: the least score or bias of any lane
  float* max = nullptr;         // [kTile]: maxima, of visible pairs where there is a sight
  Sight* sight = nullptr;       // its masks are made from its words
  Aside aside;
};

template <class Path>
struct TileScores {
  float* const scores;  // [key][kTile]
  const std::int64_t head_dim;
  const float score_factor;

  /// Scores of a segment; q is the tile's, [step][kTile].
  void of(const Segment& part, const BroadcastOperand& k, const float* q,
          const ScoreEnd& end) const {
    if (end.sight) mask_missing_key(*end.sight, part);
    switch (part.last - part.first) {
      case 1:
        return scores_of<1>(part, k, q, end);
      case 2:
        return scores_of<2>(part, k, q, end);
      default:
        return scores_of<3>(part, k, q, end);
    }
  }

 private:
  template <int kV>
  void scores_of(const Segment& part, const BroadcastOperand& k, const float* q,
                 const ScoreEnd& end) const {
    constexpr int kR = kRowsBeside<kV>;
    int key = part.key_begin;
    for (; key + kR <= part.key_end; key += kR) {
      score_rows<kR, kV>(part, key, k, q, end);
      if (end.aside.step == nullptr) continue;
      for (int row = 0; row < kR; row += Simd::kRows) end.aside.step(end.aside.context);
    }
    for (; key + 4 <= part.key_end; key += 4) score_rows<4, kV>(part, key, k, q, end);
    for (; key < part.key_end; ++key) score_rows<1, kV>(part, key, k, q, end);
  }

  template <int kR, int kV>
  POLYHEAD_INLINE void score_rows(const Segment& part, int key, const BroadcastOperand& k,
                                  const float* q, const ScoreEnd& end) const {
    using V = Simd::V;
    V acc[kR][kV];
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kV; ++v) acc[r][v] = Simd::zero();
    }
    const BroadcastOperand at{k.data + key * k.row_bytes, k.row_bytes, 4};
    float* to = scores + key * kTile + part.first * kLanes;
    if constexpr (Path::kMatrix)
      load_rows<kR, kV>(acc, to);
    else if constexpr (Path::kInteger)
      add_blocks<kR, kV>(acc, at, q + part.first * kLanes, to);
    else
      outer_product<typename Path::Dot, kR, kV>(acc, at, q + part.first * kLanes, kTile,
                                                Path::steps(head_dim));
    if (end.bias) add_bias<kR, kV>(acc, end, key * kTile + part.first * kLanes);
    if (!Path::kMatrix || end.bias) store_rows<kR, kV>(to, acc);
    if (end.sight) return mask_rows<kR, kV>(acc, *end.sight, key, part.first, end.max);
    if (!end.max) return;
    float* max = end.max + part.first * kLanes;
#pragma GCC unroll 4
    for (int v = 0; v < kV; ++v) {
      V m = Simd::load(max + v * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kR; ++r) m = Simd::max(m, acc[r][v]);
      Simd::store(max + v * kLanes, m);
    }
  }

  /// On the integer path every block of dims is an exact sum that joins the score times the key's
  /// scale; the score waits in its place meanwhile. What the row's integers mean comes last.
  template <int kR, int kV>
  POLYHEAD_INLINE void add_blocks(Simd::V (&acc)[kR][kV], const BroadcastOperand& k, const float* q,
                                  float* to) const {
    const std::int64_t last = Path::blocks(head_dim) - 1;
    store_rows<kR, kV>(to, acc);
    if (last < 0) return;  // rows without a dim
    for (std::int64_t b = 0; b < last; ++b) {
      add_block<kR, kV>(acc, k, q, to, b);
      store_rows<kR, kV>(to, acc);
    }
    add_block<kR, kV>(acc, k, q, to, last);
    const float* back = q + Path::steps(head_dim) * kTile;
#pragma GCC unroll 4
    for (int v = 0; v < kV; ++v) {
      const Simd::V factor = Simd::load(back + v * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kR; ++r) acc[r][v] = Simd::mul(acc[r][v], factor);
    }
  }

  /// The scores so far, which are at `so_far`, and block b.
  template <int kR, int kV>
  POLYHEAD_INLINE void add_block(Simd::V (&acc)[kR][kV], const BroadcastOperand& k, const float* q,
                                 const float* so_far, std::int64_t b) const {
    const std::int64_t step = b * Path::kBlockSteps, scale_at = Path::steps(head_dim) + b;
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kV; ++v) acc[r][v] = Simd::zero();
    }
    outer_product<typename Path::Dot, kR, kV>(acc, {k.data + step * 4, k.row_bytes, 4},
                                              q + step * kTile, kTile, Path::kBlockSteps);
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
      const Simd::V scale = Simd::broadcast_at(k.data + r * k.row_bytes + scale_at * 4);
#pragma GCC unroll 4
      for (int v = 0; v < kV; ++v)
        acc[r][v] = Simd::fma(Simd::to_float(Simd::bits(acc[r][v])), scale,
                              Simd::load(so_far + r * kTile + v * kLanes));
    }
  }

  /// Of a path with a matrix unit, which has left the products in their places.
  template <int kR, int kV>
  POLYHEAD_INLINE static void load_rows(Simd::V (&acc)[kR][kV], const float* from) {
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kV; ++v) acc[r][v] = Simd::load(from + r * kTile + v * kLanes);
    }
  }

  template <int kR, int kV>
  POLYHEAD_INLINE static void store_rows(float* to, const Simd::V (&acc)[kR][kV]) {
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kV; ++v) Simd::store(to + r * kTile + v * kLanes, acc[r][v]);
    }
  }

  /// The scale where it is still missing, then the bias: each rounded, as everywhere else.
  template <int kR, int kV>
  POLYHEAD_INLINE void add_bias(Simd::V (&acc)[kR][kV], const ScoreEnd& end, int place) const {
    using V = Simd::V;
    const V factor = Simd::broadcast(score_factor);
    V least = Simd::load(end.least);
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kV; ++v) {
        if constexpr (Path::kBfloat16) acc[r][v] = Simd::mul(acc[r][v], factor);
        const V bias = Simd::load(end.bias + place + r * kTile + v * kLanes);
        acc[r][v] = Simd::add(acc[r][v], bias);
        // A NaN leaves the second one: a bias of -inf shows beside a score that is none.
        least = Simd::min(Simd::min(acc[r][v], bias), least);
      }
    }
    Simd::store(end.least, least);
  }

  /// Masks of rows [key, key + kR), within one word of 32 bits, and the maxima of what they show.
  template <int kR, int kV>
  POLYHEAD_INLINE static void mask_rows(const Simd::V (&acc)[kR][kV], Sight& sight, int key,
                                        int first, float* block_max) {
#pragma GCC unroll 4
    for (int v = 0; v < kV; ++v) {
      const int at = (first + v) * kLanes;
      const Simd::I words = Simd::load_int(sight.words[key / 32] + at);
      Simd::StoredMask* masks = sight.masks + key * kVectors + first + v;
      Simd::V m = block_max ? Simd::load(block_max + at) : Simd::zero();
#pragma GCC unroll 8
      for (int r = 0; r < kR; ++r) {
        const Simd::M visible = Simd::test(words, Simd::broadcast_int(kBits.data()[key % 32 + r]));
        masks[r * kVectors] = Simd::store_mask(visible);
        m = Simd::max_masked(visible, m, acc[r][v]);
      }
      if (block_max) Simd::store(block_max + at, m);
    }
  }

  /// Of a pair of keys whose second one is missing.
  static void mask_missing_key(Sight& sight, const Segment& part) {
    if (part.key_end % 2 == 0) return;
    const Simd::M none = Simd::greater(Simd::zero(), Simd::zero());
    for (int v = part.first; v < part.last; ++v) {
      sight.masks[part.key_end * kVectors + v] = Simd::store_mask(none);
    }
  }
};
