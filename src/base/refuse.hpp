// Building the message of a refused argument: "call: argument (found) what was expected".
#pragma once

#include <sstream>
#include <string>

#include "polyhead/error.h"

namespace polyhead::inline v0::base {

/// "1 axis", "3 axes".
struct Axes {
  int count;
};
inline std::ostream& operator<<(std::ostream& to, Axes axes) {
  return to << axes.count << (axes.count == 1 ? " axis" : " axes");
}

/// Throws InvalidArgument with "call: " and the parts after it, streamed one by one. Allocates only
/// here, on failure.
template <class... Parts>
[[noreturn, gnu::cold, gnu::noinline]] void refuse(const char* call, const Parts&... parts) {
  std::ostringstream message;
  message << call << ": ";
  (message << ... << parts);
  throw InvalidArgument(message.str());
}

}  // namespace polyhead::inline v0::base
