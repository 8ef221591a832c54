#include "cli/count_text.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <iterator>
#include <system_error>

namespace polyhead::cli {
namespace {

constexpr Unit kUnits[] = {{"Ki", 10, 0}, {"Mi", 20, 0}, {"Gi", 30, 0}, {"Ti", 40, 0},
                           {"k", 0, 3},   {"K", 0, 3},   {"M", 0, 6},   {"G", 0, 9},
                           {"B", 0, 9},   {"T", 0, 12},  {"P", 0, 15},  {"", 0, 0}};

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

/// Moves whole digits to `to`: with _ between any two of them, or with a comma before each three
/// but the first. False where a comma or _ stands anywhere else.
bool take_whole(std::string_view& text, std::string& to) {
  const std::size_t first = digits_at_front(text);
  const char mark = first < text.size() ? text[first] : '\0';
  to.append(text.substr(0, first));
  text.remove_prefix(first);
  if (mark != ',' && mark != '_') return true;
  while (!text.empty() && text[0] == mark) {
    const std::size_t group = digits_at_front(text.substr(1));
    const bool thousands = first >= 1 && first <= 3 && group == 3;
    if (mark == ',' ? !thousands : first == 0 || group == 0) return false;
    to.append(text.substr(1, group));
    text.remove_prefix(1 + group);
  }
  return true;
}

/// digits 10^exponent 2^twos 10^tens without rounding, at most `most`.
Whole whole_of(const Decimal& number, const Unit& unit, std::uint64_t most, std::uint64_t& to) {
  constexpr std::size_t kFit = 19;  // digits that 64 bits hold
  std::string_view digits = number.digits;
  digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size()));
  const std::size_t size = digits.find_last_not_of('0') + 1;
  int tens = number.exponent + unit.tens + static_cast<int>(digits.size() - size), twos = unit.twos;
  digits = digits.substr(0, size);
  to = 0;
  if (digits.empty()) return Whole::yes;
  if (digits.size() > kFit) return tens < 0 ? Whole::no : Whole::beyond;
  std::from_chars(digits.data(), digits.data() + digits.size(), to);
  for (; tens < 0; ++tens) {  // a tenth: a fifth of a half
    if (to % 5 != 0 || (to % 2 != 0 && twos == 0)) return Whole::no;
    to /= 5;
    if (to % 2 == 0) {
      to /= 2;
    } else {
      --twos;
    }
  }
  for (; tens > 0 || twos > 0; tens > 0 ? --tens : --twos) {
    const std::uint64_t factor = tens > 0 ? 10 : 2;
    if (to > most / factor) return Whole::beyond;
    to *= factor;
  }
  return to > most ? Whole::beyond : Whole::yes;
}

}  // namespace

double Decimal::value() const {
  return std::strtod((digits + "e" + std::to_string(exponent)).c_str(), {});
}

std::size_t digits_at_front(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::find_if_not(text, is_digit) - text.begin());
}

bool read_number(std::string_view text, Decimal& to) {
  if (!take_whole(text, to.digits)) return false;
  if (!text.empty() && text[0] == '.') {
    const std::size_t more = digits_at_front(text.substr(1));
    to.digits.append(text.substr(1, more));
    to.exponent = -static_cast<int>(more);
    text.remove_prefix(1 + more);
  }
  if (to.digits.empty() || text.starts_with('x') || text.starts_with('X')) return false;
  std::string_view power = text;
  if (power.starts_with('e') || power.starts_with('E')) {
    power.remove_prefix(power.size() > 1 && power[1] == '+' ? 2 : 1);
    int exponent = 0;
    const auto [end, error] = std::from_chars(power.data(), power.data() + power.size(), exponent);
    constexpr int kMost = 100'000;  // far beyond what any number here is taken to
    if (error == std::errc::result_out_of_range || std::abs(exponent) > kMost) return false;
    if (error == std::errc()) {
      to.exponent += exponent;
      text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    }
  }
  to.rest = text;
  return true;
}

const Unit* unit_named(std::string_view name) {
  const auto found =
      std::ranges::find_if(kUnits, [&](const Unit& unit) { return name == unit.name; });
  return found == std::end(kUnits) ? nullptr : found;
}

bool begins_with_zero(std::string_view entry) {
  return entry.size() > 1 && entry[0] == '0' && is_digit(entry[1]);
}

Whole read_count(std::string_view text, std::int64_t most, std::int64_t& to) {
  Decimal number;
  if (begins_with_zero(text) || !read_number(text, number)) return Whole::no;
  const Unit* const unit = unit_named(number.rest);
  if (unit == nullptr) return Whole::no;
  std::uint64_t count = 0;
  const Whole whole = whole_of(number, *unit, static_cast<std::uint64_t>(most), count);
  if (whole == Whole::yes) to = static_cast<std::int64_t>(count);
  return whole;
}

}  // namespace polyhead::cli
