// Attention over a sliding cache with positions in the cache: at once, and prepared.
#include "polyhead/sliding_attention.h"

#include <utility>

#include "attention/schedule.hpp"
#include "base/refuse.hpp"
#include "layers/in_cache.hpp"

namespace polyhead::inline v0 {
namespace {

constexpr const char* kCall = "attend_in_cache";

layers::InCacheCall call_of(const SlidingCache& cache, const InCacheArguments& arguments,
                            const Limits* limits = nullptr) {
  return {.name = kCall,
          .cache = cache,
          .q = arguments.q,
          .type = arguments.q.type,
          .out = arguments.out,
          .lse = arguments.lse,
          .modifiers = arguments.modifiers,
          .counts = arguments.counts,
          .offsets = arguments.q_offsets,
          .limits = limits};
}

}  // namespace

void attend_in_cache(const SlidingCache& cache, const RopeConfig& rope,
                     const InCacheArguments& arguments, const Options& options) {
  const layers::InCache call(call_of(cache, arguments));
  const std::int64_t dim = cache.config().head_dim;
  position::check_rope(kCall, rope, dim);
  const bool tables = call.tokens() > position::kTableTokens;
  layers::InCacheRooms rooms;
  call.run(
      position::Rotation(rope, dim, tables), rooms,
      [&](const AttentionArguments& part) { attention(part, options); }, crew_of(kCall, options));
}

// --- prepared once ---

struct InCacheWorkspace::State {
  Workspace attention;
  layers::InCacheSizes sizes;  ///< that the rooms are for
  layers::InCacheRooms rooms;
};

InCacheWorkspace::InCacheWorkspace(std::unique_ptr<State> state) : state_(std::move(state)) {}
InCacheWorkspace::InCacheWorkspace(InCacheWorkspace&&) noexcept = default;
InCacheWorkspace& InCacheWorkspace::operator=(InCacheWorkspace&&) noexcept = default;
InCacheWorkspace::~InCacheWorkspace() = default;
std::size_t InCacheWorkspace::bytes() const {
  return state_ ? state_->attention.bytes() + state_->rooms.bytes() : 0;
}

struct InCachePlan::State {
  Limits limits;
  position::Rotation rotation;
  Crew crew;
  Plan attention;

  layers::InCacheSizes sizes() const {
    return {.batch = limits.batch,
            .tokens = limits.batch * limits.q_len,
            .q_heads = limits.q_heads,
            .head_dim = limits.head_dim,
            .value_dim = limits.value_dim,
            .q_bytes = element_bytes(limits.q_type),
            .workers = crew.workers};
  }
};

InCachePlan::InCachePlan(const Limits& limits, const RopeConfig& rope, const Options& options) {
  Plan attention(limits, options);
  layers::check_in_cache_rows(kCall, limits.batch, limits.q_len, limits.q_heads);
  position::check_rope(kCall, rope, limits.head_dim);
  state_ = std::make_unique<State>(State{limits, position::Rotation(rope, limits.head_dim, true),
                                         crew_of(kCall, options), std::move(attention)});
}
InCachePlan::InCachePlan(InCachePlan&&) noexcept = default;
InCachePlan& InCachePlan::operator=(InCachePlan&&) noexcept = default;
InCachePlan::~InCachePlan() = default;

InCacheWorkspace InCachePlan::make_workspace() const {
  auto state = std::make_unique<InCacheWorkspace::State>(
      InCacheWorkspace::State{state_->attention.make_workspace(), state_->sizes(), {}});
  state->rooms.need(state->sizes);
  return InCacheWorkspace(std::move(state));
}

void InCachePlan::run(const SlidingCache& cache, const InCacheArguments& arguments,
                      InCacheWorkspace& workspace) const {
  const layers::InCache call(call_of(cache, arguments, &state_->limits));
  if (!workspace.state_) base::refuse(kCall, "workspace was moved from, expected the plan's");
  if (!workspace.state_->sizes.cover(state_->sizes()))
    base::refuse(kCall, "workspace is of smaller limits, expected one this plan made");
  call.run(
      state_->rotation, workspace.state_->rooms,
      [&](const AttentionArguments& part) {
        state_->attention.run(part, workspace.state_->attention);
      },
      state_->crew);
}

}  // namespace polyhead::inline v0
