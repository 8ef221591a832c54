#include "cli/call_options.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "cli/command.hpp"
#include "cli/option_checks.hpp"
#include "models/formats/file_error.hpp"
#include "polyhead/error.h"
#include "polyhead/executor.h"

namespace polyhead::cli {
namespace {

constexpr const char* kMaskGroup = "Masks (together: a pair must pass all of them)";
constexpr const char* kModifierGroup = "Modifiers (in this order)";

/// LEFT,RIGHT and the first tokens, as --window and --first-tokens say.
Mask window_of(const std::string& text, std::int64_t first_tokens) {
  const std::size_t comma = text.find(',');
  try {
    std::size_t used_left = 0, used_right = 0;
    const std::string left = text.substr(0, comma),
                      right = comma == std::string::npos ? "" : text.substr(comma + 1);
    const long long from = std::stoll(left, &used_left), to = std::stoll(right, &used_right);
    if (used_left == left.size() && used_right == right.size() && from >= -1 && to >= -1)
      return window_and_first(from, to, first_tokens);
  } catch (const std::logic_error&) {  // what stoll throws
  }
  throw UsageError("--window: '" + text +
                   "' is not LEFT,RIGHT (two whole numbers from 0, -1 for unbounded)");
}

/// The longest of the sequences that `offsets` make of `tokens`, or all of them without offsets.
std::int64_t longest(const ConstView& offsets, std::int64_t tokens) {
  if (!offsets.given()) return tokens;
  std::int64_t longest = 0;
  for (std::int64_t b = 0; b + 1 < offsets.layout.extents[0]; ++b) {
    const std::int64_t index[] = {b}, next[] = {b + 1};
    const std::int64_t begin = integer_element(offsets, index),
                       end = integer_element(offsets, next);
    if (begin >= 0 && end > begin) longest = std::max(longest, end - begin);
  }
  return std::min(longest, tokens);
}

/// What the library calls the arguments, and what sets them; longer names before their beginnings.
constexpr std::pair<const char*, const char*> kOptionNames[] = {
    {"mask.align is unstated", "--align is not given"},
    {"Align::end, Align::start or q_start", "--align end, --align start or --q-start"},
    {"q_start and mask.align", "--q-start and --align"},
    {"q_start", "--q-start"},
    {"q_offsets", "--q-offsets"},
    {"kv_offsets", "--kv-offsets"},
    {"row.batch", "--batch"},
    {"mask.prefix_lengths", "--prefix"},
    {"mask.prefix_length", "--prefix"},
    {"mask.kv_lengths", "--lengths"},
    {"mask.q_lengths", "--q-lengths"},
    {"mask.kv_documents", "--documents"},
    {"mask.q_documents", "--q-documents"},
    {"mask.visible", "--mask"},
    {"mask.hidden", "--hide"},
    {"modifiers.scale", "--scale"},
    {"modifiers.soft_cap", "--soft-cap"},
    {"modifiers.bias", "--bias"},
    {"modifiers.alibi has both slopes and use_default_slopes",
     "--alibi-slopes and --alibi are both given"},
    {"modifiers.alibi.slopes", "--alibi-slopes"},
    {"modifiers.sink", "--sink"},
    {"modifiers.dropout.probability", "--dropout"},
    {"modifiers.dropout.sequence_ids", "--sequence-ids"},
    {"inspect: heads", "inspect: --weights-heads"},
    {"w_o", "--wo"},
};

void replace_all(std::string& message, const std::string& name, const std::string& by) {
  for (std::size_t at = 0; (at = message.find(name, at)) != std::string::npos; at += by.size())
    message.replace(at, name.size(), by);
}

/// Bits of up to 8 keys would pass for one byte that stands for all keys.
void check_unpacked(const std::string& place, const ConstView& mask, std::int64_t kv_len) {
  const auto& [axes, extents, strides, too_many] = mask.layout;
  if (mask.type != ElementType::boolean || extents[axes - 1] != 1 || kv_len <= 1) return;
  const auto* const bytes = static_cast<const std::uint8_t*>(mask.data);
  const std::int64_t count = std::accumulate(extents.begin(), extents.begin() + axes,
                                             std::int64_t{1}, std::multiplies<std::int64_t>());
  if (std::all_of(bytes, bytes + count, [](std::uint8_t byte) { return byte <= 1; })) return;
  throw formats::FileError(place, "has one byte a row, for all " + std::to_string(kv_len) +
                                      " keys alike, and some are above 1 (bits of keys need "
                                      "--packed-mask)");
}

}  // namespace

std::int64_t longest_queries(const AttentionArguments& call) {
  return longest(call.q_offsets, call.q.layout.extents[call.q_offsets.given() ? 0 : 1]);
}

std::int64_t longest_keys(const AttentionArguments& call) {
  return longest(call.kv_offsets, call.k.layout.extents[call.kv_offsets.given() ? 0 : 1]);
}

std::string CallOptions::in_option_names(std::string message) const {
  // One list may stand for both; the library reads it as the queries' first.
  if (q_documents_.empty()) replace_all(message, "mask.q_documents", "--documents");
  for (const auto& [field, option] : kOptionNames) replace_all(message, field, option);
  return message;
}

void CallOptions::add_mask_options(CLI::App& app) {
  const auto option = [&](const char* name, std::string& value, const char* type,
                          const char* text) {
    return app.add_option(name, value, text)
        ->type_name(type)
        ->group(kMaskGroup)
        ->check(not_empty());
  };
  app.add_flag("--causal", causal_, "A query sees the keys up to its own position")
      ->group(kMaskGroup);
  option("--align", align_, "start|end",
         "Where queries stand among the keys: at 'end' the last query sees the last\n"
         "key; at 'start' the first sees the first. Needed when the lengths differ")
      ->check(CLI::IsMember({"start", "end"}).description(""));
  option("--q-start", q_start_, "LIST|FILE",
         "Position of each sequence's first query, instead of --align");
  option("--window", window_, "LEFT,RIGHT",
         "Keys that many positions before and after; -1 is unbounded");
  app.add_option("--first-tokens", first_tokens_,
                 "Of a window: the first N keys are seen as well, however far back")
      ->type_name("N")
      ->group(kMaskGroup)
      ->check(not_empty())
      ->transform(count(1))
      ->needs(app.get_option("--window"));
  option("--prefix", prefix_, "N|LIST|FILE",
         "Causal, but the first N keys are seen by all; a list has one a sequence");
  option("--lengths", lengths_, "LIST|FILE", "Valid keys of each sequence, such as 5,7");
  option("--q-lengths", q_lengths_, "LIST|FILE", "Valid queries of each sequence");
  option("--documents", documents_, "LIST|FILE",
         "Document id of each key (and query): equal ids see each other");
  option("--q-documents", q_documents_, "LIST|FILE",
         "Document id of each query, where they differ from the keys'");
  option("--mask", mask_, "FILE",
         "Booleans, true may attend: [query, key], with axes for heads and batch in\n"
         "front where they differ; extents of 1 are for all alike");
  option("--hide", hidden_, "FILE",
         "The same, but true may not attend, as in nn.MultiheadAttention's masks");
  app.add_flag("--packed-mask", packed_mask_,
               "Rows of --mask and --hide are bits in bytes (numpy.packbits,\nbitorder='little')")
      ->group(kMaskGroup);
}

void CallOptions::add_modifier_options(CLI::App& app) {
  const auto option = [&](const char* name, auto& value, const char* type, const char* text) {
    return app.add_option(name, value, text)
        ->type_name(type)
        ->group(kModifierGroup)
        ->check(not_empty());
  };
  // What float32 would make 0 is not what "none" means.
  option("--scale", scale_, "X", "Multiplies q.k (default 1/sqrt(head_dim))")
      ->check(float32_number());
  option("--soft-cap", soft_cap_, "CAP", "CAP * tanh(score / CAP); 0 is none")
      ->check(float32_if([](double cap) { return cap == 0.0 || (cap >= 1e-30 && cap <= 1e30); },
                         "from 1e-30 to 1e30, or 0"));
  option("--bias", bias_, "FILE",
         "Added to the scores, in the shapes of --mask, or 1 key wide for\nall alike; -inf hides");
  app.add_flag("--alibi", alibi_, "Minus slope * distance, slopes by the closed form")
      ->group(kModifierGroup);
  option("--alibi-slopes", slopes_, "LIST|FILE", "The same with slopes of one's own, one a head");
  option("--sink", sink_, "LIST|FILE", "One more logit a head, in the softmax's denominator only");
  option("--dropout", dropout_, "P", "Probability of dropping a weight; 0 is none")
      ->check(float32_if([](double p) { return p >= 0.0 && static_cast<float>(p) < 1.0f; },
                         "of at least 0 and, in 32 bits, below 1"));
  option("--seed", seed_, "N", "Seed of the dropout")->check(whole_number(0, kLargestSeed));
  option("--sequence-ids", sequence_ids_, "LIST|FILE",
         "Names the sequences to the dropout's random numbers");
}

bool CallOptions::uses_positions() const {
  return causal_ || !window_.empty() || !prefix_.empty() || alibi_ || !slopes_.empty() ||
         dropout_.has_value();
}

void CallOptions::check() const {
  check_companions();
  if (!window_.empty() && window_of(window_, 0).left < 0 && first_tokens_)
    throw UsageError("--first-tokens changes nothing here: the window reaches back to them");
  for (const auto& [text, option] :
       {std::pair(&prefix_, "--prefix"), {&lengths_, "--lengths"}, {&q_lengths_, "--q-lengths"}})
    check_integers(*text, option, 0);
  for (const auto& [text, option] : {std::pair(&documents_, "--documents"),
                                     {&q_documents_, "--q-documents"},
                                     {&q_start_, "--q-start"},
                                     {&sequence_ids_, "--sequence-ids"}})
    check_integers(*text, option);
  check_floats(slopes_, "--alibi-slopes");
  check_floats(sink_, "--sink");
}

void CallOptions::check_companions() const {
  const auto needs = [](bool given, bool other, const char* what) {
    if (given && !other) throw UsageError(what);
  };
  needs(!q_documents_.empty(), !documents_.empty(), "--q-documents needs --documents");
  needs(packed_mask_, !mask_.empty() || !hidden_.empty(), "--packed-mask needs --mask or --hide");
  needs(seed_.has_value(), dropout_.has_value(), "--seed needs --dropout");
  needs(!sequence_ids_.empty(), dropout_.has_value(), "--sequence-ids needs --dropout");
  if (causal_ && !prefix_.empty()) {
    throw UsageError(
        "--causal changes nothing here: --prefix is causal, but for the first keys, which all see");
  }
  if (alibi_ && !slopes_.empty()) throw UsageError("--alibi-slopes and --alibi are both given");
  if (!q_start_.empty() && !align_.empty())
    throw UsageError("--q-start and --align are both given");
  constexpr const char* kUnused =
      " changes nothing here: no mask and no modifier that was given uses positions";
  if (uses_positions()) return;
  if (!align_.empty()) throw UsageError(std::string("--align") + kUnused);
  if (!q_start_.empty()) throw UsageError(std::string("--q-start") + kUnused);
}

bool CallOptions::modifies() const {
  return soft_cap_ != 0.0f || !bias_.empty() || alibi_ || !slopes_.empty();
}

ConstView CallOptions::keep(Array array) {
  kept_.push_back(std::move(array));
  return kept_.back().view;
}

ConstView CallOptions::pair_table(const std::string& place, bool packed, const std::string& what,
                                  std::int64_t kv_len) {
  ConstView view = keep(load_array(place));
  if (view.layout.axes < 2 || view.layout.axes > 4) {
    throw formats::FileError(
        place, "has shape " + formats::shape_text(view.layout) + " (" + what +
                   " takes [query, key], [head, query, key] or [batch, head, query, key])");
  }
  if (!packed) {
    check_unpacked(place, view, kv_len);
  } else {
    const int key = view.layout.axes - 1;
    if (view.type != ElementType::boolean || view.layout.extents[key] != (kv_len + 7) / 8 ||
        view.layout.strides[key] != 1) {
      throw formats::FileError(
          place, "a packed mask of " + std::to_string(kv_len) + " keys is uint8 with " +
                     std::to_string((kv_len + 7) / 8) + " bytes a row, in C order; found " +
                     (view.type == ElementType::boolean ? "bytes" : element_name(view.type)) + " " +
                     formats::shape_text(view.layout));
    }
    view.type = ElementType::bit;
    view.layout.extents[key] = kv_len;
    for (int axis = 0; axis < key; ++axis) view.layout.strides[axis] *= 8;
  }
  return with_leading_axes(view, 4);
}

Mask CallOptions::mask_of(const AttentionArguments& call) {
  Mask mask;
  if (causal_) mask = mask & causal();
  if (!window_.empty()) mask = mask & window_of(window_, first_tokens_.value_or(0));
  if (!prefix_.empty()) {
    const Array lengths = load_integers(prefix_, "--prefix");
    const bool one = lengths.view.layout.extents[0] == 1;
    const std::int64_t first[] = {0};
    mask = mask & (one ? prefix(integer_element(lengths.view, first)) : prefix(keep(lengths)));
  }
  Mask padding;
  if (!lengths_.empty()) padding.kv_lengths = keep(load_integers(lengths_, "--lengths"));
  if (!q_lengths_.empty()) padding.q_lengths = keep(load_integers(q_lengths_, "--q-lengths"));
  mask = mask & padding;
  if (!documents_.empty()) {
    const int token = call.q_offsets.given() ? 0 : 1;
    const std::int64_t q_tokens = call.q.layout.extents[token],
                       k_tokens = call.k.layout.extents[token];
    if (q_documents_.empty() && q_tokens != k_tokens) {
      throw InvalidArgument("--documents: q has " + std::to_string(q_tokens) + " tokens and k " +
                            std::to_string(k_tokens) + ", so --q-documents is needed beside it");
    }
    const ConstView keys = keep(load_integers(documents_, "--documents", 2));
    const ConstView queries =
        q_documents_.empty() ? keys : keep(load_integers(q_documents_, "--q-documents", 2));
    mask = mask & documents(with_leading_axes(queries, 2), with_leading_axes(keys, 2));
  }
  if (!mask_.empty())
    mask = mask & boolean(pair_table(mask_, packed_mask_, "--mask", longest_keys(call)));
  if (!hidden_.empty())
    mask = mask & hidden(pair_table(hidden_, packed_mask_, "--hide", longest_keys(call)));
  return mask;
}

void CallOptions::apply_modifiers(Modifiers& modifiers, std::int64_t kv_len) {
  modifiers.scale = scale_;
  modifiers.soft_cap = soft_cap_;
  if (!bias_.empty()) modifiers.bias = pair_table(bias_, false, "--bias", kv_len);
  modifiers.alibi.use_default_slopes = alibi_;
  if (!slopes_.empty()) modifiers.alibi.slopes = keep(load_floats(slopes_, "--alibi-slopes"));
  if (!sink_.empty()) modifiers.sink = keep(load_floats(sink_, "--sink"));
  modifiers.dropout.probability = dropout_.value_or(0.0f);
  modifiers.dropout.seed = seed_.value_or(0);
  if (!sequence_ids_.empty()) {
    modifiers.dropout.sequence_ids = keep(load_integers(sequence_ids_, "--sequence-ids"));
  }
}

// Alignment also places ALiBi and dropout, which take it from the mask.
void CallOptions::place(AttentionArguments& call) {
  if (!align_.empty()) call.mask.align = align_ == "start" ? Align::start : Align::end;
  if (!q_start_.empty()) call.q_start = keep(load_integers(q_start_, "--q-start"));
}

void CallOptions::apply(AttentionArguments& call) {
  kept_.clear();
  call.mask = mask_of(call);
  place(call);
  apply_modifiers(call.modifiers, longest_keys(call));
}

void RunOptions::add_options(CLI::App& app) {
  app.add_option("--isa", isa_,
                 "portable, avx2, avx512, avx512_bf16 or amx_bf16 (default:\nPOLYHEAD_ISA, else "
                 "the best here)")
      ->type_name("NAME")
      ->check(not_empty())
      ->check(isa_name());
  app.add_option("--threads", threads_, "Threads (default: POLYHEAD_THREADS, else all processors)")
      ->type_name("N")
      ->transform(count(1, ThreadPool::kMost));
}

Isa isa_option(const std::string& name) {
  const Isa isa = isa_from_name(name);
  try {
    return isa == Isa::automatic ? isa : resolve_isa(isa);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(std::string("--") + error.what());
  }
}

Options RunOptions::options() const {
  Options options;
  if (!isa_.empty()) options.isa = isa_option(isa_);
  options.threads = threads_;
  return options;
}

}  // namespace polyhead::cli
