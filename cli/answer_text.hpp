// The text of an answer as its tokens come, up to a text that ends it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/stream_text.hpp"

namespace polyhead::cli {

/// Hands bytes on to a stream up to the first of some stop texts that is complete, of which nothing
/// is written: what may become one waits until it cannot. Where tokens begin and end changes
/// nothing; of stop texts that are complete with the same byte the longest counts.
class AnswerText {
 public:
  AnswerText(TextStream to, std::vector<std::string> stops)
      : to_(std::move(to)), stops_(std::move(stops)) {}

  /// False where a stop text is complete: what comes then is left out. Throws as TextStream does.
  bool write(std::string_view bytes);
  void finish();  ///< what waits becomes no stop text

  bool stopped() const { return stopped_; }
  const std::string& text() const { return to_.text(); }

 private:
  std::size_t complete() const;
  std::size_t may_become() const;

  TextStream to_;
  std::vector<std::string> stops_;
  std::string held_;  ///< what was not handed on yet
  bool stopped_ = false;
};

}  // namespace polyhead::cli
