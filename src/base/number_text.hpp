// Numbers as messages and files print them.
#pragma once

#include <charconv>
#include <concepts>
#include <string>

namespace polyhead::inline v0::base {

/// With no more digits than tell it from others of its type.
template <std::floating_point T>
std::string number_text(T value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

}  // namespace polyhead::inline v0::base
