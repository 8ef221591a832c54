#include "cli/table.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>

#include "models/formats/file_error.hpp"
#include "models/tokenizers/unicode.hpp"

namespace polyhead::cli {
namespace {

/// Bytes of a broken sequence that a terminal shows as one character: the first and those that
/// continue it.
std::size_t broken_length(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  const std::size_t most = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc0 ? 2 : 1;
  const auto continues = [](char byte) {
    return (static_cast<unsigned char>(byte) & 0xc0) == 0x80;
  };
  std::size_t length = 1;
  while (length < std::min(most, text.size()) && continues(text[length])) ++length;
  return length;
}

}  // namespace

std::size_t display_width(std::string_view text) {
  std::size_t width = 0;
  for (std::size_t at = 0; at < text.size();) {
    if (text[at] == '\x1b') {  // the styles of Console: ESC [ ... m
      const std::size_t end = text.find('m', at);
      if (end == std::string_view::npos) break;
      at = end + 1;
      continue;
    }
    const models::Character character = models::first_character(text.substr(at));
    width += static_cast<std::size_t>(models::columns_of(character.code));
    at += character.code < 0 ? broken_length(text.substr(at)) : character.length;
  }
  return width;
}

std::string printable(std::string_view text) { return formats::escape_controls(text); }

std::string fixed(double value, int decimals) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char text[400];  // the largest double has 309 digits before the point
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  std::string shown(text);
  if (shown.starts_with('-') && shown.find_first_not_of("-0.") == std::string::npos)
    shown.erase(0, 1);
  return shown;
}

std::string grouped(long long value) {
  std::string digits = std::to_string(value);
  for (std::size_t at = digits.size(); at > (value < 0 ? 4u : 3u);) {
    at -= 3;
    digits.insert(at, ",");
  }
  return digits;
}

std::string bytes_text(std::uint64_t bytes) {
  constexpr const char* units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  double amount = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (amount >= 1024.0 && unit + 1 < std::size(units)) amount /= 1024.0, ++unit;
  return unit == 0 ? grouped(static_cast<long long>(bytes)) + " bytes"
                   : fixed(amount, 1) + " " + units[unit];
}

std::string fingerprint_text(std::uint64_t fingerprint) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(fingerprint));
  return text;
}

Table Table::numbers(std::size_t count) {
  std::vector<Align> columns(count + 1, Align::right);
  columns[0] = Align::left;
  return Table(std::move(columns));
}

void Table::print(const Console& console) const {
  std::vector<std::size_t> widths(columns_.size(), 0);
  const auto measure = [&](const std::vector<std::string>& cells) {
    for (std::size_t i = 0; i < cells.size() && i < widths.size(); ++i) {
      widths[i] = std::max(widths[i], display_width(cells[i]));
    }
  };
  measure(header_);
  for (const Row& row : rows_) measure(row.cells);

  const auto line_of = [&](const std::vector<std::string>& cells) {
    std::string line = " ";
    for (std::size_t i = 0; i < cells.size() && i < widths.size(); ++i) {
      const std::string padding(widths[i] - display_width(cells[i]), ' ');
      line += columns_[i] == Align::left ? " " + cells[i] + padding + " "
                                         : " " + padding + cells[i] + " ";
    }
    line.erase(line.find_last_not_of(' ') + 1);
    return line;
  };
  std::size_t total = 0;
  for (const std::size_t width : widths) total += width + 2;
  std::string rule = "  ";
  for (std::size_t i = 2; i < total; ++i) rule += "─";

  if (!header_.empty()) console.out << console.styled(Style::faint, line_of(header_)) << '\n';
  for (const Row& row : rows_) {
    console.out << (row.rule ? console.styled(Style::faint, rule) : line_of(row.cells)) << '\n';
  }
}

}  // namespace polyhead::cli
