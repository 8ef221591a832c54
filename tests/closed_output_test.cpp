// Standard output that takes no more: a closed pipe where SIGPIPE is ignored, a full disk.
#include <gtest/gtest.h>

#include <ostream>
#include <sstream>
#include <streambuf>
#include <string>
#include <vector>

#include "cli/command.hpp"
#include "cli/exit_codes.hpp"
#include "support/scratch_directory.hpp"
#include "support/tiny_llama.hpp"

namespace polyhead {
namespace {

/// Takes so many characters.
class Closing : public std::streambuf {
 public:
  explicit Closing(int characters) : left_(characters) {}

 private:
  int_type overflow(int_type c) override { return left_-- > 0 ? c : traits_type::eof(); }
  int left_;
};

struct Told {
  int status;
  std::string err;
};

Told run_until_closed(const std::vector<std::string>& arguments, int characters) {
  Closing closing(characters);
  std::ostream out(&closing);
  std::ostringstream err;
  const int status = cli::run_program(arguments, {out, err, false, false});
  return {status, err.str()};
}

// What a run says of its speed comes after it.
TEST(ClosedOutput, NobodyGoesOnGeneratingForNobody) {
  const test::ScratchDirectory folder, saved;
  const std::string model = test::tiny_llama(folder);
  const std::string prompts = folder.write("prompts.txt", "ab\ncd\n"), file = saved.file("a.kv");
  const std::vector<std::vector<std::string>> runs = {
      {"generate", model, "--prompt", "abcdefgh"},
      {"generate", model, "--prompt", "abcdefgh", "--page-tokens", "8", "--save-cache", file},
      {"generate", model, "--prompts", prompts, "--batch", "1"}};
  for (const std::vector<std::string>& run : runs) {
    const Told told = run_until_closed(run, 0);
    EXPECT_EQ(told.status, cli::kFailure) << run[2];
    EXPECT_EQ(told.err, "polyhead: standard output could not be written\n") << run[2];
  }
  EXPECT_EQ(saved.file_count(), 0u);
}

TEST(ClosedOutput, WhatIsPrintedAtTheEndFailsAsWell) {
  const test::ScratchDirectory folder;
  const std::string model = test::tiny_llama(folder);
  for (const std::vector<std::string>& run : std::vector<std::vector<std::string>>{
           {"score", model, "--text", "abab"}, {"--version"}, {"explain"}}) {
    const Told told = run_until_closed(run, 3);
    EXPECT_EQ(told.status, cli::kFailure) << run[0];
    EXPECT_EQ(told.err, "polyhead: standard output could not be written\n") << run[0];
  }
}

}  // namespace
}  // namespace polyhead
