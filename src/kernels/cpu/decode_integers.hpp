// Decoding on the integer path: scores and sums of few rows against codes, in integers. Included
// inside an ISA namespace after decode_tiles.hpp, decode_sums.hpp and path_integer.hpp.

/// Scores. A lane holds words of four dims of its key (eight of int4), of which two at a time
/// become pairs of int16. A block of 32 dims is an integer sum, which joins the score times the
/// key's scale.
template <class Path>
struct DecodeIntegerScores {
  using Few = FewRows<Path>;
  const Few& few;
  const AttendCall& call = few.call;
  static constexpr int kTogether = Few::kTogether;
  static constexpr std::int64_t kPhase = Few::kPhase;
  using KeyGroup = typename Few::KeyGroup;
  using GroupRows = typename Few::GroupRows;

  /// As DecodeScores::groups.
  template <class Elements>
  void groups(std::int64_t first, int keys, float* scores) const {
    constexpr int kUnit = Unit<Elements>::kWords;
    const std::int64_t words = words_of<Elements>(), tiled = words / kUnit * kUnit;
    const int whole = tiled > 0 ? keys / kLanes : 0;
    by_rows<kRowsShare>(few.rows_computed, [&](auto n, int r) {
      float* const to = scores + r * kPhase;
      if (whole > 0) score_groups<Elements, n>(first, whole, tiled, r, to);
      for (int at = tiled == words ? whole * kLanes : 0; at < keys; at += kLanes)
        score_rest<Elements, n>(first + at, std::min(kLanes, keys - at),
                                at < whole * kLanes ? tiled : 0, r, to + at);
    });
  }

 private:
  template <class Elements>
  std::int64_t words_of() const {
    return Elements::byte_of(Path::padded(call.head_dim)) / 4;
  }

  /// Whole tiles that are whole blocks of dims.
  template <class Elements>
  struct Unit {
    static constexpr int kBlockWords = Elements::kNibbles ? 4 : 8;
    static constexpr int kWords = std::max(kTileSteps, kBlockWords);
    static constexpr int kTiles = kWords / kTileSteps, kBlocks = kWords / kBlockWords;
  };
  /// Sums of integers of one block. Where a dot is one instruction, two chains keep it busy beside
  /// few rows: exact sums may be any number of chains.
  template <int kR>
  static constexpr int kChains = Path::Dot::kFused && kR <= 4 ? 2 : 1;

  /// The first `words` words of whole groups, whose tiles are made as DecodeScores' are.
  template <class Elements, int kR>
  void score_groups(std::int64_t first, int groups, std::int64_t words, int first_row,
                    float* scores) const {
    using Group = TiledGroup<Few, Elements>;
    const bool fetches = first_row == 0, ends = words == words_of<Elements>();
    KeyGroup rows = few.group_at(first, kLanes);
    Group group(few, rows, fetches);
    auto tile = group.tile(0);
    tile.advance_to_end();
    for (int g = 1; g <= groups; ++g, scores += kLanes) {
      const GroupRows here = rows;
      if (fetches) few.fetch_scales(rows.low_ahead.scales, call.k.scales, call.head_dim, kLanes);
      Simd::V score[kR];
#pragma GCC unroll 8
      for (int r = 0; r < kR; ++r) score[r] = Simd::zero();
      for (std::int64_t w = 0; w < words; w += Unit<Elements>::kWords) {
        const auto following = [&](int t) POLYHEAD_LAMBDA {
          const std::int64_t at = w + (t + 1) * kTileSteps;
          const bool last = at == words;  // of the block's last group: once more, for nothing
          if (last && g < groups) {
            rows = few.group_at(first + g * kLanes, kLanes);
            group = {few, rows, fetches};
          }
          return group.tile(last ? 0 : 4 * at);
        };
        score_unit<Elements>(here, kLanes, tile, following, w, first_row, score);
      }
      store(score, ends, first_row, scores);
    }
  }

  /// Words from `done` on of up to a group's keys.
  template <class Elements, int kR>
  void score_rest(std::int64_t first, int keys, std::int64_t done, int first_row,
                  float* scores) const {
    const KeyGroup rows = few.group_at(first, keys);
    const std::int64_t words = words_of<Elements>();
    Simd::V score[kR];
    for (int r = 0; r < kR; ++r)
      score[r] = done == 0 ? Simd::zero() : Simd::load(scores + r * kPhase);
    constexpr int kUnit = Unit<Elements>::kWords;
    for (std::int64_t w = done; w < words; w += kUnit) {
      const int n = static_cast<int>(std::min<std::int64_t>(kUnit, words - w));
      Simd::V lane[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        lane[i] = Simd::zero();
        if (i < keys)
          lane[i] = Simd::load_first(
              reinterpret_cast<const float*>(rows.row(i, call.k.token) + 4 * w), n);
      }
      Simd::transpose(lane);
      const auto tile_of = [&](int t) POLYHEAD_LAMBDA {
        LoneTile tile;
        for (int i = 0; i < kTileSteps; ++i) tile.steps[i] = lane[t * kTileSteps + i];
        return tile;
      };
      LoneTile tile = tile_of(0);
      const auto following = [&](int t) POLYHEAD_LAMBDA {
        return tile_of(t + 1 < Unit<Elements>::kTiles ? t + 1 : t);
      };
      score_unit<Elements>(rows, keys, tile, following, w, first_row, score);
    }
    store(score, true, first_row, scores);
  }

  struct LoneTile {
    Simd::V steps[kTileSteps];
    void advance(int) {}
  };

  /// Adds the blocks of dims of a unit, whose first word is `word`, to the scores of kR rows.
  /// `tile` is its first one; while a tile is multiplied the next one is made, which `following`
  /// begins.
  template <class Elements, class Tile, class Following, int kR>
  POLYHEAD_INLINE void score_unit(const GroupRows& rows, int keys, Tile& tile,
                                  const Following& following, std::int64_t word, int first_row,
                                  Simd::V (&score)[kR]) const {
    constexpr int kTiles = Unit<Elements>::kTiles, kBlocks = Unit<Elements>::kBlocks;
    constexpr int kAdds = Path::kBlockSteps / kTiles;  // of a block in one tile
    constexpr int kParts = kTileSteps / kBlocks;       // of the next tile, beside each block
    const std::int64_t first_dim = word * Path::kBlock / Unit<Elements>::kBlockWords;
    Simd::V sum[kR][kChains<kR>];
#pragma GCC unroll 2
    for (int t = 0; t < kTiles; ++t) {
      Tile next = following(t);
#pragma GCC unroll 2
      for (int b = 0; b < kBlocks; ++b) {
        const std::int64_t d = first_dim + b * Path::kBlock;
        if (b > 0 && d >= call.head_dim) break;
        const float* const q = few.q_of(first_row, Path::steps(d));
        if (t == 0) clear(sum);
#pragma GCC unroll 16
        for (int i = 0; i < kAdds; ++i) {
          if (i % (kAdds / kParts) == 0) next.advance(b * kParts + i / (kAdds / kParts));
          const Simd::V pairs = pairs_of<Elements>(tile.steps, b, i);
#pragma GCC unroll 8
          for (int r = 0; r < kR; ++r) {
            const Simd::V x = Simd::broadcast_at(q + (t * kAdds + i) * kTogether + r);
            Simd::V& to = sum[r][i % kChains<kR>];
            to = Path::Dot::dot(pairs, x, to);
          }
          Simd::settle(sum[0][0]);
        }
        if (t + 1 == kTiles) join(score, sum, scale_of(rows, keys, d / Path::kBlock));
      }
      tile = next;
    }
  }

  template <int kR, int kC>
  POLYHEAD_INLINE static void clear(Simd::V (&sum)[kR][kC]) {
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 2
      for (int c = 0; c < kC; ++c) sum[r][c] = Simd::zero();
    }
  }

  /// A block's sums of integers join the scores.
  template <int kR, int kC>
  POLYHEAD_INLINE static void join(Simd::V (&score)[kR], const Simd::V (&sum)[kR][kC],
                                   Simd::V scale) {
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
      Simd::I whole = Simd::bits(sum[r][0]);
      if constexpr (kC == 2) whole = Simd::add_int(whole, Simd::bits(sum[r][1]));
      score[r] = Simd::fma(Simd::to_float(whole), scale, score[r]);
    }
  }

  /// The i-th pairs of a tile's block b: of int4 the low halves of all words come first.
  template <class Elements>
  POLYHEAD_INLINE static Simd::V pairs_of(const Simd::V (&steps)[kTileSteps], int b, int i) {
    constexpr int kWords = Unit<Elements>::kBlockWords;
    const Simd::I word = Simd::bits(steps[b * kWords + i / 2 % kWords]);
    if (i >= 2 * kWords)
      return i % 2 != 0 ? Path::template every_other<Elements, true, true>(word)
                        : Path::template every_other<Elements, true, false>(word);
    return i % 2 != 0 ? Path::template every_other<Elements, false, true>(word)
                      : Path::template every_other<Elements, false, false>(word);
  }

  /// Scales by channel are a part of the query.
  POLYHEAD_INLINE Simd::V scale_of(const GroupRows& rows, int keys, std::int64_t block) const {
    if (call.k.scales.shift == 0) return Simd::broadcast(1.0f);
    return few.scales_of(rows, keys, block);
  }

  /// Where a score ends, times what the integers of its row of q mean.
  template <int kR>
  POLYHEAD_INLINE void store(const Simd::V (&score)[kR], bool ends, int first_row,
                             float* to) const {
    const float* const back = few.q_of(first_row, Path::steps(call.head_dim));
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r)
      Simd::store(to + r * kPhase, ends ? Simd::mul(score[r], Simd::broadcast(back[r])) : score[r]);
  }
};

/// The weighted sum of a block's values. Lanes are dims; a block of 32 of them is an integer sum
/// over all keys of the block, whatever pages they lie on.
template <class Path>
struct DecodeIntegerSums : DecodeSums<Path> {
  using Sums = DecodeSums<Path>;
  using Few = FewRows<Path>;
  using Run = typename Sums::Run;
  using Runs = typename Sums::Runs;
  using Sums::call, Sums::few;
  static constexpr int kPairs = kKeyBlock / 2;
  static constexpr int kBlocksTogether = 4;  // of dims, rounded before the first is summed
  static constexpr int kRowsTogether = 8;    // no more than lanes

  template <class Elements>
  void block(std::int64_t first, int b) {
    const int keys = few.keys_of(first);
    this->rescale(b);
    const Runs runs = this->runs_of(first, b, 0, keys);
    const auto blocks = static_cast<int>(Path::blocks(call.value_dim));
    for (int at = 0; at < blocks; at += kBlocksTogether) {
      Rounded rounded;
      const int count = std::min(kBlocksTogether, blocks - at);
      round(rounded, runs, at, count);
      for (int i = 0; i < count; ++i) {
        by_rows<kRowsShare>(few.row_count, [&](auto n, int r) {
          for (int part = 0; part < Int16::kParts; ++part)
            sum_part<Elements, n>(runs, rounded.at(i, r), at + i, part);
        });
      }
    }
  }

 private:
  /// Weights times the scales of some blocks of dims, of all rows.
  struct Rounded {
    alignas(64) float pairs[kBlocksTogether][Few::kRowsMost][kPairs];
    // What their integers are made with and mean, [block][row] of kRowsTogether rows.
    static constexpr int kMeanings = kBlocksTogether * kRowsTogether + kLanes;
    float to_int[Few::kRowsMost / kRowsTogether][kMeanings];
    float back[Few::kRowsMost / kRowsTogether][kMeanings];
    int stride[Few::kRowsMost / kRowsTogether];

    int meaning(int block, int r) const {
      return block * stride[r / kRowsTogether] + r % kRowsTogether;
    }
    struct Rows {
      int first;
      const float *pairs, *back;
    };
    Rows at(int block, int r) const {
      return {r, pairs[block][r], back[r / kRowsTogether] + meaning(block, r)};
    }
  };

  const float* weights_of(int r, int b) const {
    return few.memory.scores + r * Few::kPhase + b * kKeyBlock;
  }

  /// The scales of some blocks of dims, a key each: where they lie, or copied.
  struct BlockScales {
    const float* of[kBlocksTogether];
    alignas(64) float copied[kBlocksTogether][kKeyBlock];
  };

  void read_scales(BlockScales& to, const Runs& runs, int at, int count) const {
    const Scales& step = call.v.scales;
    const Run& whole = runs.each[0];
    for (int i = 0; i < count; ++i) {
      to.of[i] = whole.rows.scales + (at + i) * step.block;
      if (step.token == 1 && whole.keys == kKeyBlock) continue;
      copy_scales(to.copied[i], runs, at + i);
      to.of[i] = to.copied[i];
    }
  }

  /// The scales of a block of dims; 0 past the last key.
  void copy_scales(float* to, const Runs& runs, int at) const {
    const Scales& step = call.v.scales;
    int key = 0;
    for (int i = 0; i < runs.count; ++i) {
      const Run& run = runs.each[i];
      const float* from = run.rows.scales + at * step.block;
      key = run.at + run.keys;
      if (step.token == 1)
        std::memcpy(to + run.at, from, static_cast<std::size_t>(run.keys) * 4);
      else
        for (int j = 0; j < run.keys; ++j) to[run.at + j] = from[j * step.token];
    }
    std::fill(to + key, to + kKeyBlock, 0.0f);
  }

  static constexpr int kBlockVectors = kKeyBlock / kLanes;
  using BlockVectors = Simd::V[kBlockVectors];

  POLYHEAD_INLINE static void load(BlockVectors& to, const float* from) {
#pragma GCC unroll 8
    for (int i = 0; i < kBlockVectors; ++i) to[i] = Simd::load(from + i * kLanes);
  }

  /// Blocks [at, at + count) of dims.
  void round(Rounded& to, const Runs& runs, int at, int count) const {
    BlockScales scales;
    read_scales(scales, runs, at, count);
    Simd::I most = Simd::broadcast_int(0);
    for (int i = 0; i < count; ++i) {
      for (int key = 0; key < kKeyBlock; key += kLanes)
        most = Int16::larger(most, Simd::bits(Simd::load(scales.of[i] + key)));
    }
    if (Int16::all_numbers(most))
      round_as<true>(to, runs.b, scales, count);
    else
      round_as<false>(to, runs.b, scales, count);
  }

  /// What is found for the first rows and blocks takes its time while others are looked at.
  template <bool kPlain>
  void round_as(Rounded& to, int b, const BlockScales& scales, int count) const {
    for (int r = 0; r < few.row_count; r += kRowsTogether) {
      at_least<kRowsTogether>(few.row_count - r, [&](auto rows) {
        constexpr int kMost = std::min(kBlocksTogether / 2, kLanes / rows);
        to.stride[r / kRowsTogether] = rows;
        by_rows<kMost>(count, [&](auto blocks, int i) {
          find_meanings<kPlain, rows, blocks>(to, b, r, i, scales);
        });
      });
    }
    for (int i = 0; i < count; ++i) {
      BlockVectors scale;
      load(scale, scales.of[i]);
      for (int r = 0; r < few.row_count; ++r)
        round_row<kPlain>(to.pairs[i][r], weights_of(r, b), scale,
                          Simd::broadcast_at(to.to_int[r / kRowsTogether] + to.meaning(i, r)));
    }
  }

  struct LargerBits {
    POLYHEAD_INLINE static Simd::V of(Simd::V a, Simd::V b) {
      return Simd::from_bits(Int16::larger(Simd::bits(a), Simd::bits(b)));
    }
  };

  /// Of kN rows from first_row on, the last one again where there are fewer, and kB blocks: for all
  /// at once, a lane each.
  template <bool kPlain, int kN, int kB>
  void find_meanings(Rounded& to, int b, int first_row, int block,
                     const BlockScales& scales) const {
    const int last = few.row_count - 1;
    Simd::V most[kB * kN];
#pragma GCC unroll 4
    for (int i = 0; i < kB; ++i) {
      BlockVectors scale;
      load(scale, scales.of[block + i]);
#pragma GCC unroll 8
      for (int r = 0; r < kN; ++r)
        most[i * kN + r] = largest_of<kPlain>(weights_of(std::min(first_row + r, last), b), scale);
    }
    const Fit fit = fit_of(Simd::bits(across<LargerBits>(most)));
    Simd::store(to.to_int[first_row / kRowsTogether] + block * kN, fit.to_int);
    Simd::store(to.back[first_row / kRowsTogether] + block * kN, fit.back);
  }

  /// The bits of a row's largest weights times scales, by lane.
  template <bool kPlain>
  POLYHEAD_INLINE static Simd::V largest_of(const float* weights, const BlockVectors& scale) {
    Simd::I most = Simd::broadcast_int(0);
#pragma GCC unroll 8
    for (int i = 0; i < kBlockVectors; ++i)
      most = Int16::larger(most, Path::template size_of<kPlain>(Path::template scaled<kPlain>(
                                     Simd::load(weights + i * kLanes), scale[i])));
    return Simd::from_bits(most);
  }

  template <bool kPlain>
  POLYHEAD_INLINE static void round_row(float* to, const float* weights, const BlockVectors& scale,
                                        Simd::V to_int) {
    Simd::I whole[kBlockVectors];
#pragma GCC unroll 8
    for (int i = 0; i < kBlockVectors; ++i)
      whole[i] = whole_numbers(
          Path::template scaled<kPlain>(Simd::load(weights + i * kLanes), scale[i]), to_int);
#pragma GCC unroll 4
    for (int i = 0; i < kBlockVectors; i += 2)
      Simd::store(to + i * kLanes / 2, Int16::join(whole[i], whole[i + 1]));
  }

  /// The sums of one part of block `at` of dims.
  template <class Elements, int kR>
  void sum_part(const Runs& runs, const typename Rounded::Rows& weights, std::int64_t at,
                int part) const {
    constexpr std::int64_t kColumn = Path::template kPartBytes<Elements>;
    // Pairs of keys between lines fetched.
    constexpr int kEvery = std::max(2, ColumnAhead<kColumn>::kRowsALine / 2);
    const Operand& x = call.v;
    const std::int64_t column = (at * Int16::kParts + part) * kColumn;
    Simd::V acc[kR][2];
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) acc[r][0] = acc[r][1] = Simd::zero();
    for (int i = 0; i < runs.count; ++i) {
      const Run& run = runs.each[i];
      typename Sums::template ValuesAhead<kColumn> ahead(run, x.token, few.dense_values, column,
                                                         weights.first == 0);
      const float* p = weights.pairs + run.at / 2;
      const std::byte* row = run.rows.data + column;
      const auto add_pair = [&](int s, const std::byte* odd) POLYHEAD_LAMBDA {
        Simd::V value[2];
        Int16::value_pairs<Elements::kNibbles>(value, row + 2 * s * x.token, odd);
#pragma GCC unroll 8
        for (int r = 0; r < kR; ++r) {
          const Simd::V weight = Simd::broadcast_at(p + r * kPairs + s);
          acc[r][0] = Path::Dot::dot(value[0], weight, acc[r][0]);
          acc[r][1] = Path::Dot::dot(value[1], weight, acc[r][1]);
        }
      };
      const int pairs = run.keys / 2;
      int s = 0;
      for (; s + kEvery <= pairs; s += kEvery) {
        ahead.template fetch_next<2 * kEvery>();
#pragma GCC unroll 4
        for (int next = s; next < s + kEvery; ++next)
          add_pair(next, row + (2 * next + 1) * x.token);
      }
      for (; s < pairs; ++s) add_pair(s, row + (2 * s + 1) * x.token);
      if (run.keys % 2 != 0) add_pair(s, Path::no_row());
    }
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) Int16::in_order<Elements::kNibbles>(acc[r]);
    add_sums<Elements, kR>(acc, weights, at * Path::kBlock, part);
  }

  template <class Elements, int kR>
  POLYHEAD_INLINE void add_sums(const Simd::V (&acc)[kR][2], const typename Rounded::Rows& weights,
                                std::int64_t d, int part) const {
    const std::int64_t row_floats = Few::pad(call.value_dim);
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const std::int64_t at = d + Path::template dim_of<Elements>(part, i);
      if (at >= row_floats) continue;
      float* to = few.memory.added + weights.first * row_floats + at;
#pragma GCC unroll 8
      for (int r = 0; r < kR; ++r, to = forget(to + row_floats))
        Simd::store(to, Simd::fma(Simd::to_float(Simd::bits(acc[r][i])),
                                  Simd::broadcast(weights.back[r]), Simd::load(to)));
    }
  }
};
