// The order in which decoding fetches lines of the keys and values to come. Included inside an ISA
// namespace after rows.hpp.

/// Where the share of a block's rows begins that belongs to one of its columns, kBytes wide: while
/// kernels read a block column by column, the next one's lines are fetched in the order memory has
/// them, for which DRAM gives a quarter more (docs/kernel-notes.md). Of `count` rows, `token`
/// apart, the first at `rows`, the share from row `first` on; the column begins `column` bytes into
/// a row. Where the rows are not dense, its own lines are fetched.
template <std::int64_t kBytes>
struct ColumnAhead {
  static constexpr int kRowsALine = kBytes < 64 ? 64 / kBytes : 1;  // each line once

  static std::int64_t stride(bool dense, std::int64_t token) { return dense ? kBytes : token; }

  POLYHEAD_INLINE static const std::byte* begin(const std::byte* rows, std::int64_t count,
                                                std::int64_t token, bool dense, std::int64_t column,
                                                std::int64_t first) {
    first += column / kBytes % kRowsALine;
    return forget(rows + (dense ? count : 1) * column + first * stride(dense, token));
  }

  /// A row's share, or that of the kRowsALine rows from it on, into L1, and what lies `far` bytes
  /// from it into L2: L1 alone does not wait for as many lines as DRAM takes to work at its rate.
  POLYHEAD_INLINE static void fetch(const std::byte* at, std::int64_t far) {
#pragma GCC unroll 8
    for (std::int64_t line = 0; line < kBytes; line += 64) {
      __builtin_prefetch(at + line, 0, 3);
      __builtin_prefetch(at + far + line, 0, 2);
    }
  }
};
