#include "models/tokenizers/split.hpp"

#include <array>
#include <cstddef>
#include <utility>

#include "models/tokenizers/unicode.hpp"

namespace polyhead::inline v0::models {
namespace {

enum class Class : std::uint8_t { letter, number, space, other };

struct Classified {
  std::int32_t code;
  Class is;
};

Class classify(std::int32_t code) {
  if (is_letter(code)) return Class::letter;
  if (is_number(code)) return Class::number;
  return is_space(code) ? Class::space : Class::other;
}

std::array<Class, 128> classify_ascii() {
  std::array<Class, 128> classes{};
  for (std::size_t i = 0; i < classes.size(); ++i)
    classes[i] = classify(static_cast<std::int32_t>(i));
  return classes;
}

/// The characters of one text and where each begins.
class Scan {
 public:
  explicit Scan(std::string_view text) : text_(text) {
    static const std::array<Class, 128> ascii = classify_ascii();
    characters_.reserve(text.size());
    begins_.reserve(text.size() + 1);
    for (std::size_t at = 0; at < text.size();) {
      const Character c = first_character(text.substr(at));
      const bool plain = c.code >= 0 && c.code < 128;
      characters_.push_back(
          {c.code, plain ? ascii[static_cast<std::size_t>(c.code)] : classify(c.code)});
      begins_.push_back(static_cast<std::uint32_t>(at));
      at += c.length;
    }
    begins_.push_back(static_cast<std::uint32_t>(text.size()));
  }

  std::size_t size() const { return characters_.size(); }
  std::string_view view(std::size_t from, std::size_t to) const {
    return text_.substr(begins_[from], begins_[to] - begins_[from]);
  }
  std::int32_t code(std::size_t i) const { return i < size() ? characters_[i].code : -1; }
  bool is(std::size_t i, Class wanted) const { return i < size() && characters_[i].is == wanted; }
  bool is_line_end(std::size_t i) const { return code(i) == '\r' || code(i) == '\n'; }

  /// The end of the run of `wanted` that begins at i, at most `limit`.
  std::size_t run(std::size_t i, Class wanted, std::size_t limit) const {
    while (i < limit && is(i, wanted)) ++i;
    return i;
  }
  std::size_t run(std::size_t i, Class wanted) const { return run(i, wanted, size()); }

 private:
  std::string_view text_;
  std::vector<Classified> characters_;
  std::vector<std::uint32_t> begins_;
};

std::int32_t fold(std::int32_t code) {
  if (code >= 'A' && code <= 'Z') return code - 'A' + 'a';
  return code == 0x17f ? 's' : code;  // long s, the one other letter that folds to one of these
}

/// 's 't 're 've 'm 'll 'd: characters at i, or 0.
std::size_t contraction(const Scan& scan, std::size_t i, bool any_case) {
  if (scan.code(i) != '\'') return 0;
  const auto letter = [&](std::size_t at) {
    return any_case ? fold(scan.code(at)) : scan.code(at);
  };
  const std::int32_t first = letter(i + 1), second = letter(i + 2);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  const bool two = (first == 'r' && second == 'e') || (first == 'v' && second == 'e') ||
                   (first == 'l' && second == 'l');
  return two ? 3 : 0;
}

/// \s+(?!\S)|\s+ : all of a run at the end of the text, else all but its last, else that one.
std::size_t end_of_spaces(std::size_t i, std::size_t run_end, std::size_t limit) {
  return run_end == limit || run_end == i + 1 ? run_end : run_end - 1;
}

/// The end of gpt2's word at i, in a text that ends at `limit`.
std::size_t end_of_gpt2(const Scan& scan, std::size_t i, std::size_t limit) {
  if (const std::size_t length = contraction(scan, i, false)) return i + length;
  const std::size_t body = i + (scan.code(i) == ' ' && i + 1 < limit ? 1 : 0);
  for (const Class c : {Class::letter, Class::number, Class::other}) {
    if (scan.is(body, c)) return scan.run(body, c, limit);
  }
  return end_of_spaces(i, scan.run(i, Class::space, limit), limit);
}

/// \s*[\r\n]+ where the run of spaces has a line's end, else \s+(?!\S)|\s+.
std::size_t end_of_blank(const Scan& scan, std::size_t i) {
  const std::size_t run_end = scan.run(i, Class::space);
  for (std::size_t last = run_end; last > i; --last) {
    if (scan.is_line_end(last - 1)) return last;
  }
  return end_of_spaces(i, run_end, scan.size());
}

/// The end of the word at i of llama_bpe, and of qwen2 (max_digits 1).
std::size_t end_of_llama(const Scan& scan, std::size_t i, std::size_t max_digits) {
  if (const std::size_t length = contraction(scan, i, true)) return i + length;
  if (scan.is(i, Class::letter)) return scan.run(i, Class::letter);
  if (scan.is(i, Class::number)) return scan.run(i, Class::number, i + max_digits);
  if (!scan.is_line_end(i) && scan.is(i + 1, Class::letter)) return scan.run(i + 1, Class::letter);
  const std::size_t body = i + (scan.code(i) == ' ' ? 1 : 0);
  if (scan.is(body, Class::other)) {
    std::size_t end = scan.run(body, Class::other);
    while (scan.is_line_end(end)) ++end;
    return end;
  }
  return end_of_blank(scan, i);
}

}  // namespace

std::optional<Split> split_named(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, Split>, 4> kNames{
      {{"gpt2", Split::gpt2},
       {"smollm", Split::smollm},
       {"llama-bpe", Split::llama_bpe},
       {"qwen2", Split::qwen2}}};
  for (const auto& [known, split] : kNames) {
    if (known == name) return split;
  }
  return std::nullopt;
}

std::vector<std::string_view> split_words(Split split, std::string_view text) {
  const Scan scan(text);
  std::vector<std::string_view> words;
  std::size_t limit = split == Split::smollm ? 0 : scan.size();  // smollm: the next number
  for (std::size_t i = 0, end = 0; i < scan.size(); i = end) {
    if (split == Split::smollm && i >= limit) {
      while (limit < scan.size() && !scan.is(limit, Class::number)) ++limit;
      if (i == limit) ++limit;
    }
    switch (split) {
      case Split::gpt2:
      case Split::smollm:
        end = end_of_gpt2(scan, i, limit);
        break;
      case Split::llama_bpe:
        end = end_of_llama(scan, i, 3);
        break;
      case Split::qwen2:
        end = end_of_llama(scan, i, 1);
        break;
    }
    words.push_back(scan.view(i, end));
  }
  return words;
}

}  // namespace polyhead::inline v0::models
