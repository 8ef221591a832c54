#include "models/formats/npy_header.hpp"

#include <limits>

#include "models/formats/file_error.hpp"

namespace polyhead::inline v0::formats {
namespace {

constexpr std::size_t kMaxShapeEntries =
    64;  // NumPy's own limit; views hold fewer and are checked later

class HeaderParser {
 public:
  HeaderParser(const std::string& path, std::string_view text) : path_(path), text_(text) {}

  NpyHeader parse() {
    NpyHeader header;
    bool descr = false, order = false, shape = false;
    expect('{');
    while (!take('}')) {
      const std::string key = quote("a key");
      bool& seen = key == "descr" ? descr : key == "fortran_order" ? order : shape;
      if (key != "descr" && key != "fortran_order" && key != "shape")
        refuse("unknown key '" + key + "'");
      if (seen) refuse("key '" + key + "' stands twice");
      seen = true;
      expect(':');
      if (key == "descr")
        header.descr = descr_value();
      else if (key == "fortran_order")
        header.fortran_order = truth_value();
      else
        header.shape = shape_value();
      if (!take(',') && peek() != '}') refuse(unexpected("',' or '}'"));
    }
    if (!descr || !order || !shape)
      refuse("the keys 'descr', 'fortran_order' and 'shape' are not all there");
    skip_space();
    if (at_ < text_.size()) refuse("something follows the dictionary");
    return header;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw FileError(path_, ".npy header: " + what);
  }

  std::string unexpected(const std::string& expected) const {
    if (at_ >= text_.size()) return "ends where " + expected + " was expected";
    const char found = text_[at_];
    const bool printable = found >= ' ' && found <= '~';
    return (printable ? std::string("'") + found + "'" : std::string("an unprintable byte")) +
           " at byte " + std::to_string(at_) + " where " + expected + " was expected";
  }

  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t'))
      ++at_;
  }

  char peek() {
    skip_space();
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  bool take(char wanted) {
    skip_space();
    if (at_ >= text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }

  void expect(char wanted) {
    if (!take(wanted)) refuse(unexpected(std::string("'") + wanted + "'"));
  }

  std::string quote(const std::string& what) {
    const char quote = peek();
    if (quote != '\'' && quote != '"') refuse(unexpected(what + " in quotes"));
    const std::size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos || end - at_ > 64) refuse(what + " in quotes does not end");
    const std::string_view inside = text_.substr(at_ + 1, end - at_ - 1);
    for (const char c : inside) {
      // No name or type needs an escape; refusing them leaves nothing to decode.
      if (c == '\\' || c < ' ' || c > '~')
        refuse(what + " in quotes holds an escape or an unprintable byte");
    }
    at_ = end + 1;
    return std::string(inside);
  }

  std::string descr_value() {
    if (peek() == '[' || peek() == '(')
      refuse("record arrays (a list of fields in 'descr') are not supported");
    return quote("the type in 'descr'");
  }

  bool truth_value() {
    skip_space();
    const std::string_view rest = text_.substr(at_);
    const bool value = rest.starts_with("True");
    if (!value && !rest.starts_with("False")) refuse(unexpected("True or False"));
    at_ += value ? 4 : 5;
    return value;
  }

  std::vector<std::int64_t> shape_value() {
    std::vector<std::int64_t> shape;
    expect('(');
    while (!take(')')) {
      if (shape.size() == kMaxShapeEntries) refuse("the shape has more than 64 axes");
      shape.push_back(extent());
      const bool comma = take(',');
      // (3) is a number to Python, not a tuple: NumPy writes (3,).
      if (!comma && (peek() != ')' || shape.size() == 1)) refuse(unexpected("',' in the shape"));
    }
    return shape;
  }

  std::int64_t extent() {
    if (peek() == '-') refuse("the shape has a negative extent");
    std::int64_t value = 0;
    const std::size_t begin = at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
      const int digit = text_[at_] - '0';
      if (value > (std::numeric_limits<std::int64_t>::max() - digit) / 10)
        refuse("an extent of the shape is over 2^63");
      value = value * 10 + digit;
      ++at_;
    }
    if (at_ == begin) refuse(unexpected("an extent of the shape"));
    if (at_ - begin > 1 && text_[begin] == '0') refuse("an extent of the shape begins with 0");
    if (at_ < text_.size() && text_[at_] == 'L') ++at_;  // Python 2's long integers, in old files
    return value;
  }

  const std::string& path_;
  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

NpyHeader parse_npy_header(const std::string& path, std::string_view text) {
  return HeaderParser(path, text).parse();
}

}  // namespace polyhead::inline v0::formats
