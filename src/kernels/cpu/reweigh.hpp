// Weights rebuilt from q, k and the LSE, a tile and a block of keys at a time. One head, lanes are
// queries; scores, modifiers and masks are prefill's own. Included inside an ISA namespace after
// prefill.hpp.

/// Of a tile's rows, those that are dealt with aside after every kRows keys of a block.
inline constexpr int kRowsAside = (kTile * Simd::kRows + kKeyBlock - 1) / kKeyBlock;

template <class Path>
struct Reweigher {
  using Engine = Prefill<Path>;
  static constexpr std::int64_t kLine = 64;
  static constexpr float kLargeLse = 64.0f;  // a float32 of this size is off by 4e-6 at most

  static std::int64_t scratch_bytes(const AttendCall& call) { return Engine::scratch_bytes(call); }

  const AttendCall& call;
  const WorkItem item;
  Engine engine;
  const std::int64_t head;
  const Aside aside;  // done beside the scores, after every kRows keys
  int tile = 0;       // of the engine's, the one in hand
  // What weights are relative to: of a row the exponent is that of its score from `base`, less
  // `shift`, which is 0 but where the LSE is large.
  struct Bases {
    alignas(64) float base[kTile], shift[kTile];
    bool aside = false;  // whether any lane is shifted, or its base beyond one fma
  };
  Bases bases[Engine::kMaxTiles];
  float hidden = 0.0f;           // weight of a hidden pair; -0 tells it from one that came out as 0
  float* information = nullptr;  // where given: -sum w log2 w of each lane, key 0 left out
  Stream queries{};              // rows to fetch
  std::int64_t queries_left = 0;

  Reweigher(const AttendCall& c, std::int64_t batch, std::int64_t q_head, std::byte* scratch,
            Aside a = {})
      : call(c),
        item{batch, q_head / c.group(), 0, kTile, 0, 0},
        engine(c, item, scratch),
        head(q_head),
        aside(a) {}

  Lanes& lanes() { return engine.memory.lanes[tile]; }

  /// Queries first .. first + rows become the tile.
  void place(std::int64_t first, int rows) {
    place_lanes(first, rows);
    find_bases();
  }

  /// The same but for the bases, which find_bases() or a copy of what that found gives.
  void place_lanes(std::int64_t first, int rows) {
    lanes().place(call, engine.sequence, head, 1, first, rows);
    engine.pack_q(tile);
  }

  void find_bases() {
    Bases& to = bases[tile];
    std::memset(to.shift, 0, sizeof to.shift);
    to.aside = false;
    bool coarse[kTile], any = false;
    for (int i = 0; i < kTile; ++i) {
      float lse;
      std::memcpy(&lse, row_address(call.lse, engine.sequence, lanes().query[i], head), 4);
      const float finite = lse == -kInfinity ? 0.0f : lse;
      to.base[i] = static_cast<float>(static_cast<double>(finite) / engine.rules.natural);
      coarse[i] = std::fabs(finite) > kLargeLse;
      any = any || coarse[i];
    }
    if (any) refine_bases(coarse);
  }

  /// Rows whose LSE is so large that its rounding would show in their weights have their largest
  /// score and the sum of what is relative to it found anew, as the forward pass did.
  void refine_bases(const bool (&coarse)[kTile]) {
    Bases& to = bases[tile];
    alignas(64) float most[kTile];
    for (float& m : most) m = -kInfinity;
    each_block([&](std::int64_t block, int keys)
                   POLYHEAD_LAMBDA { prepare_scores(block, keys, load_keys(block, keys), most); });
    for (int i = 0; i < kTile; ++i) {
      if (coarse[i]) to.base[i] = most[i];
    }
    float sum[kTile] = {};
    each_block([&](std::int64_t block, int keys) POLYHEAD_LAMBDA {
      weigh_whole(block, keys, load_keys(block, keys));
      for (int key = 0; key < keys; ++key) {
        for (int i = 0; i < kTile; ++i) sum[i] += engine.memory.scores[key * kTile + i];
      }
    });
    for (int i = 0; i < kTile; ++i) {
      if (!coarse[i]) continue;
      to.shift[i] =
          static_cast<float>(std::log2(static_cast<double>(sum[i]) + sink_beside(most[i])));
      to.aside = to.aside || to.shift[i] != 0.0f;
    }
    to.aside = to.aside || exponent_for(engine.rules, to.base, kVectors) == Exponent::guarded;
  }

  /// The sink's part of a sum of weights that are relative to the score `most`.
  double sink_beside(float most) const {
    if (call.score.sink == nullptr) return 0.0;
    const double logit = static_cast<double>(call.score.sink[head * call.score.sink_stride]);
    return std::exp(logit - static_cast<double>(most) * engine.rules.natural);
  }

  /// Calls f(block, keys) for the blocks of which the tile sees something.
  template <class F>
  void each_block(const F& f) {
    const std::int64_t kv_len = engine.sequence.kv_len;
    for (std::int64_t block = 0; block < kv_len; block += kKeyBlock) {
      const int keys = static_cast<int>(std::min<std::int64_t>(kKeyBlock, kv_len - block));
      if (see(block, keys).kind != Sight::nothing) f(block, keys);
    }
  }

  Sight& see(std::int64_t block, int keys) {
    look(*engine.memory.sight, call, engine.sequence, lanes(), block, keys);
    return *engine.memory.sight;
  }

  KeyBlock load_keys(std::int64_t block, int keys) {
    KeyBlock rows;
    Path::load_keys(rows, call, engine.sequence, item.kv_head, block, keys, engine.memory);
    return rows;
  }

  /// The weights of the tile for one block, [key][lane] in the engine's scores; false where nothing
  /// is visible.
  bool weigh(std::int64_t block, int keys) {
    Sight& sight = see(block, keys);
    if (sight.kind == Sight::nothing) return false;
    weigh_seen(block, keys, load_keys(block, keys));
    return true;
  }

  /// Scores of what was seen, [key][lane]; `most`, where given, becomes each lane's largest.
  void prepare_scores(std::int64_t block, int keys, KeyBlock rows, float* most = nullptr) {
    engine.prepare_scores(tile, *engine.memory.sight, rows, block, keys, most, aside);
  }

  /// Weights of what was seen.
  void weigh_seen(std::int64_t block, int keys, KeyBlock rows) {
    weigh_whole(block, keys, rows);
    if (call.score.dropout > 0.0f) drop(engine.memory.scores, block, keys);
  }

  /// The same before any is dropped.
  void weigh_whole(std::int64_t block, int keys, KeyBlock rows) {
    Sight& sight = *engine.memory.sight;
    prepare_scores(block, keys, rows);
    if (sight.kind == Sight::some) engine.clear_unseen(sight, keys, hidden);
    const Exponent exponent = exponent_for(engine.rules, bases[tile].base, kVectors);
    with_exponent(exponent, [&](auto form) POLYHEAD_LAMBDA {
      for (int i = 0; i < sight.segments; ++i) exponentiate<form>(sight, sight.segment[i], block);
    });
  }

  template <Exponent kForm>
  void exponentiate(const Sight& sight, const Segment& part, std::int64_t block) {
    if (information != nullptr)
      exponentiate_part<kForm, true>(sight, part, block);
    else
      exponentiate_part<kForm, false>(sight, part, block);
  }

  template <Exponent kForm, bool kInformation>
  void exponentiate_part(const Sight& sight, const Segment& part, std::int64_t block) {
    const Simd::V unit = Simd::broadcast(engine.rules.unit), nothing = Simd::broadcast(hidden);
    // 2^-300 is 0 in float32, and 0 times a finite exponent is 0.
    const Simd::V least = Simd::broadcast(-300.0f);
    for (int v = part.first; v < part.last; ++v) {
      const Simd::V from = exponent_base<kForm>(Simd::load(bases[tile].base + v * kLanes), unit);
      const Simd::V shift = Simd::load(bases[tile].shift + v * kLanes);
      Simd::V spent = kInformation ? Simd::load(information + v * kLanes) : Simd::zero();
      for (int key = part.key_begin; key < part.key_end; ++key) {
        float* at = engine.memory.scores + key * kTile + v * kLanes;
        Simd::V t = Simd::sub(exponent_of<kForm>(Simd::load(at), from, unit), shift);
        Simd::V p = Simd::exp2(t);
        if (!part.full) {
          const Simd::M seen = Simd::load_mask(sight.masks[key * kVectors + v]);
          p = Simd::select(seen, p, nothing);
          if constexpr (kInformation) t = Simd::select(seen, t, Simd::zero());
        }
        Simd::store(at, p);
        if constexpr (kInformation) {
          if (block + key > 0) spent = Simd::fnma(p, Simd::max(least, t), spent);
        }
      }
      if constexpr (kInformation) Simd::store(information + v * kLanes, spent);
    }
  }

  void drop(float* weights, std::int64_t block, int keys) {
    const TileDropout dropout(call, lanes(), item.batch);
    const double share = 1.0 - static_cast<double>(call.score.dropout);
    const Simd::I factor = Simd::bits(Simd::broadcast(static_cast<float>(1.0 / share)));
    const auto scale = [&](int key, int v, const TileDropout::Kept& kept) POLYHEAD_LAMBDA {
      float* const at = weights + key * kTile + v * kLanes;
      const Simd::I factors = Simd::and_int(factor, reinterpret_cast<Simd::I>(kept));
      Simd::store(at, Simd::mul(Simd::load(at), reinterpret_cast<Simd::V>(factors)));
    };
    dropout.each(block, 0, keys, 0, lanes().vectors, scale);
  }

  // --- rows of q that come next ---

  void plan_queries(const std::byte* first, std::int64_t stride, std::int64_t count) {
    queries = {first, stride};
    queries_left = count;
  }

  void fetch_queries(int count) {
    const std::int64_t row = row_bytes(call.q, call.head_dim);
    for (; count > 0 && queries_left > 0; --count, --queries_left, queries.at += queries.stride) {
      for (std::int64_t line = 0; line < row; line += kLine)
        __builtin_prefetch(queries.at + line, 0, 2);
    }
  }
};
