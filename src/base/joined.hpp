// Lists as messages have them: "5, 7, 7".
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace polyhead::inline v0::base {

/// The text of each entry (`text_of`: a function or a member of it; itself where left out), one
/// after the other, `between` each two.
template <class Entries, class TextOf = std::identity>
std::string joined(const Entries& entries, std::string_view between = ", ", TextOf text_of = {}) {
  std::string text;
  bool first = true;
  for (const auto& entry : entries) {
    if (!first) text.append(between);
    text.append(std::invoke(text_of, entry));
    first = false;
  }
  return text;
}

}  // namespace polyhead::inline v0::base
