// From scores to weights, a row at a time: modifiers, the rows' references, exponentials and their
// sums. Lanes are keys. Included inside an ISA namespace after modify.hpp and decode_rows.hpp.

template <class Path>
struct DecodeWeights {
  using Few = FewRows<Path>;
  Few& few;
  const AttendCall& call = few.call;
  const Sequence& sequence = few.sequence;
  static constexpr std::int64_t kPhase = Few::kPhase;
  static constexpr int kRowsMost = Few::kRowsMost;

  /// Of block b of a phase: modifiers, the rows' new references, and the weights in place of the
  /// scores.
  void block(std::int64_t first, int b) {
    const int keys = few.keys_of(first);
    if (few.rules.modified) {
      for (int r = 0; r < few.row_count; ++r) modify(scores_of(r, b), r, b, first, keys);
    }
    move_references(b, keys);
    const int vectors = (few.row_count + kLanes - 1) / kLanes;
    with_exponent(exponent_for(few.rules, few.memory.split->max, vectors),
                  [&](auto form) POLYHEAD_LAMBDA { exponentiate<form>(b, keys); });
    if (!few.late_totals()) sum_weights(b, keys);
  }

  /// What block b does to the rows' totals, where that waits for its values: all of it but the sums
  /// that are made beside them.
  void add_late_totals(std::int64_t first, int b) {
    if (few.rescaled[b]) scale_totals(b);
    if (!few.totals_beside_values(b)) sum_weights(b, few.keys_of(first));
  }

  /// At the end of a split: weights that are not rounded have one total.
  void join_totals() {
    typename Few::RowState& state = *few.memory.split;
    std::memcpy(state.exact_total, state.total, sizeof state.total);
  }

 private:
  float* scores_of(int r, int b) const { return few.memory.scores + r * kPhase + b * kKeyBlock; }

  /// Whether row r sees all of a block that has as many keys as a block can have.
  bool sees_all(int r, int b) const { return few.words[b][r] == ~std::uint64_t{0}; }

  Simd::M visible(std::uint64_t word, int key) const {
    alignas(64) std::int32_t bit[kLanes];
    for (int i = 0; i < kLanes; ++i) bit[i] = static_cast<std::int32_t>(word >> (key + i) & 1);
    return Simd::test(Simd::load_int(bit), Simd::broadcast_int(1));
  }

  struct Largest {
    POLYHEAD_INLINE static Simd::V of(Simd::V a, Simd::V b) { return Simd::max(a, b); }
  };

  /// The largest of row r's scores that it sees, by lane.
  POLYHEAD_INLINE Simd::V largest_of(int r, int b, int keys) const {
    const float* s = scores_of(r, b);
    Simd::V most = Simd::broadcast(-kInfinity);
    if (sees_all(r, b)) {
#pragma GCC unroll 4
      for (int key = 0; key < kKeyBlock; key += kLanes) most = Simd::max(most, Simd::load(s + key));
      return most;
    }
    for (int key = 0; key < keys; key += kLanes)
      most = Simd::max(most, Simd::select(visible(few.words[b][r], key), Simd::load(s + key),
                                          Simd::broadcast(-kInfinity)));
    return most;
  }

  /// Moves the references of rows that a block exceeds by far. Lanes are rows; what is in those of
  /// no row does not matter.
  void move_references(int b, int keys) {
    typename Few::RowState& state = *few.memory.split;
    few.rescaled[b] = false;
    for (int first = 0; first < few.row_count; first += kLanes) {
      Simd::V block_max;
      at_least<kLanes>(few.row_count - first, [&](auto n) POLYHEAD_LAMBDA {
        constexpr int kRows = n;
        Simd::V most[kRows];
        for (int i = 0; i < kRows; ++i) {
          const int r = first + i;
          most[i] = r < few.row_count ? largest_of(r, b, keys) : Simd::broadcast(-kInfinity);
        }
        block_max = across<Largest>(most);
      });
      const Rescale step = rescale(Simd::load(state.max + first), block_max,
                                   Simd::load(state.total + first), few.rules);
      Simd::store(few.factor[b] + first, step.factor);
      if (!step.needed) continue;
      few.rescaled[b] = true;
      Simd::store(state.max + first, step.max);
    }
    if (!few.late_totals() && few.rescaled[b]) scale_totals(b);
  }

  void scale_totals(int b) {
    typename Few::RowState& state = *few.memory.split;
    for (int first = 0; first < few.row_count; first += kLanes) {
      const Simd::V factor = Simd::load(few.factor[b] + first);
      for (float* total : {state.total, state.exact_total})
        Simd::store(total + first, Simd::mul(Simd::load(total + first), factor));
    }
  }

  void sum_weights(int b, int keys) {
    typename Few::RowState& state = *few.memory.split;
    const bool exact = call.lse.data != nullptr;
    by_rows<8>(few.row_count, [&](auto n, int r) {
      Path::template sum_weights<n>(scores_of(r, b), kPhase, keys, state.total + r,
                                    state.exact_total + r, exact);
    });
  }

  void modify(float* s, int r, int b, std::int64_t block, int keys) {
    const ScoreSpec& spec = call.score;
    const SoftCap cap{spec.soft_cap, spec.soft_cap != 0.0f ? 1.0f / spec.soft_cap : 0.0f};
    alignas(64) float bias[kKeyBlock + kLanes] = {};
    if (spec.bias.data) {
      const std::int64_t row = bias_row(call, sequence.batch, few.head[r], few.query[r]);
      widen_row(bias, spec.bias.data + row + block * spec.bias.key, spec.bias.type, spec.bias.key,
                keys);
    }
    const Simd::V from = Simd::broadcast(static_cast<float>(few.position[r] - block));
    for (int key = 0; key < keys; key += kLanes) {
      Simd::V x = Simd::load(s + key);
      if (few.rules.score_factor != 1.0f || spec.soft_cap != 0.0f)
        x = Simd::mul(x, Simd::broadcast(few.rules.score_factor));
      if (spec.soft_cap != 0.0f) x = cap(x);
      if (spec.bias.data) x = biased(x, Simd::load(bias + key));
      if (spec.alibi) {
        alignas(64) float at[kLanes];
        for (int i = 0; i < kLanes; ++i) at[i] = static_cast<float>(key + i);
        x = alibi(x, Simd::broadcast(few.slope[r]), from, Simd::load(at));
      }
      Simd::store(s + key, x);
    }
    if (!spec.may_hide()) return;
    for (int key = 0; key < keys; ++key) {
      if (s[key] == -kInfinity) few.words[b][r] &= ~(std::uint64_t{1} << key), few.full[b] = false;
    }
  }

  template <Exponent kForm>
  void exponentiate(int b, int keys) {
    const Simd::V unit = Simd::broadcast(few.rules.unit);
    for (int r = 0; r < few.row_count; ++r) {
      float* s = scores_of(r, b);
      const Simd::V base = exponent_base<kForm>(Simd::broadcast(few.memory.split->max[r]), unit);
      const auto weight = [&](int key) POLYHEAD_LAMBDA {
        Simd::store(s + key, Simd::exp2(exponent_of<kForm>(Simd::load(s + key), base, unit)));
      };
      if (sees_all(r, b)) {
#pragma GCC unroll 4
        for (int key = 0; key < kKeyBlock; key += kLanes) weight(key);
        continue;
      }
      for (int key = 0; key < keys; key += kLanes) {
        weight(key);
        Simd::store(s + key,
                    Simd::select(visible(few.words[b][r], key), Simd::load(s + key), Simd::zero()));
      }
    }
  }
};
