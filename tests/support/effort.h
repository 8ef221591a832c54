// How much of a seeded grid a test walks.
#pragma once

#include <cstdlib>
#include <string_view>

namespace polyhead::test {

/// POLYHEAD_TEST_EFFORT: "smoke" under sanitizers and emulators, "full" in `scripts/test --long`,
/// else normal.
enum class Effort { smoke, normal, full };

inline Effort effort() {
  const char* text = std::getenv("POLYHEAD_TEST_EFFORT");
  const std::string_view name = text ? text : "";
  if (name == "smoke") return Effort::smoke;
  return name == "full" ? Effort::full : Effort::normal;
}

/// The count of cases for the effort asked for.
inline int case_count(int smoke, int normal, int full) {
  switch (effort()) {
    case Effort::smoke:
      return smoke;
    case Effort::normal:
      return normal;
    case Effort::full:
      return full;
  }
  return normal;
}

}  // namespace polyhead::test
