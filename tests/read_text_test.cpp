// How much of a text the program reads.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "cli/model_options.hpp"
#include "models/formats/file_error.hpp"

namespace polyhead {
namespace {

TEST(ReadText, EndsWhereATextIsTooLong) {
  const std::string text(200'000, 'a');  // more than one piece
  std::istringstream all(text), most(text);
  EXPECT_EQ(cli::read_all(all, "text", text.size()), text);
  try {
    cli::read_all(most, "text", text.size() - 1);
    FAIL() << "read it all";
  } catch (const formats::FileError& error) {
    EXPECT_STREQ(error.what(), "text: has more than 199,999 bytes, which is no text to run");
  }
}

TEST(ReadText, OfADeviceWithoutEndStopsAtOnce) {
  std::ifstream zeros("/dev/zero", std::ios::binary);
  if (!zeros.is_open()) GTEST_SKIP() << "no /dev/zero here";
  EXPECT_THROW(cli::read_all(zeros, "/dev/zero", 1000), formats::FileError);
}

}  // namespace
}  // namespace polyhead
