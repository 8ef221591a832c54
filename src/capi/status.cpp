#include "capi/status.hpp"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <iterator>
#include <string>
#include <string_view>

#include "polyhead/version.h"

namespace polyhead::inline v0::capi {
namespace {

constexpr std::size_t kMessageBytes = 4096;  // longer than any message without a caller's path
thread_local char last_message[kMessageBytes] = "";

/// What the library calls an argument, and what C does where that is another name.
struct Renamed {
  std::string_view library, c;
};
constexpr Renamed kRenamed[] = {
    {"modifiers.alibi has both slopes and use_default_slopes",
     "modifiers.alibi and modifiers.alibi_slopes are both given"},
    {"modifiers.alibi.slopes", "modifiers.alibi_slopes"},
    {"modifiers.dropout.probability", "modifiers.dropout"},
    {"modifiers.dropout.sequence_ids", "modifiers.sequence_ids"},
    {"maps: bins (", "maps: map_q_bins and map_kv_bins ("},
    {"KvCache: type is", "KvCache: element_type is"},
    {"PagedCache: type is", "PagedCache: element_type is"},
    {"SlidingCache: type is", "SlidingCache: element_type is"},
    {"rope.truncate (0)", "rope.no_truncate (1)"},
    {"is neither -1 nor below", "is not below"},
    {"use_projections is false", "no_projections is 1"},
    {"extend()", "polyhead_paged_sequence_extend"},
    {"statistics.entropy", "entropy"},
    {"statistics.max_weight", "max_weight"},
    {"statistics.max_key", "max_key"},
    {"Align::end, Align::start", "POLYHEAD_ALIGN_END, POLYHEAD_ALIGN_START"},
};

void append(std::size_t& used, std::string_view text) noexcept {
  used += text.copy(last_message + used, kMessageBytes - 1 - used);
  last_message[used] = '\0';
}

/// Appends what the library says, in C's names, which stand there as words.
void append_renamed(std::size_t& used, std::string_view text) noexcept {
  bool begins = true;
  while (!text.empty()) {
    const auto* const renamed = std::ranges::find_if(
        kRenamed, [&](const Renamed& name) { return begins && text.starts_with(name.library); });
    const bool found = renamed != std::end(kRenamed);
    append(used, found ? renamed->c : text.substr(0, 1));
    begins = text.front() == ' ' || text.front() == '(';
    text.remove_prefix(found ? renamed->library.size() : 1);
  }
}

/// Appends what is said of a file: its path is the caller's, whatever it is called, and where it is
/// too long something within it is left out, since the reason stands behind it.
void append_of_file(std::size_t& used, std::string_view text) noexcept {
  constexpr std::string_view kCut = " [...] ";
  constexpr std::size_t kHalf = (kMessageBytes - 1 - kCut.size()) / 2;
  if (text.size() < kMessageBytes) return append(used, text);
  const auto within_a_character = [&](std::size_t at) {
    return (static_cast<unsigned char>(text[at]) & 0xc0u) == 0x80u;
  };
  std::size_t head = kHalf, tail = text.size() - kHalf;
  while (head > kHalf - 4 && within_a_character(head)) --head;
  while (tail < text.size() - kHalf + 4 && within_a_character(tail)) ++tail;
  append(used, text.substr(0, head));
  append(used, kCut);
  append(used, text.substr(tail));
}

/// Of load_... and save_..., the calls that take paths.
bool is_of_file(std::string_view text) {
  return text.starts_with("load_") || text.starts_with("save_") ||
         text.starts_with("polyhead_paged_sequences_");
}

}  // namespace

void refuse(const char* format, ...) {
  va_list values, again;
  va_start(values, format);
  va_copy(again, values);
  std::string message(static_cast<std::size_t>(std::vsnprintf(nullptr, 0, format, values)), '\0');
  std::vsnprintf(message.data(), message.size() + 1, format, again);
  va_end(again);
  va_end(values);
  throw InvalidArgument(message);
}

polyhead_status record(polyhead_status status, const char* call, const char* format, ...) noexcept {
  int used = 0;
  if (call) used = std::snprintf(last_message, kMessageBytes, "%s: ", call);
  va_list values;
  va_start(values, format);
  std::vsnprintf(last_message + used, kMessageBytes - static_cast<std::size_t>(used), format,
                 values);
  va_end(values);
  return status;
}

polyhead_status record_refusal(const char* message) noexcept {
  const std::string_view text = message;
  std::size_t used = 0;
  if (is_of_file(text))
    append_of_file(used, text);
  else
    append_renamed(used, text);
  return POLYHEAD_INVALID_ARGUMENT;
}

}  // namespace polyhead::inline v0::capi

const char* polyhead_last_error(void) { return polyhead::capi::last_message; }

const char* polyhead_version(void) { return POLYHEAD_VERSION; }
