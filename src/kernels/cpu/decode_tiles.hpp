// Tiles of keys on their way into registers. Included inside an ISA namespace after
// decode_rows.hpp.

/// A whole group of keys, tile by tile.
template <class Few, class Elements>
class TiledGroup {
  static constexpr int kRowsApart = kLanes / kTileSteps * 4;  // four vectors of one or two rows
  static constexpr int kPointers = kLanes / kRowsApart;
  using Ahead = typename Few::template KeysAhead<Elements::kTileBytes>;

 public:
  TiledGroup() = default;
  /// Without `fetches`, others have fetched what comes ahead.
  POLYHEAD_INLINE TiledGroup(const Few& few, const typename Few::KeyGroup& group, bool fetches)
      : ahead_(few, group, fetches), token_(few.call.k.token) {
#pragma GCC unroll 2
    for (int i = 0; i < kPointers; ++i) rows_[i] = group.row(i * kRowsApart, token_);
  }

  /// kTileSteps steps of all keys, a vector each. They are read, transposed, and the lines that
  /// come ahead fetched, in kTileSteps parts, between which the arithmetic of another tile stands:
  /// processors do not look far enough ahead to do both at once by themselves
  /// (docs/kernel-notes.md).
  class Tile {
   public:
    POLYHEAD_INLINE void advance(int part) {
      constexpr int kRows = kLanes / kTileSteps;  // whose lines are fetched
#pragma GCC unroll 2
      for (int i = 0; i < kRows; ++i) lines_.fetch(part * kRows + i);
      if (part < kTileSteps / 2) {
        read(2 * part);
        read(2 * part + 1);
      } else {
        Elements::transpose(steps, part - kTileSteps / 2);
      }
    }

    POLYHEAD_INLINE void advance_to_end() {
#pragma GCC unroll 8
      for (int part = 0; part < kTileSteps; ++part) advance(part);
    }

    Simd::V steps[kTileSteps];  // after the last part

   private:
    friend class TiledGroup;
    POLYHEAD_INLINE explicit Tile(const typename Ahead::Lines& lines) : lines_(lines) {}

    POLYHEAD_INLINE void read(int i) {
      if constexpr (Elements::kNarrow) {
        steps[i] = Elements::load_tile(row(0, i), row(1, i));
      } else {
        const std::byte* const low = row(i / 4, i % 4);
        steps[i] = Elements::load_tile(low, low + 4 * token_);
      }
      Simd::settle(steps[i]);
    }

    /// The i-th row after one of those that pointers are kept of.
    POLYHEAD_INLINE const std::byte* row(int pointer, int i) const {
      return forget(rows_[pointer] + i / 2 * 2 * token_) + i % 2 * token_;
    }

    typename Ahead::Lines lines_;
    const std::byte* rows_[kPointers];
    std::int64_t token_;
  };

  /// The tile that begins `column` bytes into the rows.
  POLYHEAD_INLINE Tile tile(std::int64_t column) const {
    Tile tile(ahead_.column(column));
#pragma GCC unroll 2
    for (int i = 0; i < kPointers; ++i) tile.rows_[i] = rows_[i] + column;
    tile.token_ = token_;
    return tile;
  }

 private:
  Ahead ahead_;
  const std::byte* rows_[kPointers];
  std::int64_t token_;
};
