// The softmax of one tile, down its lanes: block maxima, the running reference, weights and their
// sums, and the folding of one split's state into another. Included inside an ISA namespace after
// softmax.hpp and tile.hpp.

/// What a caller wants of each row beside its output: each costs a little more.
enum class Detail { output, lse, statistics };

/// Of each row of a tile the largest visible score in a block, and the first key of the block that
/// has it, kKeyBlock before any is found.
struct BlockBest {
  alignas(64) float max[kTile];
  alignas(64) std::int32_t key[kTile];

  BlockBest() {
    for (int i = 0; i < kTile; ++i) max[i] = -kInfinity, key[i] = kKeyBlock;
  }
};

template <class Path>
struct TileSoftmax {
  const Rules& rules;
  const Detail detail;
  const std::int64_t value_dim;
  float* scores;  // [key][kTile]: scores, then weights

  void plain_max(const Segment& part, float* block_max) {
    for (int v = part.first; v < part.last; ++v) {
      Simd::V m = Simd::load(block_max + v * kLanes);
      for (int key = part.key_begin; key < part.key_end; ++key) {
        m = Simd::max(m, Simd::load(scores + key * kTile + v * kLanes));
      }
      Simd::store(block_max + v * kLanes, m);
    }
  }

  /// Whether any score of the segment is -inf.
  bool hides_any(const Segment& part) {
    Simd::V least = Simd::zero();
    for (int key = part.key_begin; key < part.key_end; ++key) {
      for (int v = part.first; v < part.last; ++v) {
        // In this order a NaN leaves what was found.
        least = Simd::min(Simd::load(scores + key * kTile + v * kLanes), least);
      }
    }
    return Simd::any(Simd::equal(least, Simd::broadcast(-kInfinity)));
  }

  /// Of modified scores; also stores the masks of the segment: visible by word, and not hidden by
  /// a score of -inf, or by a bias of it where one was added to the products ([key][kTile]).
  void masked_max(Sight& sight, const Segment& part, const float* bias, float* block_max) {
    const Simd::V hidden = Simd::broadcast(-kInfinity);
    for (int v = part.first; v < part.last; ++v) {
      Simd::V m = Simd::load(block_max + v * kLanes);
      for (int key = part.key_begin; key < part.key_end; ++key) {
        Simd::V s = Simd::load(scores + key * kTile + v * kLanes);
        if (bias) {
          const Simd::V added = Simd::load(bias + key * kTile + v * kLanes);
          s = Simd::select(Simd::equal(added, hidden), hidden, s);
        }
        const Simd::I words = Simd::load_int(sight.words[key / 32] + v * kLanes);
        const Simd::I bit = Simd::broadcast_int(kBits.data()[key % 32]);
        const Simd::M visible = Simd::mask_and(Simd::test(words, bit), Simd::not_equal(s, hidden));
        sight.masks[key * kVectors + v] = Simd::store_mask(visible);
        m = Simd::max(m, Simd::select(visible, s, hidden));
      }
      if (part.key_end % 2 != 0) {  // a pair's missing second key
        sight.masks[part.key_end * kVectors + v] = Simd::store_mask(Simd::greater(hidden, hidden));
      }
      Simd::store(block_max + v * kLanes, m);
    }
  }

  /// Moves each row's reference maximum where the block asks for it, and rescales its sums.
  void move_reference(State& state, const float* block_max, int vectors, bool first) {
    for (int v = 0; v < vectors; ++v) {
      const int at = v * kLanes;
      const Simd::V old = Simd::load(state.max + at);
      const Rescale step =
          rescale(old, Simd::load(block_max + at), Simd::load(state.total + at), rules);
      if (!step.needed) continue;
      Simd::store(state.max + at, step.max);
      if (first) continue;
      const Simd::V total = Simd::load(state.exact_total + at);
      if (detail == Detail::statistics) {
        // With nothing summed yet, the old reference is -inf and its change must not become a NaN.
        const Simd::V change = Simd::select(Simd::equal(total, Simd::zero()), Simd::zero(),
                                            distance_of(old, step.max));
        Simd::store(
            state.spread + at,
            Simd::mul(step.factor, Simd::fma(change, total, Simd::load(state.spread + at))));
      }
      Simd::store(state.total + at, Simd::mul(Simd::load(state.total + at), step.factor));
      Simd::store(state.exact_total + at, Simd::mul(total, step.factor));
      if constexpr (Path::kMatrix) {
        if (state.rows > 0) {
          scale_rows(state, step.factor);
          continue;
        }
      }
      for (std::int64_t d = 0; d < value_dim; ++d) {
        float* o = state.o + d * kTile + at;
        Simd::store(o, Simd::mul(Simd::load(o), step.factor));
      }
    }
  }

  /// Of sums that lie by rows.
  void scale_rows(State& state, Simd::V factors) {
    alignas(64) float factor[kLanes];
    Simd::store(factor, factors);
    for (int row = 0; row < state.rows; ++row) {
      float* const o = state.o + row * value_dim;
      for (std::int64_t d = 0; d < value_dim; d += kLanes)
        Simd::store(o + d, Simd::mul(Simd::load(o + d), Simd::broadcast(factor[row])));
    }
  }

  /// The largest visible score of each row and its key, where the block's exceed what came before.
  static void track_best(State& state, const BlockBest& block, int vectors, std::int64_t first) {
    for (int v = 0; v < vectors; ++v) {
      const int at = v * kLanes;
      const Simd::V most = Simd::load(block.max + at), best = Simd::load(state.best + at);
      const Simd::M better = Simd::greater(most, best);
      const Simd::I key = Simd::add_int(Simd::load_int(block.key + at),
                                        Simd::broadcast_int(static_cast<std::int32_t>(first)));
      Simd::store(state.best + at, Simd::select(better, most, best));
      Simd::store_int(state.best_key + at,
                      Simd::select(better, key, Simd::load_int(state.best_key + at)));
    }
  }

  /// Weights in place of the scores, and their sums; for statistics also the keys of the block's
  /// largest scores.
  void exponentiate(const Sight& sight, State& state, BlockBest& best) {
    with_exponent(exponent_for(rules, state.max, kVectors), [&](auto form) POLYHEAD_LAMBDA {
      for (int i = 0; i < sight.segments; ++i)
        exponentiate_as<form>(sight, sight.segment[i], state, best);
    });
  }

  template <Exponent kForm>
  void exponentiate_as(const Sight& sight, const Segment& part, State& state, BlockBest& best) {
    switch (detail) {
      case Detail::output:
        return exponentiate_segment<kForm, Detail::output>(sight, part, state, best);
      case Detail::lse:
        return exponentiate_segment<kForm, Detail::lse>(sight, part, state, best);
      case Detail::statistics:
        return exponentiate_segment<kForm, Detail::statistics>(sight, part, state, best);
    }
  }
  template <Exponent kForm, Detail kDetail>
  void exponentiate_segment(const Sight& sight, const Segment& part, State& state,
                            BlockBest& best) {
    if (part.full)
      exponentiate_part<kForm, false, kDetail>(sight, part, state, best);
    else
      exponentiate_part<kForm, true, kDetail>(sight, part, state, best);
  }

  /// p = 2^(score - max) for a segment, summed in key order; P replaces the scores (pairs of keys
  /// for bfloat16).
  template <Exponent kForm, bool kMasked, Detail kDetail>
  void exponentiate_part(const Sight& sight, const Segment& part, State& state, BlockBest& best) {
    using V = Simd::V;
    constexpr bool kStatistics = kDetail == Detail::statistics;
    const V unit = Simd::broadcast(rules.unit);
    for (int v = part.first; v < part.last; ++v) {
      const int at = v * kLanes;
      const V base = exponent_base<kForm>(Simd::load(state.max + at), unit);
      V total = Simd::load(state.total + at), exact = Simd::load(state.exact_total + at);
      V spread = Simd::load(state.spread + at);
      const V reference = reference_of(Simd::load(state.max + at));
      const V largest = Simd::load(best.max + at);
      Simd::I best_key = Simd::load_int(best.key + at);
      const auto finish = [&](int key, V s, V p) __attribute__((always_inline)) {
        [[maybe_unused]] const Simd::M seen =
            kMasked ? Simd::load_mask(sight.masks[key * kVectors + v]) : Simd::M{};
        if constexpr (kMasked) p = Simd::select(seen, p, Simd::zero());
        if constexpr (kStatistics) {
          V term = distance_of(s, reference);
          Simd::M same = Simd::equal(s, largest);
          if constexpr (kMasked) {
            term = Simd::select(seen, term, Simd::zero());
            same = Simd::mask_and(same, seen);
          }
          spread = Simd::fma(p, term, spread);
          best_key = Simd::min_where(same, best_key, Simd::broadcast_int(kNumbers.data()[key]));
        }
        return p;
      };
      const auto weight = [&]<int kN>(int key, V(&p)[kN]) __attribute__((always_inline)) {
        V s[kN];
#pragma GCC unroll 4
        for (int i = 0; i < kN; ++i) {
          s[i] = Simd::load(scores + (key + i) * kTile + at);
          p[i] = exponent_of<kForm>(s[i], base, unit);
        }
        Simd::exp2(p);
#pragma GCC unroll 4
        for (int i = 0; i < kN; ++i) p[i] = finish(key + i, s[i], p[i]);
      };
      Path::template weights<kDetail != Detail::output>(weight, scores + at, part.key_begin,
                                                        part.key_end, total, exact);
      Simd::store(state.total + at, total);
      Simd::store(state.exact_total + at, exact);
      if constexpr (kStatistics) {
        Simd::store(state.spread + at, spread);
        Simd::store_int(best.key + at, best_key);
      }
    }
  }

  /// running = running + added.
  static void fold_state(const Rules& rules, std::int64_t value_dim, State& running,
                         const State& added) {
    for (int v = 0; v < kVectors; ++v) {
      const int at = v * kLanes;
      // What has seen nothing has no accumulators: they may hold anything.
      if (!Simd::any(Simd::not_equal(Simd::load(added.total + at), Simd::zero()))) continue;
      const Simd::V old = Simd::load(running.max + at), fresh = Simd::load(added.max + at);
      const Fold f = fold(old, fresh, rules);
      const auto join = [&](float* to, const float* from) {
        Simd::store(to, Simd::fma(Simd::load(to), f.running, Simd::mul(Simd::load(from), f.added)));
      };
      const auto moved = [&](const float* spread, const float* total, Simd::V from) {
        const Simd::V sum = Simd::load(total);
        const Simd::V change =
            Simd::select(Simd::equal(sum, Simd::zero()), Simd::zero(), distance_of(from, f.max));
        return Simd::fma(change, sum, Simd::load(spread));
      };
      const Simd::V spread =
          Simd::fma(moved(running.spread + at, running.exact_total + at, old), f.running,
                    Simd::mul(moved(added.spread + at, added.exact_total + at, fresh), f.added));
      Simd::store(running.spread + at, spread);
      const Simd::M better =
          Simd::greater(Simd::load(added.best + at), Simd::load(running.best + at));
      Simd::store(running.best + at,
                  Simd::select(better, Simd::load(added.best + at), Simd::load(running.best + at)));
      Simd::store_int(running.best_key + at,
                      Simd::select(better, Simd::load_int(added.best_key + at),
                                   Simd::load_int(running.best_key + at)));
      const bool empty = !Simd::any(Simd::not_equal(Simd::load(running.total + at), Simd::zero()));
      join(running.total + at, added.total + at);
      join(running.exact_total + at, added.exact_total + at);
      for (std::int64_t d = 0; d < value_dim; ++d) {
        float* to = running.o + d * kTile + at;
        // 0 * 0 + o * factor is what the general case would give.
        if (empty)
          Simd::store(to, Simd::mul(Simd::load(added.o + d * kTile + at), f.added));
        else
          join(to, added.o + d * kTile + at);
      }
      Simd::store(running.max + at, f.max);
    }
  }
};
