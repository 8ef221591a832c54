// The pages of a paged cache: who holds them, which are free, which spell a known prefix.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace polyhead::inline v0::cache {

inline constexpr std::int32_t kNoPage = -1;

/// A page together with what it was at a time: a page that was evicted since has another serial.
struct PageStamp {
  std::int32_t page = kNoPage;
  std::uint64_t serial = 0;
  bool operator==(const PageStamp&) const = default;
};

/// Counts, which pages are free, and the index of remembered prefixes. Knows nothing of rows. Only
/// the constructor allocates: nothing after it can fail.
class PagePool {
 public:
  PagePool(std::int64_t pages, std::int64_t page_tokens);

  std::int64_t size() const { return static_cast<std::int64_t>(pages_.size()); }
  std::int64_t available() const { return free_pages_ + idle_; }
  std::int64_t idle() const { return idle_; }
  std::int64_t holders(std::int32_t page) const { return at(page).holders; }

  /// A page with one holder, of which there is one: see available(). Pages that follow each other
  /// are read as one piece: it is the one after `before`, where that is free, and else begins a
  /// piece where there is room for it to grow. Where little is free an idle page is forgotten, one
  /// of those least recently used, and with it those that spell on from it: at once what a piece
  /// grows into, so that a pool that has been full keeps sequences in pieces
  /// (docs/kernel-notes.md).
  std::int32_t take(std::int32_t before = kNoPage);
  void hold(std::int32_t page);
  /// A page without holders stays idle if it is remembered, else becomes free.
  void let_go(std::int32_t page);

  /// The remembered page that spells `tokens` after `parent` under `salt`; kNoPage if there is
  /// none.
  std::int32_t find(const PageStamp& parent, std::uint64_t salt,
                    std::span<const std::int32_t> tokens) const;
  /// Remembers a held page, which find() does not know: no equal one is remembered. Its parent is.
  void remember(std::int32_t page, const PageStamp& parent, std::uint64_t salt,
                std::span<const std::int32_t> tokens);
  /// A page is about to be written: it is no longer remembered, nor are those that spell on from it
  /// and would not be found any more.
  void forget(std::int32_t page);
  PageStamp stamp(std::int32_t page) const { return {page, at(page).serial}; }
  /// Where find() looks; others may have the same.
  std::uint64_t hash(const PageStamp& parent, std::uint64_t salt,
                     std::span<const std::int32_t> tokens) const;

 private:
  struct Page {
    std::int64_t holders = 0;
    std::uint64_t serial = 0;  // how often it was taken or forgotten
    bool remembered = false;
    std::int64_t idle_since = 0;  // by clock_
    std::uint64_t hash = 0, salt = 0;
    PageStamp parent;
    std::int32_t next = kNoPage;                     // of the same bucket
    std::int32_t older = kNoPage, newer = kNoPage;   // among the idle ones
    std::int32_t child = kNoPage;                    // the first that spells on from this one
    std::int32_t before = kNoPage, after = kNoPage;  // among the children of its parent
  };

  Page& at(std::int32_t page) { return pages_[static_cast<std::size_t>(page)]; }
  const Page& at(std::int32_t page) const { return pages_[static_cast<std::size_t>(page)]; }
  std::size_t bucket(std::uint64_t hash) const { return hash & (buckets_.size() - 1); }
  bool is_free(std::int64_t page) const { return free_[word_of(page)] >> (page % 64) & 1; }
  void set_free(std::int32_t page, bool free);
  std::int64_t next(std::int64_t page, bool free) const;
  /// Pages that follow each other.
  struct Run {
    std::int32_t first = kNoPage;
    std::int64_t pages = 0;
  };
  Run longest_free() const;
  Run oldest_room() const;
  std::int32_t beginning(const Run& run, bool fresh) const;
  bool is_old(std::int32_t page) const;
  std::int32_t choose(std::int32_t before) const;
  static std::size_t word_of(std::int64_t page) { return static_cast<std::size_t>(page / 64); }
  std::span<const std::int32_t> spelling(std::int32_t page) const;
  void forget_alone(std::int32_t page);
  void make_idle(std::int32_t page);
  void leave_idle(std::int32_t page);

  std::int64_t page_tokens_;
  std::vector<Page> pages_;
  std::vector<std::int32_t> tokens_;  // [page][page_tokens]: what remembered pages spell
  std::vector<std::uint64_t> free_;   // a bit a page
  std::int64_t free_pages_ = 0;
  std::vector<std::int32_t> buckets_;  // the first remembered page of each hash; a power of two
  std::int32_t oldest_ = kNoPage, newest_ = kNoPage;
  std::int64_t idle_ = 0;
  std::int64_t clock_ = 0;  // how many became idle so far
  /// Pages that a piece has room for if it can: a share of the pool. Of a small one that is a page,
  /// and exactly the least recently used one is forgotten. With one page in kMostFree free, those
  /// do.
  static constexpr std::int64_t kPieces = 64, kLongestPiece = 64, kMostFree = 8;
  std::int64_t piece_pages_;
};

}  // namespace polyhead::inline v0::cache
