#include "cli/console.hpp"

#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <stdexcept>

namespace polyhead::cli {
namespace {

const char* escape_of(Style style) {
  switch (style) {
    case Style::heading:
      return "\x1b[1m";
    case Style::faint:
      return "\x1b[2m";
    case Style::good:
      return "\x1b[32m";
    case Style::bad:
      return "\x1b[31m";
    case Style::key:
      return "\x1b[36m";
  }
  return "";
}

bool set_and_not_empty(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0';
}

}  // namespace

std::string Console::styled(Style style, std::string_view text) const {
  if (!out_colour) return std::string(text);
  return escape_of(style) + std::string(text) + "\x1b[0m";
}

Console standard_console() {
  const char* term = std::getenv("TERM");
  const bool dumb = term != nullptr && std::string_view(term) == "dumb";
  const bool out_terminal = ::isatty(STDOUT_FILENO) == 1;
  const bool colour = out_terminal && !set_and_not_empty("NO_COLOR") && !dumb;
  return {std::cout, std::cerr, colour, ::isatty(STDERR_FILENO) == 1 && !dumb, out_terminal};
}

void flush(std::ostream& out) {
  if (!out.flush()) throw std::runtime_error("standard output could not be written");
}

void Progress::show(const std::string& line) {
  if (!console_.err_terminal) return;
  console_.err << "\r\x1b[K" << line << std::flush;
  shown_ = true;
}

void Progress::clear() {
  if (shown_) console_.err << "\r\x1b[K" << std::flush;
  shown_ = false;
}

}  // namespace polyhead::cli
