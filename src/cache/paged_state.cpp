// Which pages are a sequence's own, written, remembered.
#include "cache/paged_state.hpp"

namespace polyhead::inline v0 {

using cache::Equal;
using cache::Held;
using cache::kNoPage;
using cache::kNoToken;
using cache::PageStamp;

void PagedCache::State::own_page(Held& sequence, std::int64_t index) {
  std::int32_t& page = sequence.pages[static_cast<std::size_t>(index)];
  if (pool.holders(page) == 1) {
    pool.forget(page);
    return;
  }
  const std::int32_t fresh = pool.take(sequence.before(index));
  const std::int64_t size = config.page_tokens;
  const std::int64_t tokens = std::min(size, sequence.length - index * size);
  for (std::size_t layer = 0; layer < keys.size(); ++layer) {
    keys[layer].copy(fresh, keys[layer], page, tokens);
    values[layer].copy(fresh, values[layer], page, tokens);
  }
  pool.let_go(page);
  page = fresh;
}

bool PagedCache::State::own_pages(Held& sequence, std::int64_t first, std::int64_t end) {
  const std::int64_t begin = first / config.page_tokens, past = pages_of(end);
  std::int64_t copies = 0;
  for (std::int64_t page = begin; page < past; ++page)
    copies += pool.holders(sequence.pages[static_cast<std::size_t>(page)]) > 1;
  if (copies > pool.available()) return false;
  for (std::int64_t page = begin; page < past; ++page) own_page(sequence, page);
  sequence.remembered = std::min(sequence.remembered, begin);
  return true;
}

void PagedCache::State::mark_written(Held& sequence, std::int64_t layer, std::int64_t first,
                                     std::int64_t end) {
  cache::Stretches& written = sequence.written[static_cast<std::size_t>(layer)];
  written.visit_within(first, end, [&](std::int64_t from, std::int64_t to) {
    std::fill(sequence.tokens.begin() + from, sequence.tokens.begin() + to, kNoToken);
  });
  written.add(first, end);
  const std::int64_t next_page = (sequence.remembered + 1) * config.page_tokens;
  if (written.from_zero() >= next_page) remember_pages(sequence, Equal::keep_own);
}

void PagedCache::State::remember_pages(Held& sequence, Equal equal) noexcept {
  const std::int64_t size = config.page_tokens, full = sequence.written_tokens() / size;
  for (std::int64_t& at = sequence.remembered; at < full; ++at) {
    const std::span<const std::int32_t> spelled(sequence.tokens.data() + at * size,
                                                static_cast<std::size_t>(size));
    if (std::ranges::find(spelled, kNoToken) != spelled.end()) return;
    std::int32_t& page = sequence.pages[static_cast<std::size_t>(at)];
    const PageStamp parent = at == 0 ? PageStamp{} : pool.stamp(sequence.before(at));
    const std::int32_t known = pool.find(parent, sequence.salt, spelled);
    if (known == kNoPage) {
      pool.remember(page, parent, sequence.salt, spelled);
    } else if (known != page) {
      if (equal == Equal::keep_own || !same_rows(page, known)) return;
      pool.hold(known);
      pool.let_go(std::exchange(page, known));
    }
  }
}

bool PagedCache::State::same_rows(std::int32_t a, std::int32_t b) {
  const std::int64_t size = config.page_tokens;
  for (auto* const side : {&keys, &values}) {
    for (cache::Store& store : *side) {
      for (std::int64_t head = 0; head < config.kv_heads; ++head) {
        if (!std::ranges::equal(store.head_rows(a, head, size), store.head_rows(b, head, size)))
          return false;
        for (std::int64_t block = 0; block < store.blocks(); ++block) {
          if (!std::ranges::equal(store.head_scales(a, head, block, size),
                                  store.head_scales(b, head, block, size)))
            return false;
        }
      }
    }
  }
  return true;
}

void PagedCache::State::cut(Held& sequence, std::int64_t length) {
  while (std::ssize(sequence.pages) > pages_of(length)) {
    pool.let_go(sequence.pages.back());
    sequence.pages.pop_back();
  }
  sequence.length = length;
  for (cache::Stretches& layer : sequence.written) layer.cut(length);
  sequence.tokens.resize(static_cast<std::size_t>(length));
  sequence.remembered = std::min(sequence.remembered, length / config.page_tokens);
}

PagedCache::Status PagedCache::State::keep(Held& sequence, std::int64_t first,
                                           std::span<const std::int64_t> places,
                                           std::span<const std::int32_t> tokens) {
  const std::int64_t size = config.page_tokens, count = std::ssize(places), end = first + count;
  const auto place = [&](std::int64_t i) { return places[static_cast<std::size_t>(i)]; };
  const auto number = [&](std::int64_t i) -> std::int32_t {
    return tokens.empty() ? sequence.tokens[static_cast<std::size_t>(place(i))]
                          : tokens[static_cast<std::size_t>(i)];
  };
  std::int64_t same = 0;  // of the first ones: their rows stay where they are, and their numbers
  while (same < count && place(same) == first + same &&
         number(same) == sequence.tokens[static_cast<std::size_t>(first + same)])
    ++same;
  std::vector<cache::Stretches> written = sequence.written;
  for (std::size_t layer = 0; layer < written.size(); ++layer) {
    written[layer].cut(first + same);
    for (std::int64_t i = same; i < count; ++i) {
      if (sequence.written[layer].contains(place(i))) written[layer].add(first + i, first + i + 1);
    }
  }
  if (same < count && !own_pages(sequence, first + same, end)) return Status::exhausted;
  // Nothing can fail any more, and no row is written that is yet to be read.
  const auto page_of = [&](std::int64_t token) {
    return sequence.pages[static_cast<std::size_t>(token / size)];
  };
  for (std::int64_t i = same; i < count; ++i) {
    const std::int64_t to = first + i, from = place(i);
    sequence.tokens[static_cast<std::size_t>(to)] = number(i);
    if (from == to) continue;
    for (auto* const side : {&keys, &values}) {
      for (cache::Store& store : *side)
        store.copy_token(page_of(to), to % size, page_of(from), from % size);
    }
  }
  sequence.written = std::move(written);
  cut(sequence, end);
  remember_pages(sequence, Equal::share);
  return Status::ok;
}

void PagedCache::State::add_tokens(Held& sequence, const Extension& part) noexcept {
  if (part.count == 0) return;
  if (sequence.length % config.page_tokens != 0) own_page(sequence, std::ssize(sequence.pages) - 1);
  sequence.length += part.count;
  while (std::ssize(sequence.pages) < pages_of(sequence.length))
    sequence.pages.push_back(pool.take(sequence.before(std::ssize(sequence.pages))));
  sequence.tokens.insert(sequence.tokens.end(), part.tokens.begin(), part.tokens.end());
  sequence.tokens.resize(static_cast<std::size_t>(sequence.length), kNoToken);
}

std::int64_t PagedCache::State::pages_for(std::span<const Extension> parts) {
  std::int64_t pages = 0;
  std::vector<std::int32_t> shared;  // last pages that others hold too
  for (const Extension& part : parts) {
    if (part.count == 0) continue;
    const Held& sequence = held.at(part.sequence);
    pages += pages_of(sequence.length + part.count) - std::ssize(sequence.pages);
    const bool partial = sequence.length % config.page_tokens != 0;
    if (partial && pool.holders(sequence.pages.back()) > 1) shared.push_back(sequence.pages.back());
  }
  std::ranges::sort(shared);
  for (auto at = shared.begin(); at != shared.end();) {
    const auto past = std::ranges::upper_bound(at, shared.end(), *at);
    // Where all who hold it go on at once, the last of them has it alone.
    pages += std::min<std::int64_t>(past - at, pool.holders(*at) - 1);
    at = past;
  }
  return pages;
}

}  // namespace polyhead::inline v0
