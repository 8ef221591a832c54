// Counts, lists of them and amounts on the command line of `polyhead plan`: 4,096, 32k, 3.35TB/s.
#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/joined.hpp"
#include "cli/command.hpp"
#include "cli/count_text.hpp"
#include "cli/list_text.hpp"
#include "cli/plan_input.hpp"

namespace polyhead::cli {
namespace {

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
  std::int64_t count = 0;
  const Whole whole = read_count(text, cost::kUnlimited, count);
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
