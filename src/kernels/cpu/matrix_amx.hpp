// AMX: eight matrices of 16 rows of 64 bytes, and a product of two of them by one instruction.
// Included inside an ISA namespace that has it.

/// The processor's matrices, as long as one lives: 16 x 16 float32 or 16 x 32 bfloat16 each.
class MatrixUnit {
 public:
  static constexpr int kRows = 16;   // and columns of 32 bits
  static constexpr int kDepth = 32;  // bfloat16 in a row: what one product sums over

  explicit MatrixUnit(std::int64_t rows = kRows) { shape_for_item(rows); }
  ~MatrixUnit() { asm volatile("tilerelease" ::: "memory"); }
  MatrixUnit(const MatrixUnit&) = delete;
  MatrixUnit& operator=(const MatrixUnit&) = delete;

  static constexpr int kOfItem[] = {2, 3, 7};  // have as many rows as an item, if it has few
  /// For items of so many rows of queries in attention; what the matrices held is gone.
  static void shape_for_item(std::int64_t rows) {
    Shapes shapes;
    for (const int i : kOfItem)
      shapes.rows[i] = static_cast<std::uint8_t>(rows < kRows ? rows : kRows);
    asm volatile("ldtilecfg %0" ::"m"(shapes) : "memory");
  }
  /// For products of so many rows in gemm, which leave the last matrix whole.
  static void shape_for_product(int rows) {
    Shapes shapes;
    for (int i = 0; i < 7; ++i) shapes.rows[i] = static_cast<std::uint8_t>(rows);
    asm volatile("ldtilecfg %0" ::"m"(shapes) : "memory");
  }

  template <int kTo>
  POLYHEAD_INLINE static void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTo));
  }
  /// 16 rows `stride` bytes apart; a row that lies on two cache lines takes six times as long.
  template <int kTo>
  POLYHEAD_INLINE static void load(const void* from, std::int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTo) : "memory");
  }
  template <int kFrom>
  POLYHEAD_INLINE static void store(void* to, std::int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(kFrom) : "memory");
  }
  /// kTo[m][n] += sum over pairs of kA[m][pair] . kB[pair][n], of bfloat16. Even products are one
  /// chain of fused multiply-adds from 0, odd ones another; their sum is added to what there is.
  /// Subnormal numbers are zero, in and out (Intel's manual, TDPBF16PS).
  template <int kTo, int kA, int kB>
  POLYHEAD_INLINE static void multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kTo), "i"(kA), "i"(kB));
  }

 private:
  struct alignas(64) Shapes {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  };
  static_assert(sizeof(Shapes) == 64);
};
