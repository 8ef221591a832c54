// Decoding: few rows against many keys, bound by the bytes of K and V. Keys are lanes for the
// scores (groups of keys transposed in registers), dims are lanes for the weighted sum; every byte
// is read once for all rows of a KV head. Each operation is the one that prefill does for the same
// score, weight or sum, in the same order: the bits agree. Included inside an ISA namespace after
// prefill.hpp and the other decode_*.hpp.

/// In decode_integers.hpp, where there is an integer path.
template <class Path>
struct DecodeIntegerScores;
template <class Path>
struct DecodeIntegerSums;

template <class Path>
struct Decode {
  using Few = FewRows<Path>;
  using RowState = typename Few::RowState;
  static constexpr int kRowsMost = Few::kRowsMost;
  static constexpr std::int64_t kPhase = Few::kPhase;

  static std::int64_t rows(const AttendCall& call) {
    const bool codes = element_bytes(call.k.type) < 2;
    const bool dense =
        call.k.type == call.v.type && (codes || (call.k.dim == element_bytes(call.k.type) &&
                                                 call.v.dim == element_bytes(call.v.type)));
    if (!dense) return 0;
    // Beside 16 registers so many rows fill the lanes of prefill well enough, where nothing is
    // converted (docs/kernel-notes.md).
    const bool fill_lanes = kLanes == 8 && call.k.type == ElementType::float32;
    return fill_lanes ? Few::kRowsFillLanes - 1 : kRowsMost;
  }
  static std::int64_t scratch_bytes(const AttendCall& call) {
    return Few::lay_out(call, nullptr, nullptr);
  }
  static std::int64_t partial_bytes(const AttendCall& call) {
    return Few::align(static_cast<std::int64_t>(sizeof(RowState))) +
           kRowsMost * Few::pad(call.value_dim) * 4;
  }

  using CodeScores =
      std::conditional_t<Path::kInteger, DecodeIntegerScores<Path>, DecodeCodes<Path>>;
  using Sums = std::conditional_t<Path::kInteger, DecodeIntegerSums<Path>, DecodeSums<Path>>;

  Few few;
  const AttendCall& call = few.call;
  DecodeScores<Path> scores{few};
  DecodeLanes<Path> lanes{few};
  CodeScores codes{few};
  DecodeWeights<Path> weights{few};
  Sums sums{few};

  Decode(const AttendCall& c, const WorkItem& i, std::byte* base) : few(c, i, base) {}

  static void attend(const AttendCall& call, const WorkItem& item, std::byte* scratch,
                     std::byte* partial) {
    Decode self(call, item, scratch);
    self.few.memory.whole->reset();
    self.run();
    if (partial)
      self.save(partial);
    else
      self.finish_rows(*self.few.memory.whole, self.few.memory.running);
  }

  static void proceed(const AttendCall& call, const WorkItem& item, std::byte* scratch,
                      std::byte* running) {
    Decode self(call, item, scratch);
    self.few.memory.whole = &partial_state(running);
    self.few.memory.running = partial_sums(running);
    self.run();
  }

  void run() {
    few.pack_q();
    Path::visit_elements(call, [&](auto elements) { run_splits<decltype(elements)>(); });
  }

  template <class Elements>
  void run_splits() {
    std::int64_t first = std::numeric_limits<std::int64_t>::max(), last = 0;
    for (int r = 0; r < few.row_count; ++r)
      first = std::min(first, few.begin[r]), last = std::max(last, few.end[r]);
    const std::int64_t window = first;
    if (call.mask.kept > 0) first = 0;
    first = std::max(first, few.item.first_split * kSplitKeys);
    last = std::min(last, few.item.end_split * kSplitKeys);
    for (std::int64_t split = first / kSplitKeys; split * kSplitKeys < last; ++split) {
      if (between(call.mask, window, split)) continue;
      bool touched = false;
      const std::int64_t stop = std::min(last, (split + 1) * kSplitKeys);
      std::int64_t at = std::max(first / kKeyBlock * kKeyBlock, split * kSplitKeys);
      for (; at < stop; at += few.phase_keys)
        phase<Elements>(at, std::min(stop, at + few.phase_keys), touched);
      if (!touched) continue;
      if (few.late_totals()) weights.join_totals();
      fold_rows(call, few.rules, few.row_count, *few.memory.whole, few.memory.running,
                *few.memory.split, few.memory.added);
    }
  }

  template <class Elements>
  void score_block(std::int64_t block, int b) {
    const int keys = few.keys_of(block);
    float* to = few.memory.scores + b * kKeyBlock;
    if constexpr (kFillLanes && Elements::kSteps) {
      if (few.rows_are_lanes) {
        for (int at = 0; at < keys; at += kLanes)
          lanes.group(block + at, std::min(kLanes, keys - at), to + at);
        return;
      }
    }
    if constexpr (Elements::kCodes)
      codes.template groups<Elements>(block, keys, to);
    else
      scores.template groups<Elements>(block, keys, to);
  }

  template <class Elements>
  void phase(std::int64_t from, std::int64_t to, bool& touched) {
    int blocks = 0;
    if (few.values_in_keys) few.fetch_block(to);
    for (std::int64_t block = from; block < to; block += kKeyBlock, ++blocks) {
      few.seen[blocks] = few.look_block(block, blocks);
      if (!few.seen[blocks]) continue;
      if (!touched) {
        few.memory.split->reset();
        std::memset(few.memory.added, 0,
                    static_cast<std::size_t>(few.rows_computed * Few::pad(call.value_dim)) * 4);
        touched = true;
      }
      score_block<Elements>(block, blocks);
      weights.block(block, blocks);
    }
    for (int b = 0; b < blocks; ++b) {
      if (!few.seen[b]) continue;
      const std::int64_t block = from + b * kKeyBlock;
      if (few.late_totals()) weights.add_late_totals(block, b);
      sums.template block<Elements>(block, b);
    }
  }

  // --- splits and the end ---

  static void fold_rows(const AttendCall& call, const Rules& rules, int rows, RowState& whole,
                        float* running, const RowState& split, const float* added) {
    alignas(64) float keep[kRowsMost], take[kRowsMost];
    float total[kRowsMost];
    for (int r = 0; r < kRowsMost; ++r) total[r] = whole.total[r];
    for (int r = 0; r < kRowsMost; r += kLanes) {
      const Fold f = fold(Simd::load(whole.max + r), Simd::load(split.max + r), rules);
      Simd::store(keep + r, f.running);
      Simd::store(take + r, f.added);
      const auto join = [&](float* to, const float* from) {
        Simd::store(to + r, Simd::fma(Simd::load(to + r), f.running,
                                      Simd::mul(Simd::load(from + r), f.added)));
      };
      join(whole.total, split.total);
      join(whole.exact_total, split.exact_total);
      Simd::store(whole.max + r, f.max);
    }
    const std::int64_t row_floats = Few::pad(call.value_dim);
    for (int r = 0; r < rows; ++r) {
      if (split.total[r] == 0.0f) {  // nothing seen: as prefill, leave what there is
        if (total[r] == 0.0f)
          std::memset(running + r * row_floats, 0, static_cast<std::size_t>(row_floats) * 4);
        continue;
      }
      const Simd::V a = Simd::broadcast(keep[r]), b = Simd::broadcast(take[r]);
      for (std::int64_t d = 0; d < row_floats; d += kLanes) {
        float* to = running + r * row_floats + d;
        const Simd::V more = Simd::mul(Simd::load(added + r * row_floats + d), b);
        Simd::store(to, total[r] == 0.0f ? more : Simd::fma(Simd::load(to), a, more));
      }
    }
  }

  void finish_rows(const RowState& state, float* o) {
    const std::int64_t row_floats = Few::pad(call.value_dim);
    for (int r = 0; r < few.row_count; ++r) {
      const RowEnd row = end_row(call, few.rules, few.head[r], state.max[r], state.total[r],
                                 state.exact_total[r], 0.0f, 0.0f);
      write_row_values(call, few.sequence, few.query[r], few.head[r], row, -1);
      float* values = o + r * row_floats;
      const Simd::V f = Simd::broadcast(row.factor);
      for (std::int64_t d = 0; d < row_floats; d += kLanes) {
        Simd::store(values + d, Simd::add(Simd::mul(Simd::load(values + d), f), Simd::zero()));
      }
      if (state.total[r] == 0.0f) std::memset(values, 0, static_cast<std::size_t>(row_floats) * 4);
      std::byte* to =
          few.sequence.out + few.query[r] * call.out.token + few.head[r] * call.out.head;
      narrow_row(to, values, call.out.type, call.out.dim, call.value_dim);
    }
  }

  static RowState& partial_state(std::byte* partial) {
    return *reinterpret_cast<RowState*>(partial);
  }
  static float* partial_sums(std::byte* partial) {
    return reinterpret_cast<float*>(partial +
                                    Few::align(static_cast<std::int64_t>(sizeof(RowState))));
  }

  static PartialRow row(const AttendCall& call, std::byte* partial, std::int64_t row) {
    RowState& state = partial_state(partial);
    return {state.max + row, state.total + row, state.exact_total + row,
            partial_sums(partial) + row * Few::pad(call.value_dim), 1};
  }

  void save(std::byte* partial) {
    partial_state(partial) = *few.memory.whole;
    std::memcpy(partial_sums(partial), few.memory.running,
                static_cast<std::size_t>(few.row_count * Few::pad(call.value_dim)) * 4);
  }

  static void merge(const AttendCall& call, const WorkItem& item, std::byte* running,
                    const std::byte* added) {
    const Rules rules(call, Path::kBfloat16);
    std::byte* from = const_cast<std::byte*>(added);
    fold_rows(call, rules, static_cast<int>(item.rows), partial_state(running),
              partial_sums(running), partial_state(from), partial_sums(from));
  }

  static void finish(const AttendCall& call, const WorkItem& item, std::byte* running,
                     std::byte* scratch) {
    Decode self(call, item, scratch);
    self.finish_rows(partial_state(running), partial_sums(running));
  }
};
