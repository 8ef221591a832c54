// Where the program writes: results to `out`, progress and messages to `err`.
#pragma once

#include <ostream>
#include <string>
#include <string_view>

namespace polyhead::cli {

enum class Style { heading, faint, good, bad, key };

struct Console {
  std::ostream& out;
  std::ostream& err;
  bool out_colour = false;    ///< escape sequences may be written to `out`
  bool err_terminal = false;  ///< a person watches `err`: progress may be shown there
  bool out_terminal = false;  ///< `out` is a terminal: control characters of files are escaped

  /// `text` in a style, or just `text` where `out` takes no colour.
  std::string styled(Style style, std::string_view text) const;
};

/// The process's own streams. Colour needs a terminal, an unset or empty NO_COLOR (no-color.org)
/// and a TERM other than "dumb".
Console standard_console();

/// Sends what was written on its way. Throws std::runtime_error where it does not arrive (the
/// reader is gone, the disk is full), so that nobody goes on computing for nobody.
void flush(std::ostream& out);

/// One line of progress on a terminal, rewritten in place and removed at the end; nothing
/// elsewhere.
class Progress {
 public:
  explicit Progress(const Console& console) : console_(console) {}
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(const std::string& line);
  void clear();

 private:
  const Console& console_;
  bool shown_ = false;
};

}  // namespace polyhead::cli
