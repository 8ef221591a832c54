#include "cli/option_checks.hpp"

#include <charconv>
#include <cmath>
#include <string>

#include "cli/list_text.hpp"
#include "polyhead/error.h"
#include "polyhead/isa.h"

namespace polyhead::cli {

CLI::Validator whole_number(std::uint64_t least, std::uint64_t most) {
  const bool bounded = most < static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  const std::string from = std::to_string(least);
  const std::string expected =
      bounded ? "from " + from + " to " + std::to_string(most) : "of at least " + from;
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
  const auto refusal = [=](const std::string& text) -> std::string {
    double number = 0.0;
    const bool read = CLI::detail::lexical_cast(text, number);
    if (read && std::isfinite(number) && holds(number)) return {};
    return text + " is not a number " + expected;
  };
  return CLI::Validator(refusal, "");
}

CLI::Validator float32_number() {
  const auto refusal = [](const std::string& text) -> std::string {
    double number = 0.0;
    if (!CLI::detail::lexical_cast(text, number)) return text + " is not a number";
    if (std::isnan(number)) return text + " is not a number that is finite";
    const auto rounded = static_cast<float>(number);
    if (std::isinf(rounded)) return text + " is too large for a number of 32 bits";
    if (rounded == 0.0f && number != 0.0) return text + " is too small for a number of 32 bits";
    return {};
  };
  return CLI::Validator(refusal, "");
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

CLI::Validator each_entry(const CLI::Validator& check) {
  const auto refusal = [check](const std::string& text) -> std::string {
    for (const std::string& piece : pieces_of(text)) {
      if (piece.empty()) return "'" + text + "' has an empty entry";
      if (std::string refused = check(piece); !refused.empty()) return refused;
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
