// Score modifiers: their scalar meaning is in include/polyhead/modifiers.h; here each is a few
// vector operations that prefill (lanes are queries) and decoding (lanes are keys) share. Included
// inside an ISA namespace after tile.hpp and soft_cap.hpp.

/// score - slope * |distance|, distance = q_pos - kv_pos counted from the key block's first key.
POLYHEAD_INLINE Simd::V alibi(Simd::V score, Simd::V slope, Simd::V from_block,
                              Simd::V key_in_block) {
  return Simd::fnma(slope, Simd::abs(Simd::sub(from_block, key_in_block)), score);
}

/// score + bias; a bias of -inf hides the pair, whatever its score is.
POLYHEAD_INLINE Simd::V biased(Simd::V score, Simd::V bias) {
  const Simd::V hidden = Simd::broadcast(-kInfinity);
  return Simd::select(Simd::equal(bias, hidden), hidden, Simd::add(score, bias));
}

/// A tile's bias for keys [block, block + keys): to[key * kTile + lane].
inline void bias_tile(float* to, const PairTable& bias, const Lanes& lanes, std::int64_t block,
                      int keys) {
  alignas(64) float wide[kLanes * kKeyBlock];
  const bool direct = bias.type == ElementType::float32 && bias.key == 4 && keys % kLanes == 0;
  for (int v = 0; v < lanes.vectors; ++v) {
    const float* rows[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      const std::byte* from = bias.data + lanes.bias_row[v * kLanes + i] + block * bias.key;
      rows[i] = direct ? reinterpret_cast<const float*>(from) : wide + i * kKeyBlock;
      if (direct) continue;
      widen_row(wide + i * kKeyBlock, from, bias.type, bias.key, keys);
      for (int j = keys; j < ((keys + kLanes - 1) & -kLanes); ++j) wide[i * kKeyBlock + j] = 0.0f;
    }
    transpose_in(to + v * kLanes, rows, keys);
  }
}

/// Applies every modifier to the scores of a segment, in order; scores come and go in natural
/// units.
struct Modifier {
  const AttendCall& call;
  const Sequence& sequence;
  float factor;  // what is left to multiply before the first modifier: 1, or the scale for bfloat16

  void apply(float* scores, float* scratch, const Lanes& lanes, const Segment& part,
             std::int64_t block, int keys) const {
    const ScoreSpec& spec = call.score;
    const int v0 = part.first, v1 = part.last;
    if (factor != 1.0f || spec.soft_cap != 0.0f) scale_and_cap(scores, part);
    if (spec.bias.data) {
      for (int key = part.key_begin; key < part.key_end; ++key) {
        for (int v = v0; v < v1; ++v) {
          float* at = scores + key * kTile + v * kLanes;
          Simd::store(at, biased(Simd::load(at), Simd::load(scratch + key * kTile + v * kLanes)));
        }
      }
    }
    if (spec.alibi) {
      alignas(64) float from_block[kTile];
      for (int i = 0; i < kTile; ++i) from_block[i] = static_cast<float>(lanes.q_pos[i] - block);
      for (int v = v0; v < v1; ++v) {
        const Simd::V slope = Simd::load(lanes.slope + v * kLanes),
                      from = Simd::load(from_block + v * kLanes);
        for (int key = part.key_begin; key < part.key_end; ++key) {
          float* at = scores + key * kTile + v * kLanes;
          Simd::store(at,
                      alibi(Simd::load(at), slope, from, Simd::broadcast(static_cast<float>(key))));
        }
      }
    }
    for (int i = 0; i < spec.custom_count; ++i) {
      const ScoreTile tile{scores, keys,       kTile,       sequence.batch,
                           block,  lanes.head, lanes.query, lanes.q_pos};
      spec.custom[i]->apply(tile);
    }
  }

 private:
  void scale_and_cap(float* scores, const Segment& part) const {
    const Simd::V scale = Simd::broadcast(factor);
    const bool capped = call.score.soft_cap != 0.0f;
    const SoftCap cap{call.score.soft_cap, capped ? 1.0f / call.score.soft_cap : 0.0f};
    for (int key = part.key_begin; key < part.key_end; ++key) {
      for (int v = part.first; v < part.last; ++v) {
        float* at = scores + key * kTile + v * kLanes;
        Simd::V s = Simd::mul(Simd::load(at), scale);
        if (capped) s = cap(s);
        Simd::store(at, s);
      }
    }
  }
};
