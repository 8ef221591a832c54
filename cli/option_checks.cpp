#include "cli/option_checks.hpp"

#include <charconv>
#include <cmath>
#include <string>

#include "cli/count_text.hpp"
#include "polyhead/error.h"
#include "polyhead/isa.h"

namespace polyhead::cli {
namespace {

/// In decimal or, behind 0x, hexadecimal digits.
bool is_written_as_zero(const std::string& text) {
  const bool hex = text.find_first_of("xX") != std::string::npos;
  const std::string digits = text.substr(0, text.find_first_of(hex ? "pP" : "eE"));
  return digits.find_first_of(hex ? "123456789abcdefABCDEF" : "123456789") == std::string::npos;
}

/// Why an option does not take a number that it holds in so many bits; "" where it does.
std::string refused_number(const std::string& text, int bits, double (*rounded)(double),
                           bool (*holds)(double), const char* expected) {
  double number = 0.0;
  const bool words = text.find_first_of("nN") != std::string::npos;  // inf, nan
  if (words || !CLI::detail::lexical_cast(text, number))
    return text + " is not a number " + expected;
  const std::string of_bits = " for a number of " + std::to_string(bits) + " bits";
  const double held = rounded(number);
  if (std::isinf(held)) return text + " is too large" + of_bits;
  if (held == 0.0 && !is_written_as_zero(text)) return text + " is too small" + of_bits;
  return holds(number) ? "" : text + " is not a number " + expected;
}

/// "from 1 to 8", "of at least 1".
std::string range_text(std::uint64_t least, std::uint64_t most) {
  const bool bounded = most < static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  const std::string from = std::to_string(least);
  return bounded ? "from " + from + " to " + std::to_string(most) : "of at least " + from;
}

}  // namespace

CLI::Validator count(std::int64_t least, std::int64_t most) {
  const std::string expected =
      range_text(static_cast<std::uint64_t>(least), static_cast<std::uint64_t>(most));
  const bool bounded = most < std::numeric_limits<std::int64_t>::max();
  const auto rewritten = [=](std::string& text) -> std::string {
    if (text.empty()) return "the value is empty";
    std::int64_t number = 0;
    const Whole whole = read_count(text, most, number);
    if (whole == Whole::beyond && !bounded) return text + " is larger than " + std::to_string(most);
    if (whole != Whole::yes || number < least) return text + " is not a whole number " + expected;
    text = std::to_string(number);
    return {};
  };
  return CLI::Validator(rewritten, "");
}

CLI::Validator whole_number(std::uint64_t least, std::uint64_t most) {
  const bool bounded = most < static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  const std::string expected = range_text(least, most);
  const auto refusal = [=](const std::string& text) -> std::string {
    const char* const end = text.data() + text.size();
    std::uint64_t number = 0;
    const auto [read, error] = std::from_chars(text.data(), end, number);
    // CLI11 takes what begins with 0 for octal.
    const bool whole = read == end && !(text.size() > 1 && text.front() == '0');
    const bool large = error == std::errc::result_out_of_range || number > most;
    if (whole && large && !bounded) return text + " is larger than " + std::to_string(most);
    if (whole && !large && error == std::errc() && number >= least) return {};
    return text + " is not a whole number " + expected;
  };
  return CLI::Validator(refusal, "");
}

CLI::Validator number_if(bool (*holds)(double), const char* expected) {
  return CLI::Validator(
      [=](const std::string& text) {
        return refused_number(
            text, 64, [](double x) { return x; }, holds, expected);
      },
      "");
}

CLI::Validator float32_if(bool (*holds)(double), const char* expected) {
  return CLI::Validator(
      [=](const std::string& text) {
        const auto rounded = [](double x) { return static_cast<double>(static_cast<float>(x)); };
        return refused_number(text, 32, rounded, holds, expected);
      },
      "");
}

CLI::Validator float32_number() {
  return float32_if([](double) { return true; }, "that is finite");
}

CLI::Validator isa_name() {
  const auto refusal = [](const std::string& text) -> std::string {
    constexpr std::string_view kBegins = "isa: ";  // the option's name stands before it
    try {
      isa_from_name(text);
    } catch (const InvalidArgument& error) {
      std::string_view why = error.what();
      if (why.starts_with(kBegins)) why.remove_prefix(kBegins.size());
      return std::string(why);
    }
    return {};
  };
  return CLI::Validator(refusal, "");
}

CLI::Validator not_empty() {
  const auto refusal = [](const std::string& text) {
    return text.empty() ? std::string("the value is empty") : std::string();
  };
  return CLI::Validator(refusal, "");
}

CLI::Validator output_name() {
  const auto refusal = [](const std::string& text) {
    return text == "-"
               ? std::string("'-' is not a file, and this is not written to standard output")
               : std::string();
  };
  return not_empty() & CLI::Validator(refusal, "");
}

}  // namespace polyhead::cli
