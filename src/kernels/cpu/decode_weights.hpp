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
    const std::uint64_t whole = ~std::uint64_t{0} >> (kKeyBlock - keys);
    const auto all = [&](int r) { return few.words[b][r] == whole && keys % kLanes == 0; };
    alignas(64) float most[kRowsMost][kLanes];
    for (int r = 0; r < few.row_count; ++r) {
      float* s = few.memory.scores + r * kPhase + b * kKeyBlock;
      if (few.rules.modified) modify(s, r, b, first, keys);
      Simd::V row_most = Simd::broadcast(-kInfinity);
      for (int key = 0; key < keys; key += kLanes) {
        Simd::V x = Simd::load(s + key);
        if (!all(r))
          x = Simd::select(visible(few.words[b][r], key), x, Simd::broadcast(-kInfinity));
        row_most = Simd::max(row_most, x);
      }
      Simd::store(most[r], row_most);
    }
    move_references(most, b);
    for (int r = 0; r < few.row_count; ++r) {
      float* s = few.memory.scores + r * kPhase + b * kKeyBlock;
      switch (few.rules.exponent) {
        case Exponent::folded:
          exponentiate<Exponent::folded>(s, r, b, keys, all(r));
          break;
        case Exponent::fused:
          exponentiate<Exponent::fused>(s, r, b, keys, all(r));
          break;
        case Exponent::natural:
          exponentiate<Exponent::natural>(s, r, b, keys, all(r));
          break;
      }
    }
    sum_weights(b, keys);
  }

 private:
  Simd::M visible(std::uint64_t word, int key) const {
    alignas(64) std::int32_t bit[kLanes];
    for (int i = 0; i < kLanes; ++i) bit[i] = static_cast<std::int32_t>(word >> (key + i) & 1);
    return Simd::test(Simd::load_int(bit), Simd::broadcast_int(1));
  }

  /// Moves the references of rows that a block exceeds by far. Lanes are rows; `most` holds each
  /// row's largest scores, a lane each.
  void move_references(float (&most)[kRowsMost][kLanes], int b) {
    typename Few::RowState& state = *few.memory.split;
    few.rescaled[b] = false;
    for (int first = 0; first < few.row_count; first += kLanes) {
      Simd::V lane[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        lane[i] =
            first + i < few.row_count ? Simd::load(most[first + i]) : Simd::broadcast(-kInfinity);
      }
      Simd::transpose(lane);
      Simd::V block_max = lane[0];
      for (int i = 1; i < kLanes; ++i) block_max = Simd::max(block_max, lane[i]);
      const Rescale step = rescale(Simd::load(state.max + first), block_max, few.rules);
      Simd::store(few.factor[b] + first, step.factor);
      if (!step.needed) continue;
      few.rescaled[b] = true;
      Simd::store(state.max + first, step.max);
      for (float* total : {state.total, state.exact_total})
        Simd::store(total + first, Simd::mul(Simd::load(total + first), step.factor));
    }
  }

  void sum_weights(int b, int keys) {
    typename Few::RowState& state = *few.memory.split;
    const bool exact = call.lse.data != nullptr;
    by_rows<8>(few.row_count, [&](auto n, int r) {
      Path::template sum_weights<n>(few.memory.scores + r * kPhase + b * kKeyBlock, kPhase, keys,
                                    state.total + r, state.exact_total + r, exact);
    });
  }

  void modify(float* s, int r, int b, std::int64_t block, int keys) {
    const ScoreSpec& spec = call.score;
    const SoftCap cap{spec.soft_cap, spec.soft_cap != 0.0f ? 1.0f / spec.soft_cap : 0.0f};
    alignas(64) float bias[kKeyBlock + kLanes] = {};
    if (spec.bias.data) {
      widen_row(bias,
                spec.bias.data + sequence.batch * spec.bias.batch + few.head[r] * spec.bias.head +
                    few.query[r] * spec.bias.query + block * spec.bias.key,
                spec.bias.type, spec.bias.key, keys);
    }
    const Simd::V from = Simd::broadcast(static_cast<float>(few.position[r] - block));
    for (int key = 0; key < keys; key += kLanes) {
      Simd::V x = Simd::load(s + key);
      if (few.rules.score_factor != 1.0f || spec.soft_cap != 0.0f)
        x = Simd::mul(x, Simd::broadcast(few.rules.score_factor));
      if (spec.soft_cap != 0.0f) x = cap(x);
      if (spec.bias.data) x = Simd::add(x, Simd::load(bias + key));
      if (spec.alibi) {
        alignas(64) float at[kLanes];
        for (int i = 0; i < kLanes; ++i) at[i] = static_cast<float>(key + i);
        x = alibi(x, Simd::broadcast(few.slope[r]), from, Simd::load(at));
      }
      Simd::store(s + key, x);
    }
    // A score of -inf hides its pair.
    for (int key = 0; key < keys; ++key) {
      if (s[key] == -kInfinity) few.words[b][r] &= ~(std::uint64_t{1} << key), few.full[b] = false;
    }
  }

  template <Exponent kForm>
  void exponentiate(float* s, int r, int b, int keys, bool all) {
    const Simd::V unit = Simd::broadcast(few.rules.unit);
    const Simd::V base = exponent_base<kForm>(Simd::broadcast(few.memory.split->max[r]), unit);
    for (int key = 0; key < keys; key += kLanes) {
      Simd::V p = Simd::exp2(exponent_of<kForm>(Simd::load(s + key), base, unit));
      if (!all) p = Simd::select(visible(few.words[b][r], key), p, Simd::zero());
      Simd::store(s + key, p);
    }
  }
};
