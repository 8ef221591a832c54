// Products with weights that stay quantised: codes become float32 in registers, exactly the values
// that base::dequantise_block gives, and are summed in the order of packed float32, so that the
// results have the same bits. Included inside an ISA namespace after rows.hpp and
// outer_product.hpp.
//
// A panel is a sequence of blocks of the form's 32 or 256 inputs. A block is d (and dmin) of every
// lane as float16, then units of 32 inputs: the codes, and for scaled forms the scales (and lifts)
// of its groups, a byte a lane. Four-bit codes lie eight inputs to a 32-bit word of the lane,
// eight-bit codes lane beside lane, input after input.

inline constexpr int kUnit = 32;                      // inputs
inline constexpr std::int64_t kQuantisedRows = 8;     // up to here codes are converted in registers
inline constexpr std::int64_t kQuantisedLead = 2048;  // bytes fetched ahead

/// A form, known when compiled.
template <int kFormBits, int kFormGroup, bool kFormScaled, bool kFormMinimum, int kFormLowest>
struct Quantised {
  static constexpr int kBits = kFormBits, kGroup = kFormGroup, kLowest = kFormLowest;
  static constexpr bool kScaled = kFormScaled, kMinimum = kFormMinimum;
  static constexpr int kGroups = kUnit / kGroup, kUnits = kScaled ? 8 : 1;
  static constexpr int kHeader = kTile * 2 * (kMinimum ? 2 : 1);
  static constexpr int kCodes = kUnit * kTile * kBits / 8;
  static constexpr int kUnitBytes = kCodes + (kScaled ? kTile * kGroups * (kMinimum ? 2 : 1) : 0);
  static constexpr int kBlockBytes = kHeader + kUnits * kUnitBytes;
};

/// Steps and minima of the current block and group, for kV vectors of lanes.
template <class Q, int kV>
struct GroupSteps {
  Simd::V d[kV], dmin[kV], step[kV], minimum[kV];

  POLYHEAD_INLINE void enter_block(const std::byte* const (&at)[kV]) {
#pragma GCC unroll 6
    for (int v = 0; v < kV; ++v) {
      const auto* const header = reinterpret_cast<const std::uint16_t*>(at[v]);
      d[v] = Simd::load_float16(header);
      if constexpr (Q::kMinimum) dmin[v] = Simd::load_float16(header + kTile);
    }
  }
  /// `scales`: of the unit, lane 0 of each vector.
  POLYHEAD_INLINE void enter_group(const std::byte* const (&scales)[kV], int group) {
#pragma GCC unroll 6
    for (int v = 0; v < kV; ++v) {
      step[v] = d[v];
      if constexpr (Q::kMinimum) minimum[v] = dmin[v];
      if constexpr (Q::kScaled) {
        step[v] = Simd::mul(d[v], Simd::load_signed(scales[v] + group * kTile));
        if constexpr (Q::kMinimum) {
          const Simd::V lift = Simd::load_signed(scales[v] + (Q::kGroups + group) * kTile);
          minimum[v] = Simd::sub(Simd::broadcast(-0.0f), Simd::mul(dmin[v], lift));
        }
      }
    }
  }
  POLYHEAD_INLINE Simd::V weight(int v, Simd::V code) const {
    if constexpr (Q::kMinimum) return Simd::fma(step[v], code, minimum[v]);
    return Simd::mul(step[v], code);
  }
};

/// Where kV vectors of lanes begin in their panels' block headers, code words and scale bytes.
template <int kV>
struct LanePlaces {
  const std::byte* panel[kV];  ///< of each vector
  int lane[kV];                ///< within it
  // What is fetched ahead goes on past a panel's end in the panel that its lanes take next.
  std::int64_t panel_bytes = 0, skipped = 0;
};

/// What comes kQuantisedLead after a unit of the panels of kV vectors. A quarter of a unit is
/// fetched at once: L1 waits for no more lines, and a processor stops at the next
/// (docs/kernel-notes.md).
template <class Q, int kV>
class UnitAhead {
 public:
  POLYHEAD_INLINE UnitAhead(const LanePlaces<kV>& lanes, const std::byte* const (&unit)[kV]) {
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) {
      const int v = p * kVectors;
      at_[p] = unit[v] + kQuantisedLead;
      if (at_[p] >= lanes.panel[v] + lanes.panel_bytes) at_[p] += lanes.skipped;
    }
  }

  POLYHEAD_INLINE void fetch_quarter() {
#pragma GCC unroll 2
    for (const std::byte*& at : at_) {
      fetch_lines<kBytes, kIntoL1>(at);
      at += kBytes;
    }
  }

 private:
  static constexpr int kPanels = kV > kVectors ? kV / kVectors : 1;
  static constexpr int kBytes = (Q::kBlockBytes / Q::kUnits + 255) / 256 * 64;  // whole lines
  const std::byte* at_[kPanels];
};

/// Runs body(input, weights of kV vectors) for every input of blocks [first, end).
template <class Q, int kV, class Body>
POLYHEAD_INLINE void each_input(const LanePlaces<kV>& lanes, std::int64_t first, std::int64_t end,
                                Body& body) {
  const Simd::Nibbles values = Simd::nibbles(Q::kLowest);
  GroupSteps<Q, kV> steps;
  std::int64_t input = 0;
  for (std::int64_t block = first; block < end; ++block) {
    const std::byte *header[kV], *unit[kV];
#pragma GCC unroll 6
    for (int v = 0; v < kV; ++v) {
      unit[v] = lanes.panel[v] + block * Q::kBlockBytes;
      header[v] = unit[v] + lanes.lane[v] * 2;
      unit[v] += Q::kHeader;
    }
    steps.enter_block(header);
    for (int u = 0; u < Q::kUnits; ++u) {
      const std::byte* scales[kV];
#pragma GCC unroll 6
      for (int v = 0; v < kV; ++v) scales[v] = unit[v] + Q::kCodes + lanes.lane[v];
      UnitAhead<Q, kV> ahead(lanes, unit);
      for (int group = 0; group < Q::kGroups; ++group) {
        steps.enter_group(scales, group);
        for (int i = group * Q::kGroup; i < (group + 1) * Q::kGroup; i += 8, input += 8) {
          ahead.fetch_quarter();  // eight inputs are a quarter
          Simd::I words[kV];
          if constexpr (Q::kBits == 4) {
#pragma GCC unroll 6
            for (int v = 0; v < kV; ++v) {
              words[v] = Simd::load_int(unit[v] + (i / 8 * kTile + lanes.lane[v]) * 4);
            }
          }
#pragma GCC unroll 8
          for (int j = 0; j < 8; ++j) {
            Simd::V weight[kV];
#pragma GCC unroll 6
            for (int v = 0; v < kV; ++v) {
              if constexpr (Q::kBits == 4) {
                weight[v] = steps.weight(v, Simd::nibble(values, words[v], j));
              } else {
                weight[v] =
                    steps.weight(v, Simd::load_signed(unit[v] + (i + j) * kTile + lanes.lane[v]));
              }
            }
            body(input + j, weight);
          }
        }
      }
#pragma GCC unroll 6
      for (int v = 0; v < kV; ++v) unit[v] += Q::kUnitBytes;
    }
  }
}

/// acc[row][vector] += x(row, input) * weight.
template <int kR, int kV>
struct MultiplyInput {
  Simd::V acc[kR][kV];
  const std::byte* x;
  std::int64_t x_row;

  POLYHEAD_INLINE void operator()(std::int64_t input, const Simd::V (&weight)[kV]) {
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
      const Simd::V at = Simd::broadcast_at(x + r * x_row + input * 4);
#pragma GCC unroll 6
      for (int v = 0; v < kV; ++v) acc[r][v] = Simd::fma(at, weight[v], acc[r][v]);
    }
  }
};

/// Sums of kR rows and kV vectors of lanes from `vector` on, into to[row * to_row + lane].
template <class Q, int kR, int kV>
inline void quantised_sums(const GemmCall& call, std::int64_t row, std::int64_t panel, int vector,
                           std::int64_t blocks, float* to, std::int64_t to_row) {
  LanePlaces<kV> lanes;
  lanes.panel_bytes = blocks * Q::kBlockBytes;
  lanes.skipped = kV > kVectors ? (kV / kVectors - 1) * lanes.panel_bytes : 0;
  for (int v = 0; v < kV; ++v) {
    const int at = vector + v;
    lanes.panel[v] = call.weights.panels + (panel + at / kVectors) * lanes.panel_bytes;
    lanes.lane[v] = at % kVectors * kLanes;
  }
  MultiplyInput<kR, kV> product;
  product.x = call.x + row * call.x_row;
  product.x_row = call.x_row;
  for (auto& sums : product.acc) {
    for (Simd::V& sum : sums) sum = Simd::zero();
  }
  each_input<Q, kV>(lanes, 0, blocks, product);
  for (int r = 0; r < kR; ++r) {
    for (int v = 0; v < kV; ++v) Simd::store(to + r * to_row + v * kLanes, product.acc[r][v]);
  }
}

/// Bias, rounding and storing of what quantised_sums left, for one panel.
inline void finish_sums(const GemmCall& call, std::int64_t row, std::int64_t rows,
                        std::int64_t panel, float* sums, std::int64_t sums_row) {
  const std::int64_t column = panel * kTile;
  const std::int64_t columns = std::min<std::int64_t>(kTile, call.weights.out - column);
  for (std::int64_t r = 0; r < rows; ++r) {
    float* const from = sums + r * sums_row;
    if (call.bias != nullptr) {
      for (std::int64_t i = 0; i < columns; ++i) from[i] += call.bias[column + i];
    }
    narrow_row(call.y + (row + r) * call.y_row + column * call.y_column, from, call.y_type,
               call.y_column, columns);
  }
}

/// kR rows against panels [first, end), kV vectors of lanes at a time: kV divides a panel's or is a
/// multiple of them.
template <class Q, int kR, int kV>
inline void quantised_rows(const GemmCall& call, std::int64_t row, std::int64_t first,
                           std::int64_t end) {
  constexpr int kPanels = kV > kVectors ? kV / kVectors : 1;
  alignas(64) float sums[kR][kPanels * kTile];
  const std::int64_t blocks = call.weights.in / (Q::kUnits * kUnit);
  std::int64_t panel = first;
  for (; panel + kPanels <= end; panel += kPanels) {
    for (int v = 0; v < kPanels * kVectors; v += kV) {
      quantised_sums<Q, kR, kV>(call, row, panel, v, blocks, sums[0] + v * kLanes, kPanels * kTile);
    }
    for (int p = 0; p < kPanels; ++p) {
      finish_sums(call, row, kR, panel + p, sums[0] + p * kTile, kPanels * kTile);
    }
  }
  if constexpr (kPanels > 1) {
    if (panel < end) quantised_rows<Q, kR, kVectors>(call, row, panel, end);
  }
}

/// Registers decide how many vectors of lanes a pass takes beside its rows.
#if defined(__x86_64__)
inline constexpr bool kManyRegisters = kLanes == 16;
#else
inline constexpr bool kManyRegisters = true;
#endif

template <class Q>
inline void quantised_few_rows(const GemmCall& call, const GemmRange& range) {
  // A panel at a time for all rows: its codes come from L1 or L2 after the first.
  for (std::int64_t panel = range.first_panel; panel < range.end_panel; panel += 2) {
    const std::int64_t end = std::min(panel + 2, range.end_panel);
    std::int64_t row = range.first_row;
    while (row < range.end_row) {
      const std::int64_t left = range.end_row - row;
      if (left >= 8) {
        quantised_rows<Q, 8, 1>(call, row, panel, end);
        row += 8;
      } else if (left >= 4) {
        quantised_rows<Q, 4, kManyRegisters ? kVectors : 1>(call, row, panel, end);
        row += 4;
      } else if (left >= 2) {
        quantised_rows<Q, 2, kVectors>(call, row, panel, end);
        row += 2;
      } else {
        quantised_rows<Q, 1, kManyRegisters ? 2 * kVectors : kVectors>(call, row, panel, end);
        row += 1;
      }
    }
  }
}

struct StoreInput {
  float* to;
  POLYHEAD_INLINE void operator()(std::int64_t input, const Simd::V (&weight)[kVectors]) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) Simd::store(to + input * kTile + v * kLanes, weight[v]);
  }
};

/// Inputs [first, first + count) of a panel as packed float32; both are whole blocks.
template <class Q>
inline void unpack_panel(const GemmWeights& w, std::int64_t panel, std::int64_t first,
                         std::int64_t count, float* to) {
  constexpr std::int64_t kInputs = Q::kUnits * kUnit;
  LanePlaces<kVectors> lanes;
  for (int v = 0; v < kVectors; ++v) {
    lanes.panel[v] = w.panels + panel * (w.in / kInputs) * Q::kBlockBytes;
    lanes.lane[v] = v * kLanes;
  }
  StoreInput store{to};
  each_input<Q, kVectors>(lanes, first / kInputs, (first + count) / kInputs, store);
}

/// What a form offers.
struct QuantisedKernels {
  base::BlockForm form;
  int header, codes, unit_bytes, block_bytes;
  void (*few_rows)(const GemmCall& call, const GemmRange& range);
  void (*unpack)(const GemmWeights& w, std::int64_t panel, std::int64_t first, std::int64_t count,
                 float* to);
};

template <int kBits, int kGroup, bool kScaled, bool kMinimum, int kLowest>
constexpr QuantisedKernels quantised_kernels() {
  using Q = Quantised<kBits, kGroup, kScaled, kMinimum, kLowest>;
  return {{kBits, kGroup, kScaled, kMinimum, kLowest},
          Q::kHeader,
          Q::kCodes,
          Q::kUnitBytes,
          Q::kBlockBytes,
          quantised_few_rows<Q>,
          unpack_panel<Q>};
}

/// Every form of base::block_form and base::common_form.
inline constexpr QuantisedKernels kQuantisedKernels[] = {
    quantised_kernels<4, 32, false, false, -8>(), quantised_kernels<4, 32, false, true, 0>(),
    quantised_kernels<8, 32, false, false, 0>(),  quantised_kernels<8, 32, false, true, 0>(),
    quantised_kernels<4, 16, true, true, 0>(),    quantised_kernels<4, 16, true, false, -4>(),
    quantised_kernels<4, 32, true, true, 0>(),    quantised_kernels<8, 32, true, true, 0>(),
    quantised_kernels<8, 16, true, false, 0>(),   quantised_kernels<8, 16, true, true, 0>(),
};

inline const QuantisedKernels& kernels_of(const base::BlockForm& form) {
  for (const QuantisedKernels& kernels : kQuantisedKernels) {
    if (kernels.form == form) return kernels;
  }
  __builtin_unreachable();  // the forms above are all there are
}

inline std::int64_t quantised_bytes(const base::BlockForm& form, std::int64_t in,
                                    std::int64_t out) {
  return (out + kTile - 1) / kTile * (in / form.block()) * kernels_of(form).block_bytes;
}

/// One block of one output into its panel.
inline void place_block(const QuantisedKernels& kernels, const base::BlockParts& parts,
                        std::byte* block, std::int64_t lane) {
  const base::BlockForm& form = kernels.form;
  std::memcpy(block + lane * 2, &parts.d, 2);
  if (form.minimum) std::memcpy(block + (kTile + lane) * 2, &parts.dmin, 2);
  const int groups = kUnit / form.group;
  for (int u = 0; u < form.block() / kUnit; ++u) {
    std::byte* const unit = block + kernels.header + u * kernels.unit_bytes;
    const std::int8_t* const codes = parts.codes + u * kUnit;
    if (form.bits == 4) {
      for (int word = 0; word < kUnit / 8; ++word) {
        std::uint32_t bits = 0;
        for (int j = 0; j < 8; ++j) {
          bits |= static_cast<std::uint32_t>(codes[word * 8 + j] - form.lowest) << 4 * j;
        }
        std::memcpy(unit + (word * kTile + lane) * 4, &bits, 4);
      }
    } else {
      for (int i = 0; i < kUnit; ++i) std::memcpy(unit + i * kTile + lane, codes + i, 1);
    }
    if (!form.scaled) continue;
    std::byte* const scales = unit + kernels.codes + lane;
    for (int group = 0; group < groups; ++group) {
      const int at = (u * kUnit + group * form.group) / 16;
      std::memcpy(scales + group * kTile, parts.scales + at, 1);
      if (form.minimum) std::memcpy(scales + (groups + group) * kTile, parts.lifts + at, 1);
    }
  }
}

/// Rows [first, first + count) of outputs, stored as blocks of `type`, `row_bytes` apart. Lanes
/// past the last output are written with it.
inline void pack_blocks(std::byte* to, const GemmWeights& w, std::int64_t first, std::int64_t count,
                        WeightType type, const std::byte* rows, std::int64_t row_bytes) {
  const QuantisedKernels& kernels = kernels_of(w.blocks);
  const std::int64_t weights = block_weights(type), blocks = w.in / weights;
  base::BlockParts parts;
  for (std::int64_t row = 0; row < count; ++row) {
    const std::int64_t out = first + row, lane = out % kTile;
    std::byte* const panel = to + out / kTile * blocks * kernels.block_bytes;
    for (std::int64_t b = 0; b < blocks; ++b) {
      base::unpack_block(type, rows + row * row_bytes + b * block_bytes(type), parts);
      std::byte* const block = panel + b * kernels.block_bytes;
      place_block(kernels, parts, block, lane);
      if (out + 1 < w.out) continue;
      for (std::int64_t rest = lane + 1; rest < kTile; ++rest) {
        place_block(kernels, parts, block, rest);
      }
    }
  }
}
