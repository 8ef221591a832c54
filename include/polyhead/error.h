// What the library throws when it refuses a call.
#pragma once

#include <stdexcept>
#include <string>

#pragma GCC visibility push(default)
namespace polyhead::inline v0 {

/// A refused argument. The message names the call, the argument, what was found and what was
/// expected, for example "attention: q_heads (9) is not a multiple of kv_heads (4)". Nothing has
/// been written by then.
class InvalidArgument : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

}  // namespace polyhead::inline v0
#pragma GCC visibility pop
