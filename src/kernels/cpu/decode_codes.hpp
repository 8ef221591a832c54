// Scores of few rows against codes: a row's kLanes words of four bytes are transposed at once, so
// that a lane holds four dims of its key (eight of int4), which become float32 times scale one dim
// at a time. Included inside an ISA namespace after codes.hpp and decode_tiles.hpp.

template <class Path>
struct DecodeCodes {
  using Few = FewRows<Path>;
  const Few& few;
  const AttendCall& call = few.call;
  static constexpr int kTogether = Few::kTogether, kPair = Few::kPair;
  static constexpr std::int64_t kPhase = Few::kPhase;
  using KeyGroup = typename Few::KeyGroup;
  using Turned = TurnedKeys<Path>;

  /// As DecodeScores::groups.
  template <class Elements>
  void groups(std::int64_t first, int keys, float* scores) const {
    for (int at = 0; at < keys; at += kPair * kLanes)
      pair<Elements>(first + at, std::min(kPair * kLanes, keys - at), scores + at);
  }

 private:
  /// Products of rows without a dim.
  void no_dims(float* scores) const {
    for (int r = 0; r < few.row_count; ++r)
      std::memset(scores + r * kPhase, 0, kPair * kLanes * sizeof(float));
  }

  /// Some dims of kPair groups of keys: [word][group][lane].
  struct CodeTile {
    KeyGroup rows[kPair];
    int keys[kPair];
    std::int64_t begin, end;  // dims
    bool special[kPair];      // whether there are codes that are no finite number
    alignas(64) float words[kLanes * kPair * kLanes];
  };

  template <class Elements>
  void pair(std::int64_t first, int keys, float* scores) const {
    constexpr int kDimsAByte = Elements::kNibbles ? 2 : 1;
    const std::int64_t dims = call.head_dim;
    const std::int64_t bytes = Elements::byte_of((dims + 31) / 32 * 32);
    if (bytes == 0) return no_dims(scores);
    CodeTile tile;
    for (int g = 0; g < kPair; ++g) {
      tile.keys[g] = std::clamp(keys - g * kLanes, 0, kLanes);
      if (tile.keys[g] == 0) continue;
      tile.rows[g] = few.group_at(first + g * kLanes, tile.keys[g]);
      few.fetch_scales(tile.rows[g].low_ahead.scales, call.k.scales, dims, kLanes);
    }
    for (std::int64_t at = 0; at < bytes; at += 4 * kLanes) {
      const int count = static_cast<int>(std::min<std::int64_t>(kLanes, (bytes - at) / 4));
      for (int g = 0; g < kPair; ++g) {
        if (tile.keys[g] == kLanes && count == kLanes)
          stage_whole<Elements>(tile, g, at);
        else
          stage_part<Elements>(tile, g, at, count);
      }
      tile.begin = at * kDimsAByte;
      tile.end = std::min(dims, (at + 4 * count) * kDimsAByte);
      if (Elements::kScaled && call.k.scales.shift == 0)
        score_code_rows<Elements, true>(tile, scores);
      else
        score_code_rows<Elements, false>(tile, scores);
    }
  }

  template <class Elements>
  POLYHEAD_INLINE void stage_whole(CodeTile& tile, int g, std::int64_t at) const {
    const TiledGroup<Few, Elements> group(few, tile.rows[g], true);
    tile.special[g] = false;
#pragma GCC unroll 2
    for (int w = 0; w < kLanes; w += kTileSteps) {
      auto half = group.tile(at + 4 * w);
      half.advance_to_end();
      tile.special[g] = tile.special[g] || Elements::special(half.steps);
#pragma GCC unroll 8
      for (int i = 0; i < kTileSteps; ++i)
        Simd::store(tile.words + ((w + i) * kPair + g) * kLanes, half.steps[i]);
    }
  }

  /// Of a group that is not whole, or of the last words of its rows.
  template <class Elements>
  void stage_part(CodeTile& tile, int g, std::int64_t at, int count) const {
    Simd::V lane[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      lane[i] = Simd::zero();
      if (i < tile.keys[g])
        lane[i] = Simd::load_first(
            reinterpret_cast<const float*>(tile.rows[g].row(i, call.k.token) + at), count);
    }
    tile.special[g] = Elements::special(lane);
    Simd::transpose(lane);
    for (int i = 0; i < kLanes; ++i) Simd::store(tile.words + (i * kPair + g) * kLanes, lane[i]);
  }

  template <class Elements, bool kByChannel>
  void score_code_rows(const CodeTile& tile, float* scores) const {
    bool special = false;
    for (int g = 0; g < kPair; ++g) special = special || tile.special[g];
    if constexpr (Turned::kKeys > 0) {
      if (const Turned turned{few}; turned.wanted()) {
        if (special)
          score_dims<Elements, kByChannel, true, kRowsShare, true>(tile, 0, scores);
        else
          score_dims<Elements, kByChannel, false, kRowsShare, true>(tile, 0, scores);
        return turned.add(kPair, tile.begin, tile.end, scores);
      }
    }
    by_rows<kRowsShare>(few.row_count, [&](auto n, int r) {
      if (special)
        score_dims<Elements, kByChannel, true, n, false>(tile, r, scores + r * kPhase);
      else
        score_dims<Elements, kByChannel, false, n, false>(tile, r, scores + r * kPhase);
    });
  }

  /// Adds the tile's dims to the scores of kR rows from first_row on; dim 0 begins them. With
  /// kLeaves they are left as turned keys.
  template <class Elements, bool kByChannel, bool kSpecial, int kR, bool kLeaves>
  POLYHEAD_INLINE void score_dims(const CodeTile& tile, int first_row, float* scores) const {
    Simd::V sum[kR][kPair], scale[kPair];
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 2
      for (int g = 0; g < kPair; ++g) {
        sum[r][g] = tile.begin == 0 ? Simd::zero() : Simd::load(scores + r * kPhase + g * kLanes);
      }
    }
    [[maybe_unused]] float* const turned = few.memory.turned;
    const float* q = few.q_of(first_row, tile.begin);
    const float* channel = kByChannel ? tile.rows[0].low.scales : nullptr;
    const auto add_dim = [&](std::int64_t d, auto shift, const float* word) POLYHEAD_LAMBDA {
      Simd::V value[kPair];
#pragma GCC unroll 2
      for (int g = 0; g < kPair; ++g) {
        value[g] = Elements::template lane<shift, kSpecial>(Simd::load_int(word + g * kLanes));
        if constexpr (kByChannel)
          value[g] = Simd::mul(value[g], Simd::broadcast_at(channel + d * call.k.scales.block));
        else if constexpr (Elements::kScaled)
          value[g] = Simd::mul(value[g], scale[g]);
        if constexpr (kLeaves) Simd::store(turned + d * Turned::kKeys + g * kLanes, value[g]);
      }
#pragma GCC unroll 8
      for (int r = 0; r < kR; ++r) {
        const Simd::V x = Simd::broadcast_at(q + (d - tile.begin) * kTogether + r);
#pragma GCC unroll 2
        for (int g = 0; g < kPair; ++g) sum[r][g] = Simd::fma(value[g], x, sum[r][g]);
      }
    };
    // Four dims of a word, in order; `shift` is where the first one's code begins.
    const auto add_word = [&](std::int64_t d, auto shift, const float* word) POLYHEAD_LAMBDA {
      constexpr int kFirst = shift;
      if (d < tile.end) add_dim(d, std::integral_constant<int, kFirst>{}, word);
      if (d + 1 < tile.end) add_dim(d + 1, std::integral_constant<int, kFirst + 8>{}, word);
      if (d + 2 < tile.end) add_dim(d + 2, std::integral_constant<int, kFirst + 16>{}, word);
      if (d + 3 < tile.end) add_dim(d + 3, std::integral_constant<int, kFirst + 24>{}, word);
    };
    constexpr int kWords = Elements::kNibbles ? 4 : 8;  // of a block of 32 dims
    const float* word = tile.words;
    for (std::int64_t d = tile.begin; d < tile.end; d += 32, word += kWords * kPair * kLanes) {
      if constexpr (Elements::kScaled && !kByChannel) {
#pragma GCC unroll 2
        for (int g = 0; g < kPair; ++g)
          scale[g] = few.scales_of(tile.rows[g], tile.keys[g], d / 32);
      }
      for (int w = 0; w < kWords; ++w)
        add_word(d + 4 * w, std::integral_constant<int, 0>{}, word + w * kPair * kLanes);
      if constexpr (Elements::kNibbles) {
        for (int w = 0; w < kWords; ++w)
          add_word(d + 16 + 4 * w, std::integral_constant<int, 4>{}, word + w * kPair * kLanes);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 2
      for (int g = 0; g < kPair; ++g) Simd::store(scores + r * kPhase + g * kLanes, sum[r][g]);
    }
  }
};
