// Aligned columns, as a book sets them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cli/console.hpp"

namespace polyhead::cli {

/// Columns a text takes on a terminal: code points, without combining marks and escape sequences;
/// wide East Asian characters and emoji count two.
std::size_t display_width(std::string_view text);

/// Text with control characters escaped, so that a name from a file cannot steer the terminal.
std::string printable(std::string_view text);

/// `value` to `decimals` places; "-inf", "inf" and "nan" as such; no "-0.0000".
std::string fixed(double value, int decimals = 4);

/// "1,024" for 1024.
std::string grouped(long long value);

/// "36.0 KiB"; "1,023 bytes" of less than one.
std::string bytes_text(std::uint64_t bytes);

/// In 16 hexadecimal digits.
std::string fingerprint_text(std::uint64_t fingerprint);

class Table {
 public:
  enum class Align { left, right };

  explicit Table(std::vector<Align> columns) : columns_(std::move(columns)) {}

  /// A first column of names and `count` right-aligned ones of numbers.
  static Table numbers(std::size_t count);

  void header(std::vector<std::string> cells) { header_ = std::move(cells); }
  void row(std::vector<std::string> cells) { rows_.push_back({std::move(cells), false}); }
  void rule() { rows_.push_back({{}, true}); }

  /// Prints indented by two spaces, two spaces between columns.
  void print(const Console& console) const;

 private:
  struct Row {
    std::vector<std::string> cells;
    bool rule;
  };

  std::vector<Align> columns_;
  std::vector<std::string> header_;
  std::vector<Row> rows_;
};

}  // namespace polyhead::cli
