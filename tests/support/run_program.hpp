// The program run in this process, as if from a pipe.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "cli/command.hpp"
#include "cli/exit_codes.hpp"
#include "support/json.hpp"

namespace polyhead::test {

struct Outcome {
  int status = 0;
  std::string out, err;
};

inline Outcome run_program(const std::vector<std::string>& arguments) {
  std::ostringstream out, err;
  const int status = cli::run_program(arguments, {out, err, false, false});
  return {status, out.str(), err.str()};
}

/// Refused with this status, nothing printed, and `because` within the message.
inline void expect_refused(const std::vector<std::string>& arguments, int status,
                           const std::string& because) {
  const Outcome made = run_program(arguments);
  EXPECT_EQ(made.status, status) << made.err;
  EXPECT_EQ(made.out, "");
  EXPECT_TRUE(made.err.starts_with("polyhead: ")) << made.err;
  EXPECT_NE(made.err.find(because), std::string::npos) << made.err;
}

/// What --json prints; null, and the test fails, where it does not succeed.
inline nlohmann::json run_program_json(std::vector<std::string> arguments) {
  arguments.emplace_back("--json");
  const Outcome made = run_program(arguments);
  EXPECT_EQ(made.status, cli::kSuccess) << made.err;
  return made.status == cli::kSuccess ? json_of(made.out) : nlohmann::json();
}

}  // namespace polyhead::test
