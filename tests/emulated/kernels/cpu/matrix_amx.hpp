// Instead of src/kernels/cpu/matrix_amx.hpp: AMX's matrices, and TDPBF16PS as Intel's manual has
// it.

class MatrixUnit {
 public:
  static constexpr int kRows = 16;
  static constexpr int kDepth = 32;

  explicit MatrixUnit(std::int64_t rows = kRows) { shape_for_item(rows); }
  ~MatrixUnit() { lent_ = false; }
  MatrixUnit(const MatrixUnit&) = delete;
  MatrixUnit& operator=(const MatrixUnit&) = delete;

  static void shape_for_product(int rows) {
    lent_ = true;
    for (int i = 0; i < 8; ++i) matrices_[i] = Matrix{i < 7 ? rows : kRows, {}};
  }

  static void shape_for_item(std::int64_t rows) {
    shape_for_product(kRows);
    for (const int i : {2, 3, 7}) matrices_[i].rows = static_cast<int>(rows < kRows ? rows : kRows);
  }

  template <int kTo>
  static void zero() {
    std::memset(matrix(kTo).row, 0, sizeof Matrix::row);
  }
  /// Rows that the matrix has not become zero.
  template <int kTo>
  static void load(const void* from, std::int64_t stride) {
    zero<kTo>();
    for (int m = 0; m < matrix(kTo).rows; ++m)
      std::memcpy(matrix(kTo).row[m], static_cast<const std::byte*>(from) + m * stride, 64);
  }
  template <int kFrom>
  static void store(void* to, std::int64_t stride) {
    for (int m = 0; m < matrix(kFrom).rows; ++m)
      std::memcpy(static_cast<std::byte*>(to) + m * stride, matrix(kFrom).row[m], 64);
  }
  template <int kTo, int kA, int kB>
  static void multiply() {
    const base::FloatEnvironment flushed;  // whatever MXCSR says
    if (matrix(kB).rows != kRows || matrix(kA).rows != matrix(kTo).rows) __builtin_trap();
    for (int m = 0; m < matrix(kTo).rows; ++m) multiply_row(matrix(kTo), matrix(kA), matrix(kB), m);
  }

 private:
  struct Matrix {
    int rows;
    alignas(64) std::uint32_t row[kRows][16];
  };

  static void multiply_row(Matrix& to, const Matrix& a, const Matrix& b, int m) {
    float even[16] = {}, odd[16] = {};
    for (int k = 0; k < kRows; ++k) {
      const float x = low(a.row[m][k]), y = high(a.row[m][k]);
      for (int n = 0; n < 16; ++n) {
        even[n] = std::fma(x, low(b.row[k][n]), even[n]);
        odd[n] = std::fma(y, high(b.row[k][n]), odd[n]);
      }
    }
    for (int n = 0; n < 16; ++n) {
      const float sum = emulated::flushed(std::bit_cast<float>(to.row[m][n])) + (even[n] + odd[n]);
      to.row[m][n] = std::bit_cast<std::uint32_t>(sum);
    }
  }
  static float low(std::uint32_t pair) {
    return emulated::from_bfloat16(static_cast<std::uint16_t>(pair));
  }
  static float high(std::uint32_t pair) {
    return emulated::from_bfloat16(static_cast<std::uint16_t>(pair >> 16));
  }

  /// A matrix is used only while they are configured: elsewhere the processor would stop.
  static Matrix& matrix(int i) {
    if (!lent_) __builtin_trap();
    return matrices_[i];
  }

  static inline thread_local bool lent_ = false;
  static inline thread_local Matrix matrices_[8];
};
