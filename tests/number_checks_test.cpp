// Options refuse numbers by what they take.
#include <gtest/gtest.h>

#include "cli/exit_codes.hpp"
#include "support/run_program.hpp"
#include "support/scratch_directory.hpp"
#include "support/tiny_llama.hpp"

namespace polyhead {
namespace {

using test::run_program;

struct Case {
  std::vector<std::string> arguments;  ///< the last two: an option and what it refuses
  const char* expected;
};

TEST(NumberChecks, OptionsSayWhatTheyTake) {
  const std::vector<std::string> generate = {"generate", "m", "--prompts", "f"};
  const auto with = [](std::vector<std::string> arguments, const char* option, const char* value) {
    arguments.insert(arguments.end(), {option, value});
    return arguments;
  };
  const Case cases[] = {
      {with(generate, "--batch", "0"), "0 is not a whole number of at least 1"},
      {with(generate, "--batch", "-1"), "-1 is not a whole number of at least 1"},
      {with(generate, "--batch", "010"), "010 is not a whole number of at least 1"},
      {with(generate, "--batch", "99999999999999999999"),
       "99999999999999999999 is larger than 9223372036854775807"},
      {with(generate, "--batch", "9223372036854775808"),
       "9223372036854775808 is larger than 9223372036854775807"},
      {with(generate, "--page-tokens", "8.5"), "8.5 is not a whole number of at least 1"},
      {with(generate, "--pool-tokens", "x"), "x is not a whole number of at least 1"},
      {with(generate, "--max-tokens", "-1"), "-1 is not a whole number of at least 0"},
      {with(generate, "--max-tokens", "1,00"), "1,00 is not a whole number of at least 0"},
      {with(generate, "--max-tokens", "1.0005k"), "1.0005k is not a whole number of at least 0"},
      {with(generate, "--max-tokens", "1e30"), "1e30 is larger than 9223372036854775807"},
      {with(generate, "--max-tokens", "10000P"), "10000P is larger than 9223372036854775807"},
      {with(generate, "--threads", "4Ki1"), "4Ki1 is not a whole number from 1 to 4096"},
      {with(generate, "--threads", "4k1"), "4k1 is not a whole number from 1 to 4096"},
      {with(generate, "--top-k", "-1"), "-1 is not a whole number of at least 0"},
      {with(generate, "--seed", "-1"), "-1 is not a whole number of at least 0"},
      {with(generate, "--temperature", "-1"), "-1 is not a number of at least 0"},
      {with(generate, "--temperature", "inf"), "inf is not a number of at least 0"},
      {with(generate, "--temperature", "1e39"), "1e39 is too large for a number of 32 bits"},
      {with(generate, "--temperature", "1e400"), "1e400 is too large for a number of 32 bits"},
      {with(generate, "--temperature", "1e-400"), "1e-400 is too small for a number of 32 bits"},
      {with(generate, "--temperature", "x"), "x is not a number of at least 0"},
      {with(generate, "--min-p", "-0.1"), "-0.1 is not a number from 0 to 1"},
      {with(generate, "--temperature", "1e-50"), "1e-50 is too small for a number of 32 bits"},
      {with(generate, "--top-p", "0"), "0 is not a number above 0 and at most 1"},
      {with(generate, "--top-p", "1e-50"), "1e-50 is too small for a number of 32 bits"},
      {with({"attend", "q", "k", "v"}, "--threads", "0"), "0 is not a whole number from 1 to 4096"},
      {with({"attend", "q", "k", "v"}, "--seed", "18446744073709551616"),
       "18446744073709551616 is larger than 18446744073709551615"},
      {with({"attend", "q", "k", "v"}, "--scale", "nan"), "nan is not a number that is finite"},
      {with({"explain"}, "--heads", "0"), "0 is not a whole number of at least 1"},
      {with({"explain"}, "--batch", "-1"), "-1 is not a whole number of at least 0"},
      {with({"explain", "m"}, "--layer", "-1"), "-1 is not a whole number of at least 0"},
      {with({"bench"}, "--threads", "4097"), "4097 is not a whole number from 1 to 4096"},
      {with({"bench"}, "--seconds", "0"), "0 is not a number above 0"},
      {with({"bench"}, "--seconds", "nan"), "nan is not a number above 0"},
      {with({"bench"}, "--seconds", "1e400"), "1e400 is too large for a number of 64 bits"},
      {with({"bench"}, "--seconds", "1e-400"), "1e-400 is too small for a number of 64 bits"},
      {with({"plan", "--here"}, "--threads", "0"), "0 is not a whole number from 1 to 4096"},
      {with({"look", "m"}, "--tokens", "0"), "0 is not a whole number of at least 1"},
      {with({"prune", "m"}, "--points", "0"), "0 is not a whole number of at least 1"},
      {with({"score", "m"}, "--context", "3"), "3 is not a whole number of at least 4"},
  };
  for (const auto& [arguments, expected] : cases) {
    const test::Outcome made = run_program(arguments);
    const std::string& option = arguments[arguments.size() - 2];
    EXPECT_EQ(made.status, cli::kBadUsage) << option;
    EXPECT_EQ(made.err.substr(0, made.err.find('\n')), "polyhead: " + option + ": " + expected);
  }
}

/// Refused for what it is, in digits, by a model with a context of 64.
TEST(NumberChecks, CountsAreReadAsPlanReadsThem) {
  const test::ScratchDirectory folder;
  const std::string model = test::tiny_llama(folder);
  const std::pair<const char*, const char*> counts[] = {
      {"1,000", "1000"},
      {"1_000", "1000"},
      {"2k", "2000"},
      {"2Ki", "2048"},
      {"1.5k", "1500"},
      {"1e3", "1000"},
      {"9223372036854775807", "9223372036854775807"}};
  for (const auto& [written, digits] : counts) {
    for (const char* command : {"look", "prune"}) {
      test::expect_refused({command, model, "--text", "ab", "--tokens", written}, cli::kFailure,
                           std::string("--tokens (") + digits + ") is more than the model's");
    }
  }
  const auto status_at = [&](const char* temperature) {
    return run_program({"generate", model, "--prompt", "a", "--temperature", temperature}).status;
  };
  for (const char* zero : {"0", "0e5", "0.0", "0x0p9"})
    EXPECT_EQ(status_at(zero), cli::kSuccess) << "nothing is too small of " << zero;
  EXPECT_EQ(run_program({"generate", model, "--prompt", "a", "--max-tokens", "0k"}).out, "\n");
}

}  // namespace
}  // namespace polyhead
