#include "models/tokenizers/unicode.hpp"

#include <utf8proc.h>

#include <algorithm>

namespace polyhead::inline v0::models {
namespace {

utf8proc_category_t category(std::int32_t code) { return utf8proc_category(code); }

bool within(std::int32_t code, utf8proc_category_t first, utf8proc_category_t last) {
  return code >= 0 && category(code) >= first && category(code) <= last;
}

int combining_class(std::int32_t code) { return utf8proc_get_property(code)->combining_class; }

/// Marks behind a starter in the order of their classes. utf8proc's own sorting is quadratic in the
/// length of a run of marks, and any text may come in here.
void order_marks(std::vector<std::int32_t>& codes) {
  for (std::size_t i = 0; i < codes.size();) {
    std::size_t end = i;
    while (end < codes.size() && combining_class(codes[end]) != 0) ++end;
    std::stable_sort(
        codes.begin() + static_cast<std::ptrdiff_t>(i),
        codes.begin() + static_cast<std::ptrdiff_t>(end),
        [](std::int32_t a, std::int32_t b) { return combining_class(a) < combining_class(b); });
    i = end + 1;
  }
}

void append_composed(std::string& text, const std::vector<std::int32_t>& codes) {
  std::vector<std::int32_t> buffer = decompose(codes);
  const auto length =
      utf8proc_normalize_utf32(buffer.data(), static_cast<utf8proc_ssize_t>(buffer.size()),
                               static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  for (utf8proc_ssize_t i = 0; i < length; ++i)
    append_utf8(text, buffer[static_cast<std::size_t>(i)]);
}

}  // namespace

Character first_character(std::string_view text) {
  utf8proc_int32_t code = -1;
  const auto length =
      utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                       static_cast<utf8proc_ssize_t>(std::min<std::size_t>(text.size(), 4)), &code);
  if (length <= 0) return {};
  return {code, static_cast<std::uint32_t>(length)};
}

void append_utf8(std::string& text, std::int32_t code) {
  utf8proc_uint8_t bytes[4];
  const auto length = utf8proc_encode_char(code, bytes);
  text.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(length));
}

bool is_letter(std::int32_t code) {
  return within(code, UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LO);
}

bool is_number(std::int32_t code) {
  return within(code, UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NO);
}

bool is_punctuation(std::int32_t code) {
  return within(code, UTF8PROC_CATEGORY_PC, UTF8PROC_CATEGORY_PO);
}

bool is_nonspacing_mark(std::int32_t code) {
  return within(code, UTF8PROC_CATEGORY_MN, UTF8PROC_CATEGORY_MN);
}

bool is_control(std::int32_t code) {
  return within(code, UTF8PROC_CATEGORY_CC, UTF8PROC_CATEGORY_CO);
}

bool is_space(std::int32_t code) {
  return (code >= 0x09 && code <= 0x0d) || code == 0x85 ||
         within(code, UTF8PROC_CATEGORY_ZS, UTF8PROC_CATEGORY_ZP);
}

int columns_of(std::int32_t code) { return code < 0 ? 1 : utf8proc_charwidth(code); }

std::vector<std::int32_t> decompose(const std::vector<std::int32_t>& codes) {
  std::vector<std::int32_t> out;
  out.reserve(codes.size() + codes.size() / 4);
  for (const std::int32_t code : codes) {
    if (code < 0xc0) {  // nothing below decomposes
      out.push_back(code);
      continue;
    }
    utf8proc_int32_t parts[8];  // canonical decompositions have at most four
    int boundary = 0;
    const auto count = utf8proc_decompose_char(
        code, parts, 8, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE),
        &boundary);
    if (count < 1 || count > 8) {
      out.push_back(code);
    } else {
      out.insert(out.end(), parts, parts + count);
    }
  }
  order_marks(out);
  return out;
}

std::string compose(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  std::vector<std::int32_t> codes;
  for (std::size_t at = 0; at < text.size();) {
    const Character c = first_character(text.substr(at));
    if (c.code >= 0) {
      codes.push_back(c.code);
    } else {
      append_composed(out, codes);
      codes.clear();
      out += text[at];
    }
    at += c.length;
  }
  append_composed(out, codes);
  return out;
}

void append_lower(std::vector<std::int32_t>& codes, std::int32_t code) {
  if (code == 0x130) {  // the only character whose lower case is longer: i and a dot above
    codes.insert(codes.end(), {'i', 0x307});
  } else {
    codes.push_back(utf8proc_tolower(code));
  }
}

}  // namespace polyhead::inline v0::models
