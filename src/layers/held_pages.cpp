#include "layers/held_pages.hpp"

#include <algorithm>
#include <span>
#include <vector>

namespace polyhead::inline v0::layers {
namespace {

using Status = PagedCache::Status;

void check_sequences(const Input& input, const PagedSequences& pages, Buffer& memory) {
  if (std::ssize(pages.sequences) != input.sequences) {
    base::refuse(input.name, "pages.sequences has ", pages.sequences.size(), ", expected ",
                 input.sequences, ", one for each of x");
  }
  auto* const copy = reinterpret_cast<std::int64_t*>(memory.need(input.sequences, 8));
  const std::span<std::int64_t> in_order(copy, pages.sequences.size());
  std::ranges::copy(pages.sequences, copy);
  std::ranges::sort(in_order);
  const auto twice = std::ranges::adjacent_find(in_order);
  if (twice != in_order.end()) {
    base::refuse(input.name, "pages.sequences has ", *twice, " twice, expected each once");
  }
  for (const std::int64_t sequence : in_order) {
    if (pages.cache->holds(sequence)) continue;
    base::refuse(input.name, "pages.sequences has ", sequence,
                 ", which was released or never created");
  }
}

/// Rows [batch, tokens, heads, dim] or ragged of sequence `b`: [count, heads, dim].
ConstView rows_of_sequence(const Input& input, const ConstView& rows, std::int64_t b,
                           std::int64_t count) {
  if (!rows.given()) return rows;
  if (input.ragged) return token_rows(rows, input.offsets[b], count);
  const auto& [axes, extents, strides, too_many] = rows.layout;
  return {static_cast<const std::byte*>(rows.data) + b * strides[0] * float_bytes(rows.type),
          rows.type,
          {{count, extents[2], extents[3]}, {strides[1], strides[2], strides[3]}}};
}

}  // namespace

void check_pages(const Input& input, const PagedSequences& pages, const HeldSizes& sizes,
                 Buffer& memory) {
  if (pages.cache == nullptr) base::refuse(input.name, "pages.cache is null, expected a cache");
  const PagedCacheConfig& has = pages.cache->config();
  if (pages.layer < 0 || pages.layer >= has.layers) {
    base::refuse(input.name, "pages.layer (", pages.layer, ") is not within 0 .. ", has.layers - 1);
  }
  if (pages.room != PagedRoom::to_make && pages.room != PagedRoom::made) {
    base::refuse(input.name, "pages.room (", static_cast<int>(pages.room),
                 ") is not to_make or made");
  }
  check_held(input.name, "pages.cache", has, sizes);
  check_sequences(input, pages, memory);
  if (pages.tokens.empty()) return;
  if (pages.room == PagedRoom::made) {
    base::refuse(input.name,
                 "pages.tokens are given, but extend() has been told those of room "
                 "that is made");
  }
  if (std::ssize(pages.tokens) != input.rows.count()) {
    base::refuse(input.name, "pages.tokens has ", pages.tokens.size(), " numbers, expected ",
                 input.rows.count(), ", one for each row of x");
  }
}

Growth growth_in(const Input& input, const PagedSequences& pages, const ConstView& lengths,
                 Buffer& memory) {
  const bool made = pages.room == PagedRoom::made;
  return growth_after(input, lengths, memory, [&](std::int64_t b) {
    const std::int64_t held = pages.cache->length(pages.sequences[static_cast<std::size_t>(b)]);
    const std::int64_t count = tokens_of(input, lengths, b);
    if (!made) return held;
    if (held < count) {
      base::refuse(input.name, "sequence ", pages.sequences[static_cast<std::size_t>(b)], " has ",
                   held, " tokens, expected at least the ", count,
                   " of x, for which room is said to be made");
    }
    return held - count;
  });
}

PagedRows::~PagedRows() {
  if (!extended_) return;
  for (std::size_t b = 0; b < pages_.sequences.size(); ++b)
    pages_.cache->truncate(pages_.sequences[b], growth_.starts[b]);
}

Status PagedRows::make_room() {
  if (pages_.room == PagedRoom::made) return room_to_write() ? Status::ok : Status::exhausted;
  std::vector<PagedCache::Extension>& parts = scratch_.extensions;
  parts.clear();
  for (std::size_t b = 0; b < pages_.sequences.size(); ++b) {
    const auto at = static_cast<std::int64_t>(b);
    const std::int64_t count = growth_.ends[b] - growth_.starts[b];
    const std::int64_t first = input_.ragged ? input_.offsets[at] : at * input_.rows.tokens;
    parts.push_back({pages_.sequences[b], count,
                     pages_.tokens.empty()
                         ? pages_.tokens
                         : pages_.tokens.subspan(static_cast<std::size_t>(first),
                                                 static_cast<std::size_t>(count))});
  }
  const Status status = pages_.cache->extend(parts);
  extended_ = status == Status::ok;
  return status;
}

/// Whether the pool has the pages that writes to made room copy: those that others hold, one for
/// each sequence but the last of them.
bool PagedRows::room_to_write() {
  const std::int64_t size = pages_.cache->config().page_tokens;
  PagedBatch& batch = scratch_.batch;
  pages_.cache->batch(pages_.sequences, batch);
  auto* const writes =
      reinterpret_cast<std::int32_t*>(scratch_.pages.need(std::ssize(batch.table), 4));
  std::int32_t* end = writes;  // the page of each, as often as sequences write to it
  for (std::size_t b = 0; b < pages_.sequences.size(); ++b) {
    const std::int64_t row = static_cast<std::int64_t>(b) * batch.pages_a_sequence;
    if (growth_.starts[b] == growth_.ends[b]) continue;
    for (std::int64_t page = growth_.starts[b] / size; page * size < growth_.ends[b]; ++page)
      *end++ = batch.table[static_cast<std::size_t>(row + page)];
  }
  std::sort(writes, end);
  std::int64_t copies = 0;
  for (const std::int32_t *from = writes, *to = writes; from != end; from = to) {
    while (to != end && *to == *from) ++to;
    copies += std::min(to - from, pages_.cache->holders(*from) - 1);
  }
  batch_is_good_ = copies == 0;
  return copies <= pages_.cache->free_pages();
}

const PagedBatch& PagedRows::batch() {
  if (!batch_is_good_) pages_.cache->batch(pages_.sequences, scratch_.batch);
  return scratch_.batch;
}

void PagedRows::write(const ConstView& k, const ConstView& v) {
  for (std::size_t b = 0; b < pages_.sequences.size(); ++b) {
    const auto at = static_cast<std::int64_t>(b);
    const std::int64_t first = growth_.starts[b], count = growth_.ends[b] - first;
    // Never exhausted: into room just made, or pages that were counted.
    static_cast<void>(pages_.cache->write(pages_.sequences[b], pages_.layer, first,
                                          rows_of_sequence(input_, k, at, count),
                                          rows_of_sequence(input_, v, at, count)));
  }
}

}  // namespace polyhead::inline v0::layers
