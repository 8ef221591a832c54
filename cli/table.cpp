#include "cli/table.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>

#include "models/formats/file_error.hpp"

namespace polyhead::cli {
namespace {

/// The code point at text[at], and steps past it; a broken sequence counts a byte at a time.
std::uint32_t next_code_point(std::string_view text, std::size_t& at) {
  const auto byte = static_cast<unsigned char>(text[at++]);
  const int more = byte >= 0xf0 ? 3 : byte >= 0xe0 ? 2 : byte >= 0xc0 ? 1 : 0;
  std::uint32_t point = more == 3   ? byte & 0x07u
                        : more == 2 ? byte & 0x0fu
                        : more == 1 ? byte & 0x1fu
                                    : byte;
  for (int i = 0; i < more && at < text.size(); ++i) {
    const auto next = static_cast<unsigned char>(text[at]);
    if ((next & 0xc0u) != 0x80u) break;
    point = point << 6 | (next & 0x3fu);
    ++at;
  }
  return point;
}

struct Span {
  std::uint32_t first, last;
};

// The blocks that matter for tokens, after Unicode's East Asian Width: not every wide character,
// the common ones.
constexpr Span kWide[] = {{0x1100, 0x115f},   {0x2e80, 0x303e},   {0x3041, 0xa4cf},
                          {0xac00, 0xd7a3},   {0xf900, 0xfaff},   {0xfe30, 0xfe4f},
                          {0xff00, 0xff60},   {0xffe0, 0xffe6},   {0x1f300, 0x1f64f},
                          {0x1f680, 0x1f6ff}, {0x1f900, 0x1faff}, {0x20000, 0x3fffd}};
constexpr Span kNone[] = {
    {0x0300, 0x036f}, {0x0591, 0x05bd}, {0x064b, 0x065f}, {0x200b, 0x200f}, {0xfe00, 0xfe0f}};

template <std::size_t N>
bool in(const Span (&spans)[N], std::uint32_t point) {
  return std::any_of(std::begin(spans), std::end(spans),
                     [&](const Span& s) { return point >= s.first && point <= s.last; });
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
    const std::uint32_t point = next_code_point(text, at);
    width += in(kNone, point) ? 0 : in(kWide, point) ? 2 : 1;
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
