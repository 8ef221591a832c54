#include "cli/mask_text.hpp"

#include <algorithm>

#include "cli/arrays.hpp"

namespace polyhead::cli {
namespace {

constexpr std::int64_t kMostIds = 16;  // documents' ids side by side before they are cut

std::int64_t integer(const ConstView& view, std::int64_t sequence, std::int64_t token = -1) {
  if (view.layout.extents[0] == 0) return 0;
  const std::int64_t row = std::min(sequence, view.layout.extents[0] - 1);  // of 1: for all alike
  const std::int64_t index[] = {row, token};
  return integer_element(view, {index, token < 0 ? 1u : 2u});
}

std::string keys(std::int64_t count) {
  return std::to_string(count) + (count == 1 ? " key" : " keys");
}

/// Where queries stand among keys, where that is not plain.
std::string standing(const Mask& mask, const MaskOf& of) {
  if (of.q_start) return "; the first query stands at position " + std::to_string(*of.q_start);
  const bool plain = of.q_len == of.kv_len && !mask.kv_lengths.given() && !mask.q_lengths.given();
  if (plain || mask.align == Align::unstated) return "";
  return mask.align == Align::end ? "; the last query stands at the last key"
                                  : "; the first query stands at the first key";
}

std::string causal_line(const Mask& mask, const MaskOf& of) {
  const std::int64_t prefix =
      mask.prefix_lengths.given() ? integer(mask.prefix_lengths, of.batch) : mask.prefix_length;
  if (prefix > 0) {
    return "prefix: every query sees the first " + keys(prefix) +
           ", beyond them those up to its own position" + standing(mask, of);
  }
  const std::string stands = standing(mask, of);
  if (of.q_len == of.kv_len && stands.empty())
    return "causal: a token sees itself and the tokens before it";
  return "causal: a query sees the keys up to its own position" + stands;
}

std::string window_line(const Mask& mask, const MaskOf& of) {
  const auto end = [](std::int64_t distance, const char* side, const char* unbounded) {
    if (distance < 0) return std::string(unbounded);
    return distance == 0 ? std::string("its own position") : std::to_string(distance) + side;
  };
  std::string line = "window: a query sees the keys from " +
                     end(mask.left, " before its position", "the first one") + " to " +
                     end(mask.right, " after it", "the last one");
  if (mask.first_tokens > 0) line += ", and the first " + keys(mask.first_tokens);
  return line + standing(mask, of);
}

std::string lengths_line(std::int64_t count, std::int64_t all, const char* what) {
  return "lengths: the first " + std::to_string(count) + " of " + std::to_string(all) + " " + what +
         " are valid";
}

std::string ids_of(const ConstView& documents, std::int64_t batch, std::int64_t tokens) {
  std::string text;
  for (std::int64_t token = 0; token < std::min(tokens, kMostIds); ++token)
    text += " " + std::to_string(integer(documents, batch, token));
  return text + (tokens > kMostIds ? " …" : "");
}

std::string documents_line(const Mask& mask, const MaskOf& of) {
  std::string line = "documents: a query sees the keys whose document is its own; the keys' are" +
                     ids_of(mask.kv_documents, of.batch, of.kv_len);
  if (mask.q_documents.data != mask.kv_documents.data)
    line += ", the queries' are" + ids_of(mask.q_documents, of.batch, of.q_len);
  return line;
}

}  // namespace

std::vector<std::string> mask_lines(const Mask& mask, const MaskOf& of) {
  std::vector<std::string> lines;
  if (mask.causal) lines.push_back(causal_line(mask, of));
  if (mask.windowed) lines.push_back(window_line(mask, of));
  if (mask.kv_lengths.given())
    lines.push_back(lengths_line(integer(mask.kv_lengths, of.batch), of.kv_len, "keys"));
  if (mask.q_lengths.given())
    lines.push_back(lengths_line(integer(mask.q_lengths, of.batch), of.q_len, "queries"));
  if (mask.kv_documents.given()) lines.push_back(documents_line(mask, of));
  if (mask.visible.given())
    lines.push_back("boolean: a query sees the keys at which the array is true");
  if (mask.hidden.given())
    lines.push_back("hidden: a query sees the keys at which the array is false");
  return lines;
}

}  // namespace polyhead::cli
