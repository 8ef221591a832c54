// Attention over a sliding cache with positions in the cache: at once, and prepared.
#include "polyhead/sliding_attention.h"

#include <optional>
#include <utility>

#include "attention/schedule.hpp"
#include "base/refuse.hpp"
#include "layers/in_cache.hpp"

namespace polyhead::inline v0 {
namespace {

constexpr const char* kCall = "attend_in_cache";

layers::InCacheCall call_of(const SlidingCache& cache, const InCacheArguments& arguments,
                            bool turned, const Limits* limits = nullptr) {
  return {.name = kCall,
          .cache = cache,
          .q = arguments.q,
          .type = arguments.q.type,
          .out = arguments.out,
          .lse = arguments.lse,
          .modifiers = arguments.modifiers,
          .turned = turned,
          .counts = arguments.counts,
          .offsets = arguments.q_offsets,
          .limits = limits};
}

std::optional<position::Rotation> rotation_of(const std::optional<RopeConfig>& rope,
                                              std::int64_t head_dim, bool tables) {
  if (!rope) return {};
  position::check_rope(kCall, *rope, head_dim);
  return position::Rotation(*rope, head_dim, tables);
}

}  // namespace

void attend_in_cache(const SlidingCache& cache, const std::optional<RopeConfig>& rope,
                     const InCacheArguments& arguments, const Options& options) {
  const layers::InCache call(call_of(cache, arguments, rope.has_value()));
  const auto rotation =
      rotation_of(rope, cache.config().head_dim, call.tokens() > position::kTableTokens);
  layers::InCacheRooms rooms;
  call.run(
      rotation ? &*rotation : nullptr, rooms,
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
  std::optional<position::Rotation> rotation;
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

InCachePlan::InCachePlan(const Limits& limits, const std::optional<RopeConfig>& rope,
                         const Options& options) {
  Plan attention(limits, options);
  layers::check_in_cache_rows(kCall, limits.batch, limits.q_len, limits.q_heads);
  state_ = std::make_unique<State>(State{limits, rotation_of(rope, limits.head_dim, true),
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
  const std::optional<position::Rotation>& rotation = state_->rotation;
  const layers::InCache call(call_of(cache, arguments, rotation.has_value(), &state_->limits));
  if (!workspace.state_) base::refuse(kCall, "workspace was moved from, expected the plan's");
  if (!workspace.state_->sizes.cover(state_->sizes()))
    base::refuse(kCall, "workspace is of smaller limits, expected one this plan made");
  call.run(
      rotation ? &*rotation : nullptr, workspace.state_->rooms,
      [&](const AttentionArguments& part) {
        state_->attention.run(part, workspace.state_->attention);
      },
      state_->crew);
}

}  // namespace polyhead::inline v0
