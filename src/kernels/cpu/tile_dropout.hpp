// Which weights of a tile dropout keeps: dropout_words() of dropout.hpp for a vector of lanes,
// whose four words are four keys'. Included inside an ISA namespace after tile.hpp.

class TileDropout {
 public:
  /// Bits of 32-bit lanes: all of a weight's that is kept, none of one that is dropped.
  typedef std::int32_t Kept __attribute__((vector_size(kLanes * 4)));

  TileDropout(const AttendCall& call, const Lanes& lanes, std::int64_t batch)
      : seed_(call.score.seed),
        // As dropout_keeps(): its number of 24 bits is below the probability up to this one.
        most_dropped_(
            static_cast<std::int32_t>(std::ceil(static_cast<double>(call.score.dropout) * 0x1p24)) -
            1) {
    const Integers& ids = call.score.sequence_ids;
    const std::int64_t id = ids.given() ? ids[batch] : batch;
    id_ = lower(id);
    for (int i = 0; i < kTile; ++i) {
      q_pos_[i] = lower(lanes.q_pos[i]);
      head_[i] = lower(lanes.head[i]);
      key1_[i] = lower(static_cast<std::int64_t>(seed_ >> 32)) ^ upper(lanes.q_pos[i]) ^ upper(id);
    }
  }

  /// Calls f(key, v, kept) for the keys [begin, end) of a block and the vectors [first, last);
  /// `begin` is a multiple of 4.
  template <class F>
  POLYHEAD_INLINE void each(std::int64_t block, int begin, int end, int first, int last,
                            const F& f) const {
    for (int key = begin; key < end; key += 4) {
      for (int v = first; v < last; ++v) {
        Kept kept[4];
        draw((block + key) / 4, v, kept);
        for (int j = 0; j < std::min(4, end - key); ++j) f(key + j, v, kept[j]);
      }
    }
  }

 private:
  /// Of the keys 4 * quad .. 4 * quad + 3 those that vector v keeps.
  POLYHEAD_INLINE void draw(std::int64_t quad, int v, Kept (&kept)[4]) const {
    Simd::I c0 = Simd::broadcast_int(lower(quad)), c1 = Simd::load_int(q_pos_ + v * kLanes);
    Simd::I c2 = Simd::load_int(head_ + v * kLanes), c3 = Simd::broadcast_int(id_);
    std::uint32_t key0 =
        static_cast<std::uint32_t>(seed_ ^ (static_cast<std::uint64_t>(quad) >> 32));
    Simd::I key1 = Simd::load_int(key1_ + v * kLanes);
    for (int round = 0; round < 10; ++round) {
      const Simd::Product by0 = Simd::multiply_words(c0, kernels::kPhiloxMultiplier0);
      const Simd::Product by1 = Simd::multiply_words(c2, kernels::kPhiloxMultiplier1);
      c0 = by1.high ^ c1 ^ Simd::broadcast_int(static_cast<std::int32_t>(key0));
      c1 = by1.low;
      c2 = by0.high ^ c3 ^ key1;
      c3 = by0.low;
      key0 += kernels::kPhiloxWeyl0;
      key1 = Simd::add_int(key1,
                           Simd::broadcast_int(static_cast<std::int32_t>(kernels::kPhiloxWeyl1)));
    }
    kept[0] = kept_of(c0), kept[1] = kept_of(c1), kept[2] = kept_of(c2), kept[3] = kept_of(c3);
  }

  static std::int32_t lower(std::int64_t x) { return static_cast<std::int32_t>(x); }
  static std::int32_t upper(std::int64_t x) { return static_cast<std::int32_t>(x >> 32); }

  POLYHEAD_INLINE Kept kept_of(Simd::I words) const {
    const Simd::I number =
        Simd::and_int(Simd::template shift_right<8>(words), Simd::broadcast_int(0xffffff));
    return reinterpret_cast<Kept>(number) > most_dropped_;
  }

  const std::uint64_t seed_;
  const std::int32_t most_dropped_;
  std::int32_t id_;
  alignas(64) std::int32_t q_pos_[kTile], head_[kTile], key1_[kTile];
};
