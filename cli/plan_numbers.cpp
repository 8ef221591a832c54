// Numbers as people write them: 4096, 4,096, 32k, 32Ki, 3.35TB/s.
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "cli/command.hpp"
#include "cli/list_text.hpp"
#include "cli/plan_input.hpp"

namespace polyhead::cli {
namespace {

struct Unit {
  const char* name;
  int twos, tens;  ///< 2^twos 10^tens
};
constexpr Unit kUnits[] = {{"Ki", 10, 0}, {"Mi", 20, 0}, {"Gi", 30, 0}, {"Ti", 40, 0},
                           {"k", 0, 3},   {"K", 0, 3},   {"M", 0, 6},   {"G", 0, 9},
                           {"B", 0, 9},   {"T", 0, 12},  {"P", 0, 15},  {"", 0, 0}};

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

std::size_t digits_at_front(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::find_if_not(text, is_digit) - text.begin());
}

/// A number exactly as it is written: digits 10^exponent, and what stands behind it.
struct Decimal {
  std::string digits;
  int exponent = 0;
  std::string rest;

  double value() const {
    return std::strtod((digits + "e" + std::to_string(exponent)).c_str(), {});
  }
};

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

/// False where there is no number.
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

enum class Whole : std::uint8_t { yes, no, beyond };

/// digits 10^exponent 2^twos 10^tens without rounding, at most cost::kUnlimited.
Whole whole_of(const Decimal& number, const Unit& unit, std::int64_t& to) {
  constexpr std::size_t kFit = 18;  // digits that 63 bits hold
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
    if (to > cost::kUnlimited) return Whole::beyond;
    to *= tens > 0 ? 10 : 2;
  }
  return to > cost::kUnlimited ? Whole::beyond : Whole::yes;
}

[[noreturn]] void bad_number(const std::string& option, const std::string& text,
                             const char* expected) {
  throw UsageError(option + ": '" + text + "' is not " + expected);
}

/// Of a list: 4,096 would be taken for 4 and 96.
void check_thousands(const std::string& option, const std::string& text) {
  for (std::size_t comma = text.find(','), from = 0; comma != std::string::npos;
       from = comma + 1, comma = text.find(',', from)) {
    std::string_view before = std::string_view(text).substr(from, comma - from);
    before.remove_prefix(std::min(before.find_first_not_of(' '), before.size()));
    const std::string_view behind = std::string_view(text).substr(comma + 1);
    const std::size_t digits = digits_at_front(behind);
    std::string_view entry = behind;
    entry.remove_prefix(std::min(entry.find_first_not_of(' '), entry.size()));
    const bool zero = entry.size() > 1 && entry[0] == '0' && is_digit(entry[1]);
    const bool group = digits == 3 && before.size() <= 3 && before != "0" &&
                       digits_at_front(before) == before.size();
    if (!group && !zero) continue;
    throw UsageError(std::string(option).append(": '").append(text).append(
        "' may be one number or a list: write a number without commas, a list with a space after "
        "each"));
  }
}

}  // namespace

double parse_amount(const std::string& option, const std::string& text, Amount of) {
  constexpr double kMost = 9e18;  // whole numbers of 64 bits hold it
  const bool flops = of == Amount::flops_a_second;
  const char* const expected = of == Amount::bytes            ? "an amount such as 80GB or 80GiB"
                               : of == Amount::bytes_a_second ? "a rate such as 3.35TB or 3.35TB/s"
                                                              : "a rate such as 989T or 989TFLOP/s";
  Decimal number;
  if (!read_number(text, number)) bad_number(option, text, expected);
  std::string unit = number.rest;
  std::vector<std::string_view> endings{"B"};
  if (of == Amount::bytes_a_second) endings = {"B/s", "B"};
  if (flops) endings = {"FLOPS", "FLOP/s"};
  for (const std::string_view ending : endings) {
    if (!unit.ends_with(ending)) continue;
    unit.erase(unit.size() - ending.size());
    break;
  }
  const Unit* const known = unit == "B" ? nullptr : unit_named(unit);
  const double value = number.value();
  if (known == nullptr || !(value > 0) || !std::isfinite(value)) bad_number(option, text, expected);
  return std::min(std::ldexp(value, known->twos) * std::pow(10.0, known->tens), kMost);
}

std::int64_t parse_count(const std::string& option, const std::string& text) {
  constexpr const char* kExpected = "a whole number such as 4096, 32k (32,000) or 32Ki (32,768)";
  Decimal number;
  if (!read_number(text, number)) bad_number(option, text, kExpected);
  const Unit* const unit = unit_named(number.rest);
  if (unit == nullptr) bad_number(option, text, kExpected);
  std::int64_t count = 0;
  const Whole whole = whole_of(number, *unit, count);
  if (whole == Whole::no) bad_number(option, text, kExpected);
  if (whole == Whole::beyond) throw UsageError(option + ": '" + text + "' is beyond 2^40");
  return count;
}

std::vector<std::int64_t> parse_counts(const std::string& option, const std::string& text) {
  check_thousands(option, text);
  std::vector<std::int64_t> counts;
  for (const std::string& item : full_pieces_of(option, text))
    counts.push_back(parse_count(option, item));
  return counts;
}

}  // namespace polyhead::cli
