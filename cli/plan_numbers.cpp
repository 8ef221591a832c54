// Numbers as people write them: 4096, 4,096, 32k, 32Ki, 3.35TB/s.
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/joined.hpp"
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

/// What stands between commas, as it is written.
std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> entries;
  for (std::size_t comma = text.find(','); comma != std::string_view::npos;
       comma = text.find(',')) {
    entries.push_back(text.substr(0, comma));
    text.remove_prefix(comma + 1);
  }
  entries.push_back(text);
  return entries;
}

/// How many entries could be one number with commas (4,096 or 1,234,567k); 1 where they cannot. A
/// space behind a comma says that they are a list.
std::size_t entries_of_number(std::span<const std::string_view> entries) {
  std::string_view first = entries[0];
  first.remove_prefix(std::min(first.find_first_not_of(' '), first.size()));
  const std::size_t digits = digits_at_front(first);
  if (digits == 0 || digits > 3 || digits < first.size() || first == "0") return 1;
  std::size_t count = 1;
  while (count < entries.size() && digits_at_front(entries[count]) == 3) {
    if (entries[count++].size() > 3) break;  // a unit ends it
  }
  return count;
}

bool begins_with_zero(std::string_view entry) {
  return entry.size() > 1 && entry[0] == '0' && is_digit(entry[1]);
}

[[noreturn]] void refuse_commas(const std::string& option,
                                std::span<const std::string_view> number) {
  const std::string plain = base::joined(number, "");
  std::string why = option + ": '" + base::joined(number, ",");
  if (std::ranges::any_of(number, begins_with_zero))
    throw UsageError(why + "' is one number in a list, where numbers have no commas: write " +
                     plain);
  throw UsageError(why + "' may be one number or a list: write " + plain + ", or '" +
                   base::joined(number) + "' in quotes");
}

/// Of a list: 64,128 would be taken for 64 and 128 by some, for 64128 by others.
void check_thousands(const std::string& option, const std::string& text) {
  const std::vector<std::string_view> entries = split(text);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const auto rest = std::span(entries).subspan(i);
    const std::size_t count = entries_of_number(rest);
    if (count > 1) refuse_commas(option, rest.first(count));
  }
}

/// Of a list: 096 is what a comma left of 4,096.
void check_zeros(const std::string& option, const std::vector<std::string>& entries) {
  if (entries.size() == 1) return;
  const auto found = std::ranges::find_if(entries, begins_with_zero);
  if (found == entries.end()) return;
  throw UsageError(std::string(option).append(": '").append(*found).append(
      "' begins with 0; numbers of a list have no commas"));
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

std::int64_t parse_some(const std::string& option, const std::string& text) {
  const std::int64_t count = parse_count(option, text);
  if (count == 0) throw UsageError(option + " (0) is not at least 1");
  return count;
}

std::vector<std::int64_t> parse_counts(const std::string& option, const std::string& text) {
  const std::vector<std::string> entries = full_pieces_of(option, text);
  // Heads and sequences are few: 64,128 is a list of them.
  if (option == "--context") check_thousands(option, text);
  check_zeros(option, entries);
  std::vector<std::int64_t> counts;
  counts.reserve(entries.size());
  for (const std::string& entry : entries) counts.push_back(parse_count(option, entry));
  return counts;
}

}  // namespace polyhead::cli
