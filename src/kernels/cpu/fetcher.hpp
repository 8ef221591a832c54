// Fetching ahead of the arithmetic. Included inside an ISA namespace after outer_product.hpp.

/// What an item fetches while it computes: rows of dense tables, then lines of the next key block,
/// then its own output rows and the next item's queries. Prefetching is a hint: it never faults and
/// changes no result.
class Fetcher {
 public:
  static constexpr std::int64_t kLine = 64;

  /// Lines of `count` tokens from `base` of `heads` heads.
  void add(const std::byte* base, std::int64_t token, std::int64_t count, std::int64_t head,
           std::int64_t heads, std::int64_t bytes) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t line = 0; line < bytes; line += kLine) {
        if (count_ == kMost) return;
        runs_[count_++] = {{base + h * head + line, token}, count};
      }
    }
  }
  /// Begins the next block of keys and values, whose lines come before all else; what was left of
  /// the last one is dropped.
  void drop_block() { block_count_ = block_taken_ = 0; }
  void add_to_block(Stream rows, std::int64_t bytes, std::int64_t keys) {
    for (std::int64_t line = 0; line < bytes; line += kLine)
      push_block({rows.at + line, rows.stride}, keys);
  }
  /// Rows of dense tables that the next tile looks at; they come before the block.
  void drop_tables() { table_count_ = table_taken_ = 0; }
  void add_tables(Stream rows, std::int64_t count, std::int64_t bytes) {
    const auto past = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(rows.at) % kLine);
    for (std::int64_t at = -past; at < bytes && table_count_ < kMostTables; at += kLine)
      tables_[table_count_++] = {{rows.at + at, rows.stride}, count};
  }
  /// Fetches so many of the lines that come next, if there are any.
  POLYHEAD_INLINE void fetch(int lines) {
    const Stream stream = take(nullptr, lines);
    if (stream.at == nullptr) return;
    for (int i = 0; i < lines; ++i) __builtin_prefetch(stream.at + i * stream.stride, 0, 2);
  }
  /// The next `steps` lines, or a stream that stays at `idle`.
  Stream take(const std::byte* idle, std::int64_t steps) {
    if (table_taken_ < table_count_) return advance(tables_, table_taken_, steps);
    if (block_taken_ < block_count_) return advance(block_, block_taken_, steps);
    if (taken_ < count_) return advance(runs_, taken_, steps);
    return {idle, 0};
  }

 private:
  struct Run {
    Stream stream;
    std::int64_t left;
  };
  static Stream advance(Run* runs, int& at, std::int64_t steps) {
    Run& run = runs[at];
    const Stream result = run.stream;
    run.stream.at += steps * run.stream.stride;
    run.left -= steps;
    if (run.left <= 0) ++at;
    return result;
  }
  void push_block(Stream stream, std::int64_t keys) {
    if (block_count_ < kMost) block_[block_count_++] = {stream, keys};
  }

  static constexpr int kMost = 64, kMostTables = 10;
  int block_count_ = 0, block_taken_ = 0, count_ = 0, taken_ = 0;
  int table_count_ = 0, table_taken_ = 0;
  Run block_[kMost], runs_[kMost], tables_[kMostTables];
};
