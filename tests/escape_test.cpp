// What arguments, files and models say can steer neither a terminal nor what reads a page.
#include "cli/escape.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/curve_svg.hpp"
#include "support/run_program.hpp"
#include "support/scratch_directory.hpp"

namespace polyhead {
namespace {

TEST(Escape, MarkupIsUtf8) {
  EXPECT_EQ(cli::text_for_markup("a<b & c>\x1b[2J"), "a&lt;b &amp; c&gt;[2J");
  EXPECT_EQ(cli::text_for_markup("caf\xc3\xa9 \xe2\x82\xac"), "caf\xc3\xa9 \xe2\x82\xac");
  const std::string replacement = "\xef\xbf\xbd";
  EXPECT_EQ(cli::text_for_markup("\xff-\xc3-\xe2\x82"),
            replacement + "-" + replacement + "-" + replacement);
  EXPECT_EQ(cli::text_for_markup("\xed\xa0\x80").find("\xed"), std::string::npos) << "a surrogate";
  EXPECT_NE(cli::curve_svg({"model\xff", "x", "y", {}}).find("<title>model" + replacement + "<"),
            std::string::npos);
  EXPECT_EQ(cli::json_for_script("</script>\xff"), "\"\\u003c/script>" + replacement + "\"");
}

TEST(Escape, RefusalsOfArgumentsDoNotSteerATerminal) {
  const std::string clear = "\x1b[2J\x07";
  const test::ScratchDirectory folder;
  const std::string json = folder.write("a.json", "{\"tokens\": \"" + clear + "\xc2\x9b\"}");
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{clear},
                                             {"explain", clear},
                                             {"explain", "--" + clear},
                                             {"explain", "--heads", clear},
                                             {"explain", "--query", clear},
                                             {"explain", json},
                                             {"explain", clear + ".json"},
                                             {"plan", clear},
                                             {"plan", "gpt2", "--context", clear},
                                             {"plan", "gpt2", "--machine", clear},
                                             {"plan", json},
                                             {"attend", clear, clear, clear},
                                             {"generate", clear, "--prompt", "a"},
                                             {"look", clear, "--text", "a", "--layers=" + clear}}) {
    const test::Outcome made = test::run_program(arguments);
    EXPECT_NE(made.status, cli::kSuccess) << arguments[0];
    for (const char steers : {'\x1b', '\x07', '\x9b'})
      EXPECT_EQ(made.err.find(steers), std::string::npos) << made.err;
  }
}

// A parser quotes what it read last.
TEST(Escape, WhatIsNoJsonIsNotPrintedAtLength) {
  const test::ScratchDirectory folder;
  const std::string json = folder.write("config.json", "{\"a\": \"" + std::string(100'000, 'x'));
  const test::Outcome made = test::run_program({"plan", json});
  EXPECT_EQ(made.status, cli::kFailure);
  EXPECT_LT(made.err.size(), 600u);
  EXPECT_NE(made.err.find("is not JSON: "), std::string::npos) << made.err;
}

}  // namespace
}  // namespace polyhead
