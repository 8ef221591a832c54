#include "cli/answer_text.hpp"

#include <algorithm>

namespace polyhead::cli {

/// Bytes at the end of what is held that are the longest stop text there; 0 where none is.
std::size_t AnswerText::complete() const {
  std::size_t longest = 0;
  for (const std::string& stop : stops_) {
    if (held_.ends_with(stop)) longest = std::max(longest, stop.size());
  }
  return longest;
}

/// Bytes at the end of what is held that a stop text begins with.
std::size_t AnswerText::may_become() const {
  std::size_t longest = 0;
  const std::string_view held = held_;
  for (const std::string& stop : stops_) {
    for (std::size_t size = std::min(stop.size() - 1, held.size()); size > longest; --size) {
      if (held.ends_with(std::string_view(stop).substr(0, size))) longest = size;
    }
  }
  return longest;
}

bool AnswerText::write(std::string_view bytes) {
  if (stopped_) return false;
  for (const char byte : bytes) {  // one by one: where tokens end changes nothing
    held_ += byte;
    const std::size_t stop = complete();
    if (stop == 0) continue;
    held_.resize(held_.size() - stop);
    to_.write(held_);
    held_.clear();
    stopped_ = true;
    return false;
  }
  const std::size_t ready = held_.size() - may_become();
  to_.write(std::string_view(held_).substr(0, ready));
  held_.erase(0, ready);
  return true;
}

void AnswerText::finish() {
  to_.write(held_);
  held_.clear();
  to_.finish();
}

}  // namespace polyhead::cli
