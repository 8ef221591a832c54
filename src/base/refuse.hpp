// Building the message of a refused argument: "call: argument (found) what was expected".
#pragma once

#include <cstdint>
#include <sstream>

#include "polyhead/error.h"
#include "polyhead/types.h"

namespace polyhead::inline v0::base {

/// How many axes a view has: "1 axis", "3 axes", or what is wrong with the lists it was made of.
class Axes {
 public:
  explicit Axes(const detail::Layout& of) : count_(of.axes), impossible_(of.too_many_axes) {}

  friend std::ostream& operator<<(std::ostream& to, Axes axes) {
    if (axes.impossible_)
      return to << "more than " << kMaxAxes << " axes, or not as many strides as extents";
    return to << axes.count_ << (axes.count_ == 1 ? " axis" : " axes");
  }

 private:
  int count_;
  bool impossible_;
};

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
