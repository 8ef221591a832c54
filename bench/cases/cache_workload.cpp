// One decoding step over a cache made ready to run.
#include <algorithm>
#include <random>
#include <numeric>
#include <optional>

#include "cases/numbers.hpp"
#include "polyhead/attention.h"
#include "polyhead/kv_cache.h"
#include "polyhead/paged_cache.h"

namespace polyhead::bench {
namespace {

constexpr std::int64_t kChunk = 256;  // tokens that enter a cache at once

/// Tokens of each sequence: kv_len each, or from next to none to twice as many, in no order and the
/// same in sum.
std::vector<std::int64_t> lengths_of(const Case& c) {
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(c.batch), c.kv_len);
  if (!c.ragged) return lengths;
  for (std::int64_t i = 0; i < c.batch; ++i)
    lengths[static_cast<std::size_t>(i)] = c.kv_len * (2 * i + 1) / c.batch;
  std::shuffle(lengths.begin(), lengths.end(), std::minstd_rand(1));
  return lengths;
}

double bytes_a_value(ElementType type) {
  switch (type) {
    case ElementType::int8:
      return 1.125;
    case ElementType::int4:
      return 0.625;
    case ElementType::float8_e4m3:
    case ElementType::float8_e5m2:
      return 1.0;
    default:
      return static_cast<double>(element_bytes(type));
  }
}

class CacheStep : public Workload {
 public:
  CacheStep(const Case& c, Isa isa, Executor& executor)
      : lengths_(lengths_of(c)),
        q_(c.type, c.batch * c.q_heads * c.head_dim, 1),
        rows_(c.type, kChunk * c.kv_heads * c.head_dim, 2),
        out_(c.type, c.batch * c.q_heads * c.head_dim, 3),
        options_(options_of(isa, executor)),
        plan_(limits_of(c), options_),
        workspace_(plan_.make_workspace()) {
    if (c.page_tokens > 0)
      fill_pages(c);
    else
      fill_cache(c);
    call_.q = {q_.data(), c.type, {c.batch, std::int64_t{1}, c.q_heads, c.head_dim}};
    call_.out = {out_.data(), c.type, {c.batch, std::int64_t{1}, c.q_heads, c.head_dim}};
    call_.mask = causal(Align::end);
    const auto keys =
        static_cast<double>(std::accumulate(lengths_.begin(), lengths_.end(), std::int64_t{0}));
    work_ = 4.0 * keys * static_cast<double>(c.q_heads * c.head_dim);
    if (c.against == Against::dram)
      work_ = 2.0 * keys * static_cast<double>(c.kv_heads * c.head_dim) * bytes_a_value(c.cached);
  }

  void run() override { plan_.run(call_, workspace_); }

 private:
  Limits limits_of(const Case& c) const {
    Limits limits;
    limits.batch = c.batch;
    limits.kv_len = *std::max_element(lengths_.begin(), lengths_.end());
    limits.q_heads = c.q_heads;
    limits.kv_heads = c.kv_heads;
    limits.head_dim = limits.value_dim = c.head_dim;
    limits.q_type = c.type;
    limits.kv_type = c.cached;
    return limits;
  }

  void fill_cache(const Case& c) {
    KvCacheConfig config;
    config.kv_heads = c.kv_heads;
    config.head_dim = c.head_dim;
    config.type = c.cached;
    config.capacity = c.kv_len;
    cache_.emplace(config);
    for (std::int64_t at = 0; at < c.kv_len; at += kChunk) {
      const std::int64_t tokens = std::min(kChunk, c.kv_len - at);
      const ConstView chunk{
          rows_.data(), c.type, {std::int64_t{1}, tokens, c.kv_heads, c.head_dim}};
      cache_->append(chunk, chunk);
    }
    call_.kv = cache_->view();
  }

  /// The sequence that one branches off, and after how many tokens: 0 for one of its own.
  struct Branch {
    std::size_t from;
    std::int64_t tokens;
  };
  static Branch branch_of(const Case& c, std::size_t b) {
    if (b % 4 != 0 && c.shared_by_four > 0) return {b - b % 4, c.shared_tokens + c.shared_by_four};
    return {0, b > 0 ? c.shared_tokens : 0};
  }

  /// Pages as the pool places them, or in no order, which is worse than what is left after
  /// sequences have come and gone.
  void fill_pages(const Case& c) {
    PagedCacheConfig config;
    config.page_tokens = c.page_tokens;
    config.kv_heads = c.kv_heads;
    config.head_dim = c.head_dim;
    config.type = c.cached;
    for (std::size_t b = 0; b < lengths_.size(); ++b)
      config.pages += (lengths_[b] - branch_of(c, b).tokens + c.page_tokens - 1) / c.page_tokens;
    pages_.emplace(config);
    std::vector<std::int64_t> sequences;
    for (std::size_t b = 0; b < lengths_.size(); ++b) {
      const Branch branch = branch_of(c, b);
      if (branch.tokens > 0) {
        sequences.push_back(pages_->fork(sequences[branch.from]));
        pages_->truncate(sequences.back(), branch.tokens);
      } else {
        sequences.push_back(pages_->create());
      }
      for (std::int64_t at = branch.tokens; at < lengths_[b]; at += kChunk) {
        const std::int64_t tokens = std::min(kChunk, lengths_[b] - at);
        const ConstView chunk{rows_.data(), c.type, {tokens, c.kv_heads, c.head_dim}};
        if (pages_->append(sequences.back(), chunk, chunk) != PagedCache::Status::ok) break;
      }
    }
    pages_->batch(sequences, batch_);
    if (!c.pages_in_order) scatter(c, config.pages);
    call_.kv = pages_->view(0, batch_);
  }

  /// Every page changes its place with another one.
  void scatter(const Case& c, std::int64_t pages) {
    std::vector<std::int32_t> place(static_cast<std::size_t>(pages));
    std::iota(place.begin(), place.end(), 0);
    std::shuffle(place.begin(), place.end(), std::minstd_rand(1));
    for (std::size_t b = 0; b < lengths_.size(); ++b) {
      const std::int64_t held = (lengths_[b] + c.page_tokens - 1) / c.page_tokens;
      std::int32_t* const entries =
          &batch_.table[b * static_cast<std::size_t>(batch_.pages_a_sequence)];
      for (std::int64_t i = 0; i < held; ++i)
        entries[i] = place[static_cast<std::size_t>(entries[i])];
    }
  }

  std::vector<std::int64_t> lengths_;
  Numbers q_, rows_, out_;
  std::optional<KvCache> cache_;
  std::optional<PagedCache> pages_;
  PagedBatch batch_;
  AttentionArguments call_;
  Options options_;
  Plan plan_;
  Workspace workspace_;
};

}  // namespace

std::unique_ptr<Workload> make_cache_workload(const Case& of, Isa isa, Executor& executor) {
  return std::make_unique<CacheStep>(of, isa, executor);
}

}  // namespace polyhead::bench
