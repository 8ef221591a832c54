// Text that arrives as bytes of tokens, written as whole characters.
#pragma once

#include <ostream>
#include <string>
#include <string_view>

namespace polyhead::cli {

/// Writes UTF-8 as soon as characters are whole. What can be no part of a character becomes U+FFFD;
/// for a terminal, what steers one other than newline and tab becomes \xNN (escape_controls).
/// write() and finish() throw std::runtime_error where the stream takes no more.
class TextStream {
 public:
  TextStream() = default;  ///< writes nowhere: text() alone is wanted
  TextStream(std::ostream& out, bool terminal) : out_(&out), terminal_(terminal) {}
  void write(std::string_view bytes);
  void finish();  ///< what is still incomplete becomes U+FFFD

  const std::string& text() const { return text_; }  ///< all that was written, unescaped

 private:
  void put(std::string_view character);

  std::ostream* out_ = nullptr;
  bool terminal_ = false;
  std::string pending_, text_;
};

/// Text with what can be no part of a character as U+FFFD.
std::string whole_characters(std::string_view bytes);

}  // namespace polyhead::cli
