#include "layers/in_cache.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "attention/limits.hpp"
#include "attention/validate.hpp"
#include "base/batch_of_one.hpp"
#include "base/ceil_div.hpp"
#include "base/element.hpp"
#include "base/float_environment.hpp"
#include "base/refuse.hpp"

namespace polyhead::inline v0::layers {

void check_in_cache_rows(const char* name, std::int64_t batch, std::int64_t q_len,
                         std::int64_t q_heads) {
  std::int64_t rows = 0;
  if (__builtin_mul_overflow(batch, q_len, &rows) || __builtin_mul_overflow(rows, q_heads, &rows)) {
    base::refuse(name, "batch (", batch, ") times q_len (", q_len, ") times q_heads (", q_heads,
                 ") overflow 64 bits");
  }
}

void check_in_cache_modifiers(const char* name, const Modifiers& m) {
  const base::FloatEnvironment environment(base::Subnormals::kept);  // which dropout is none
  const bool custom =
      std::ranges::any_of(m.custom, [](const TileModifier* f) { return f != nullptr; });
  if (m.bias.given() || custom || m.dropout.probability != 0.0f) {
    base::refuse(name, "modifiers has ",
                 m.bias.given() ? "bias"
                 : custom       ? "custom"
                                : "dropout",
                 ", expected scale, soft_cap, alibi and sink alone: the others go by positions in "
                 "the sequence");
  }
}

namespace {

/// Refuses offsets that may not be read, or that lead beyond q, out or lse.
void check_offsets(const InCacheCall& call) {
  const std::int64_t batch = call.cache.config().batch;
  if (call.counts.given())
    base::refuse(call.name, "counts and q_offsets are both given, expected one");
  door::check_axes(call.name, "q_offsets", call.offsets, {{"batch + 1", batch + 1}});
  door::check_integer(call.name, "q_offsets", call.offsets);
  door::footprint_of(call.name, "q_offsets", call.offsets);
  const kernels::Integers offsets = door::integers_of(call.offsets);
  door::check_ascending(call.name, "q_offsets", offsets, batch);
  const std::int64_t tokens = call.q.layout.extents[0];
  if (call.q.given()) door::check_end(call.name, "q_offsets", offsets, batch, tokens, "q");
  for (const auto& [name, view] : {std::pair{"out", &call.out}, {"lse", &call.lse}}) {
    if (view->given() && view->layout.extents[0] != tokens)
      base::refuse(call.name, name, ": tokens is ", view->layout.extents[0], ", expected ", tokens);
  }
}

/// A ragged call without the rows of q that belong to no sequence.
InCacheCall cut(InCacheCall call) {
  if (!call.offsets.given()) return call;
  check_offsets(call);
  const std::int64_t end = door::integers_of(call.offsets)[call.cache.config().batch];
  for (detail::Layout* layout : {&call.q.layout, &call.out.layout}) layout->extents[0] = end;
  if (call.lse.given()) call.lse.layout.extents[0] = end;
  return call;
}

}  // namespace

void AlibiOfFirst::apply(const ScoreTile& tile) const {
  for (int lane = 0; lane < tile.lane_count; ++lane) {
    const std::int64_t place = std::min(tile.q_pos[lane] + window, last_place);
    const auto from_tile = static_cast<float>(place - tile.first_kv_pos);
    const float slope = slopes[tile.head[lane]];
    float* score = tile.scores + lane;
    for (int key = 0; key < tile.key_count; ++key, score += tile.lane_count)
      *score -= slope * (from_tile - static_cast<float>(key));
  }
}

InCache::InCache(const InCacheCall& call)
    : call_(cut(call)),
      config_(call.cache.config()),
      ragged_(call.offsets.given()),
      q_len_(call_.q.layout.extents[ragged_ ? 0 : 1]),
      q_heads_(call_.q.layout.extents[ragged_ ? 1 : 2]) {
  check();
}

void InCache::check() const {
  const char* const name = call_.name;
  const std::int64_t batch = config_.batch;
  if (config_.values_in_keys && call_.turned) {
    base::refuse(name,
                 "cache has values_in_keys, expected values of their own: those in the keys would "
                 "be turned with them");
  }
  if (ragged_) {
    door::check_axes(name, "q", call_.q,
                     {{"tokens", q_len_}, {"q_heads", q_heads_}, {"head_dim", config_.head_dim}});
  } else {
    door::check_axes(name, "q", call_.q,
                     {{"batch", batch},
                      {"q_len", q_len_},
                      {"q_heads", q_heads_},
                      {"head_dim", config_.head_dim}});
  }
  door::check_floating(name, "q", call_.q);
  door::footprint_of(name, "q", call_.q);
  check_in_cache_rows(name, ragged_ ? 1 : batch, q_len_, q_heads_);
  if (call_.counts.given()) {
    door::check_axes(name, "counts", call_.counts, {{"batch", batch}});
    door::check_integer(name, "counts", call_.counts);
    door::footprint_of(name, "counts", call_.counts);
  }
  for (std::int64_t b = 0; b < batch; ++b) check_sequence(b);
  check_in_cache_modifiers(name, call_.modifiers);
  check_resolved();
}

void InCache::check_sequence(std::int64_t b) const {
  const char* const name = call_.name;
  const std::int64_t count = count_of(b), length = call_.cache.length(b);
  const std::int64_t most = std::min({q_len_, length, config_.chunk});
  if (count < 0 || count > most) {
    const char* const from = ragged_ ? "q_offsets: " : call_.counts.given() ? "counts: " : "q: ";
    base::refuse(name, from, "sequence ", b, " has ", count, " queries, expected at most ",
                 ragged_ ? "" : "q_len (" + std::to_string(q_len_) + "), ", "chunk (",
                 config_.chunk, ") and its length (", length, ")");
  }
  const std::int64_t first = length - count - config_.window + 1;
  if (count > 0 && std::max(first, config_.first_tokens) < call_.cache.oldest(b)) {
    base::refuse(name, "sequence ", b, " has ", count,
                 " queries, the first of which sees keys from ", first, " on, but those before ",
                 call_.cache.oldest(b), " were written over before it was truncated");
  }
}

/// What the calls below would refuse of these arguments, refused in this call's name.
void InCache::check_resolved() const {
  AttentionArguments whole;
  whole.q = call_.q;
  whole.kv = call_.cache.view();
  whole.out = call_.out;
  whole.lse = call_.lse;
  whole.mask = call_.cache.mask();
  whole.mask.q_lengths = call_.counts;
  whole.q_offsets = call_.offsets;
  whole.modifiers = call_.modifiers;
  const kernels::AttendCall resolved = door::resolve(whole, call_.name);
  if (call_.limits != nullptr) check_within(*call_.limits, call_.name, resolved, true);
}

std::int64_t InCache::count_of(std::int64_t b) const {
  if (ragged_) {
    const kernels::Integers at = door::integers_of(call_.offsets);
    return at[b + 1] - at[b];
  }
  return call_.counts.given() ? door::integers_of(call_.counts)[b] : q_len_;
}

/// Of sequence `b` among the tokens of q.
std::int64_t InCache::first_token(std::int64_t b) const {
  return ragged_ ? door::integers_of(call_.offsets)[b] : b * q_len_;
}

std::int64_t InCache::tokens() const { return first_token(config_.batch); }

InCacheRooms::Places InCache::open(InCacheRooms& memory, int workers) const {
  const std::int64_t bytes = std::max(element_bytes(call_.q.type), element_bytes(call_.type));
  const InCacheRooms::Places rooms = memory.need({.batch = config_.batch,
                                                  .tokens = tokens(),
                                                  .q_heads = q_heads_,
                                                  .head_dim = config_.head_dim,
                                                  .value_dim = config_.value_dim,
                                                  .q_bytes = bytes,
                                                  .workers = workers});
  // Where each query stands: in its sequence, and in the cache.
  for (std::int64_t b = 0; b < config_.batch; ++b) {
    const std::int64_t length = call_.cache.length(b), start = length - count_of(b);
    const std::int64_t first = first_token(b);
    for (std::int64_t token = first; token < first_token(b + 1); ++token) {
      const std::int64_t place = start + token - first;
      rooms.ends[token] = place;
      rooms.places[token] = std::min(place, config_.first_tokens + config_.window - 1);
    }
    rooms.first_lengths[b] = std::min(length, config_.first_tokens);
    rooms.first_starts[b] = start - config_.window;
  }
  const Alibi& alibi = call_.modifiers.alibi;
  for (std::int64_t head = 0; head < q_heads_ && alibi.given(); ++head) {
    rooms.slopes[head] =
        alibi.slopes.given()
            ? static_cast<const float*>(alibi.slopes.data)[head * alibi.slopes.layout.strides[0]]
            : alibi_slope(head, q_heads_);
  }
  return rooms;
}

AttentionArguments InCache::window_part(const Turning& turning,
                                        const InCacheRooms::Places& rooms) const {
  AttentionArguments window;
  window.kv = call_.cache.view();
  window.mask = call_.cache.mask();
  window.mask.first_tokens = 0;
  window.mask.q_lengths = call_.counts;
  window.q_offsets = call_.offsets;
  window.modifiers = call_.modifiers;
  window.q = copied_q(turning, rooms.ends, rooms.window_q);
  return window;
}

AttentionArguments InCache::first_part(const AttentionArguments& window, const Turning& turning,
                                       const InCacheRooms::Places& rooms,
                                       AlibiOfFirst& alibi) const {
  AttentionArguments first = window;
  first.kv.lengths = ConstView(rooms.first_lengths, {config_.batch});
  first.mask = causal();  // query p sees the first tokens t <= p - window
  first.mask.q_lengths = call_.counts;
  first.q_start = ConstView(rooms.first_starts, {config_.batch});
  if (turning.rotation != nullptr) first.q = copied_q(turning, rooms.places, rooms.first_q);
  if (call_.modifiers.alibi.given()) {
    alibi.slopes = rooms.slopes;
    alibi.window = config_.window;
    alibi.last_place = config_.first_tokens + config_.window - 1;
    first.modifiers.alibi = {};
    first.modifiers.custom[0] = &alibi;
  }
  return first;
}

/// The heads of one token of q, dense.
void InCache::copy_token(std::int64_t token, std::byte* to) const {
  const std::int64_t bytes = element_bytes(call_.q.type), dim = config_.head_dim;
  const auto& strides = call_.q.layout.strides;
  const int head_axis = ragged_ ? 1 : 2;
  const std::int64_t step = strides[head_axis + 1];
  const std::int64_t at =
      ragged_ ? token * strides[0] : token / q_len_ * strides[0] + token % q_len_ * strides[1];
  const auto* const from = static_cast<const std::byte*>(call_.q.data) + at * bytes;
  const std::int64_t run = step == 1 ? dim : 1;  // elements beside each other
  for (std::int64_t head = 0; head < q_heads_; ++head) {
    const std::byte* const row = from + head * strides[head_axis] * bytes;
    for (std::int64_t d = 0; d < dim; d += run, to += run * bytes)
      std::memcpy(to, row + d * step * bytes, static_cast<std::size_t>(run * bytes));
  }
}

/// A token's heads rounded to what attention reads, once and in place: what is written was read.
void InCache::narrow_token(std::byte* row) const {
  const std::int64_t wide = element_bytes(call_.q.type), narrow = element_bytes(call_.type);
  for (std::int64_t i = 0; i < q_heads_ * config_.head_dim; ++i) {
    base::store_float32(row + i * narrow, call_.type,
                        base::load_float32(row + i * wide, call_.q.type));
  }
}

/// A copy of q in `to`, turned by `positions`, one a token, if it is to be turned. Heads of a token
/// are dense; where they are rounded a gap follows, so that each token is written where no other
/// one is.
ConstView InCache::copied_q(const Turning& turning, const std::int64_t* positions,
                            std::byte* to) const {
  const std::int64_t dim = config_.head_dim, elements = q_heads_ * dim;
  const std::int64_t pitch = elements * element_bytes(call_.q.type);
  const std::int64_t doubles = position::turning_doubles(dim / 2), one = 1;
  const std::int64_t items = base::ceil_div(tokens(), kRowsPerItem);
  share_out(turning.crew, items, [&](std::int64_t item, int worker) {
    const std::int64_t first = item * kRowsPerItem;
    const std::int64_t count = std::min(kRowsPerItem, tokens() - first);
    std::byte* const rows = to + first * pitch;
    for (std::int64_t i = 0; i < count; ++i) copy_token(first + i, rows + i * pitch);
    if (turning.rotation != nullptr) {
      position::rotate_heads({rows, call_.q.type, {one, count, q_heads_, dim}},
                             ConstView(positions + first, {one, count}), *turning.rotation,
                             turning.memory + worker * doubles);
    }
    for (std::int64_t i = 0; i < count && call_.type != call_.q.type; ++i)
      narrow_token(rows + i * pitch);
  });
  const std::int64_t step = pitch / float_bytes(call_.type);  // between tokens, in elements
  if (ragged_) return {to, call_.type, {{tokens(), q_heads_, dim}, {step, dim, one}}};
  return {
      to, call_.type, {{config_.batch, q_len_, q_heads_, dim}, {q_len_ * step, step, dim, one}}};
}

/// One of the two parts, into its rooms. A sink is counted once, by the join.
AttentionArguments InCache::as_part(AttentionArguments call, const InCacheRooms::Places& rooms,
                                    std::int64_t part) const {
  call.modifiers.sink = {};
  float* const out = rooms.outs + part * rows() * config_.value_dim;
  float* const lse = rooms.lses + part * rows();
  if (ragged_) {
    call.out = {out, {tokens(), q_heads_, config_.value_dim}};
    call.lse = {lse, {tokens(), q_heads_}};
  } else {
    call.out = {out, {config_.batch, q_len_, q_heads_, config_.value_dim}};
    call.lse = {lse, {config_.batch, q_len_, q_heads_}};
  }
  return call;
}

namespace {

/// A ragged view's tokens as a batch of one; others as they are.
View as_batch(const View& view, bool ragged) {
  return ragged && view.given() ? base::batch_of_one(view) : view;
}

}  // namespace

void InCache::join(const InCacheRooms::Places& rooms, const Options& options) const {
  const std::int64_t batch = ragged_ ? 1 : config_.batch, tokens_each = ragged_ ? tokens() : q_len_;
  MergeArguments merge;
  merge.outs = {rooms.outs, {std::int64_t{2}, batch, tokens_each, q_heads_, config_.value_dim}};
  merge.lses = {rooms.lses, {std::int64_t{2}, batch, tokens_each, q_heads_}};
  merge.out = as_batch(call_.out, ragged_);
  merge.lse = as_batch(call_.lse, ragged_);
  merge.sink = call_.modifiers.sink;
  merge_partials(merge, options);
}

}  // namespace polyhead::inline v0::layers
