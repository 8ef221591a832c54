#include "polyhead/version.h"

#include <gtest/gtest.h>

#include <string>

namespace {

TEST(Version, LibraryAndHeadersAgree) {
  EXPECT_STREQ(polyhead::version(), POLYHEAD_VERSION);
  EXPECT_EQ(polyhead::version(), std::to_string(POLYHEAD_VERSION_MAJOR) + "." +
                                     std::to_string(POLYHEAD_VERSION_MINOR) + "." +
                                     std::to_string(POLYHEAD_VERSION_PATCH));
}

}  // namespace
