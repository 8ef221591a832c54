#include "cache/page_pool.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/ceil_div.hpp"
#include "base/check.hpp"
#include "base/splitmix64.hpp"

namespace polyhead::inline v0::cache {
namespace {

/// One step of a running hash.
std::uint64_t mixed(std::uint64_t hash, std::uint64_t more) {
  std::uint64_t state = hash ^ more;
  return base::splitmix64(state);
}

}  // namespace

PagePool::PagePool(std::int64_t pages, std::int64_t page_tokens)
    : page_tokens_(page_tokens),
      pages_(static_cast<std::size_t>(pages)),
      tokens_(static_cast<std::size_t>(pages * page_tokens)),
      free_(static_cast<std::size_t>(base::ceil_div(pages, 64))),
      buckets_(std::bit_ceil(pages_.size()), kNoPage),
      piece_pages_(std::clamp<std::int64_t>(pages / kPieces, 1, kLongestPiece)) {
  for (std::int64_t page = 0; page < pages; ++page) set_free(static_cast<std::int32_t>(page), true);
}

void PagePool::set_free(std::int32_t page, bool free) {
  free_[word_of(page)] ^= std::uint64_t{1} << (static_cast<std::uint32_t>(page) % 64);
  free_pages_ += free ? 1 : -1;
  POLYHEAD_DCHECK(is_free(page) == free);
}

/// The first page from `page` on that is free, or not; size() where there is none.
std::int64_t PagePool::next(std::int64_t page, bool free) const {
  while (page < size()) {
    const std::uint64_t word = free ? free_[word_of(page)] : ~free_[word_of(page)];
    const std::uint64_t from = word >> (page % 64);
    if (from != 0) return std::min<std::int64_t>(page + std::countr_zero(from), size());
    page = (page / 64 + 1) * 64;
  }
  return size();
}

/// The longest run of free pages.
PagePool::Run PagePool::longest_free() const {
  Run longest;
  for (std::int64_t first = next(0, true); first < size();) {
    const std::int64_t end = next(first, false);
    if (end - first > longest.pages) longest = {static_cast<std::int32_t>(first), end - first};
    first = next(end, true);
  }
  return longest;
}

/// Where a piece begins in a run of free pages: at its first, or further in where the page before
/// the run is held, whose sequence may grow into it. In the middle for a `fresh` sequence, so that
/// those that begin one after the other spread out; for one that goes on from elsewhere a few pages
/// on, if there are many.
std::int32_t PagePool::beginning(const Run& run, bool fresh) const {
  constexpr std::int64_t kLeft = 8;  // pages (docs/kernel-notes.md)
  if (run.first == 0 || holders(run.first - 1) == 0) return run.first;
  const std::int64_t left = fresh ? run.pages / 2 : run.pages > 2 * kLeft ? kLeft : 0;
  return run.first + static_cast<std::int32_t>(left);
}

/// Whether a page is idle, and since then at least half as many others became so as are idle now:
/// those are of the more recently used half, which keeps what it spells.
bool PagePool::is_old(std::int32_t page) const {
  const Page& p = at(page);
  return p.remembered && p.holders == 0 && clock_ - p.idle_since > idle_ / 2;
}

/// The least recently used page that has free and old ones behind it for a piece of piece_pages_;
/// of the oldest pages the one with the most, if none has as many.
PagePool::Run PagePool::oldest_room() const {
  Run best;
  std::int64_t looks = 8 * piece_pages_;
  for (std::int32_t page = oldest_; page != kNoPage && looks > 0; page = at(page).newer, --looks) {
    if (!is_old(page)) break;
    std::int64_t end = page + 1;
    const std::int64_t most = std::min(page + piece_pages_, size());
    while (end < most && (is_free(end) || is_old(static_cast<std::int32_t>(end)))) ++end;
    if (end - page > best.pages) best = {page, end - page};
    if (best.pages == piece_pages_) break;
  }
  return best;
}

/// The page to take: first what makes no new piece, then what forgets nothing. A piece goes on over
/// an old page even while short runs are free, and where many pages are free none is forgotten.
std::int32_t PagePool::choose(std::int32_t before) const {
  const bool fresh = before == kNoPage, inside = !fresh && before + 1 < size();
  if (inside && is_free(before + 1)) return before + 1;
  const Run free = longest_free();
  if (idle_ == 0 || free.pages >= 2 * piece_pages_) return beginning(free, fresh);
  if (piece_pages_ > 1 && inside && is_old(before + 1)) return before + 1;
  if (free.pages >= piece_pages_ || free_pages_ > size() / kMostFree) return beginning(free, fresh);
  const Run room = oldest_room();
  return room.pages > free.pages ? room.first : beginning(free, fresh);
}

std::int32_t PagePool::take(std::int32_t before) {
  POLYHEAD_DCHECK(available() > 0);
  const std::int32_t page = choose(before);
  if (is_free(page)) {
    set_free(page, false);
  } else {
    leave_idle(page);
    forget(page);
  }
  at(page).holders = 1;
  ++at(page).serial;
  return page;
}

void PagePool::hold(std::int32_t page) {
  if (at(page).holders++ == 0) leave_idle(page);
}

void PagePool::let_go(std::int32_t page) {
  if (--at(page).holders > 0) return;
  if (at(page).remembered)
    make_idle(page);
  else
    set_free(page, true);
}

std::span<const std::int32_t> PagePool::spelling(std::int32_t page) const {
  return {tokens_.data() + page * page_tokens_, static_cast<std::size_t>(page_tokens_)};
}

std::uint64_t PagePool::hash(const PageStamp& parent, std::uint64_t salt,
                             std::span<const std::int32_t> tokens) const {
  std::uint64_t h = parent.page == kNoPage ? mixed(0, salt) : at(parent.page).hash;
  for (const std::int32_t token : tokens) h = mixed(h, static_cast<std::uint32_t>(token));
  return h;
}

std::int32_t PagePool::find(const PageStamp& parent, std::uint64_t salt,
                            std::span<const std::int32_t> tokens) const {
  const std::uint64_t wanted = hash(parent, salt, tokens);
  for (std::int32_t page = buckets_[bucket(wanted)]; page != kNoPage; page = at(page).next) {
    const Page& p = at(page);
    // The parent was found the same way, so that the whole chain is compared, not its hash.
    if (p.hash == wanted && p.parent == parent && p.salt == salt &&
        std::ranges::equal(spelling(page), tokens)) {
      return page;
    }
  }
  return kNoPage;
}

void PagePool::remember(std::int32_t page, const PageStamp& parent, std::uint64_t salt,
                        std::span<const std::int32_t> tokens) {
  POLYHEAD_DCHECK(!at(page).remembered && at(page).child == kNoPage);
  Page& p = at(page);
  p.remembered = true;
  p.parent = parent;
  if (parent.page != kNoPage) {
    POLYHEAD_DCHECK(at(parent.page).remembered && stamp(parent.page) == parent);
    p.before = kNoPage;
    p.after = std::exchange(at(parent.page).child, page);
    if (p.after != kNoPage) at(p.after).before = page;
  }
  p.hash = hash(parent, salt, tokens);
  p.salt = salt;
  std::ranges::copy(tokens, tokens_.begin() + page * page_tokens_);
  p.next = std::exchange(buckets_[bucket(p.hash)], page);
}

void PagePool::forget(std::int32_t page) {
  if (!at(page).remembered) return;
  // From the ends of what spells on from it back to the page: no list of them is needed.
  for (std::int32_t last = page;;) {
    while (at(last).child != kNoPage) last = at(last).child;
    const std::int32_t parent = at(last).parent.page;
    forget_alone(last);
    if (last == page) return;
    if (at(last).holders == 0) {
      leave_idle(last);
      set_free(last, true);
    }
    last = parent;
  }
}

void PagePool::forget_alone(std::int32_t page) {
  Page& p = at(page);
  if (p.parent.page != kNoPage) {
    (p.before == kNoPage ? at(p.parent.page).child : at(p.before).after) = p.after;
    if (p.after != kNoPage) at(p.after).before = p.before;
  }
  std::int32_t* link = &buckets_[bucket(p.hash)];
  while (*link != page) link = &at(*link).next;
  *link = p.next;
  p.remembered = false;
  ++p.serial;
}

void PagePool::make_idle(std::int32_t page) {
  at(page).older = newest_;
  at(page).newer = kNoPage;
  (newest_ == kNoPage ? oldest_ : at(newest_).newer) = page;
  newest_ = page;
  at(page).idle_since = clock_++;
  ++idle_;
}

void PagePool::leave_idle(std::int32_t page) {
  const Page& p = at(page);
  (p.older == kNoPage ? oldest_ : at(p.older).newer) = p.newer;
  (p.newer == kNoPage ? newest_ : at(p.newer).older) = p.older;
  --idle_;
}

}  // namespace polyhead::inline v0::cache
