// Building the message of a refused argument: "call: argument (found) what was expected".
#pragma once

#include <cstdint>
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

/// Refuses a size of a configuration that is not within least .. most.
inline void check_size(const char* call, const char* name, std::int64_t size, std::int64_t least,
                       std::int64_t most) {
  if (size < least || size > most)
    refuse(call, name, " (", size, ") is not within ", least, " .. ", most);
}

}  // namespace polyhead::inline v0::base
