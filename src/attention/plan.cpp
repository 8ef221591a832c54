// Plan, Workspace and the one-call door.
#include <sstream>
#include <utility>

#include "attention/describe.hpp"
#include "attention/limits.hpp"
#include "attention/schedule.hpp"
#include "attention/validate.hpp"
#include "base/element.hpp"
#include "base/memory.hpp"
#include "base/refuse.hpp"
#include "polyhead/attention.h"

namespace polyhead::inline v0 {
namespace {

using kernels::AttendCall;

/// A call of the largest sizes, as far as scratch depends on them.
AttendCall largest_call(const Limits& limits) {
  AttendCall call;
  call.head_dim = limits.head_dim;
  call.value_dim = limits.value_dim;
  call.q_heads = call.kv_heads = limits.kv_heads;
  call.kv_len = limits.kv_len;
  call.q.type = limits.q_type;
  call.k.type = limits.kv_type;
  call.v.type = v_type_of(limits);
  static constexpr std::byte kBias{};
  call.score.bias.data = &kBias;  // room for a bias tile, whether or not a call has one
  call.score.alibi = true;        // and for what it needs of shared rows
  return call;
}

}  // namespace

struct Plan::State {
  Limits limits;
  Isa isa;
  Crew crew;
  const kernels::cpu::Backend* backend;
  std::size_t scratch, bytes;  ///< of a workspace: scratch, and then the room for turns

  Schedule schedule(const AttendCall& call, std::byte* turns_room) const {
    return make_schedule(call, *backend, crew.workers, turns_room);
  }
};

struct Workspace::State {
  base::AlignedBuffer<std::byte> memory;
};

Workspace::Workspace(std::unique_ptr<State> state) : state_(std::move(state)) {}
Workspace::Workspace(Workspace&&) noexcept = default;
Workspace& Workspace::operator=(Workspace&&) noexcept = default;
Workspace::~Workspace() = default;
std::size_t Workspace::bytes() const { return state_ ? state_->memory.size() : 0; }

namespace {

/// A pool starts its threads when it is first used, which allocates: before run(), then.
void start_threads(const Crew& crew) {
  crew.executor->run(crew.workers, {[](void*, int) {}, nullptr});
}

}  // namespace

Plan::Plan(const Limits& limits, const Options& options) : state_(std::make_unique<State>()) {
  check_limits(limits);
  state_->limits = limits;
  state_->isa = resolve_isa(options.isa);
  state_->crew = crew_of("plan", options);
  state_->backend = &kernels::cpu::backend(state_->isa);
  const bool share = limits.batch > 1 && limits.kv_len >= kernels::cpu::kSplitKeys;
  state_->scratch =
      scratch_bytes(largest_call(limits), *state_->backend, state_->crew.workers, share, true);
  state_->bytes = state_->scratch + Turns::room_bytes(limits.batch);
  if (options.executor == nullptr) start_threads(state_->crew);
}

Plan::Plan(Plan&&) noexcept = default;
Plan& Plan::operator=(Plan&&) noexcept = default;
Plan::~Plan() = default;

Workspace Plan::make_workspace() const {
  auto state = std::make_unique<Workspace::State>();
  state->memory = base::AlignedBuffer<std::byte>(state_->bytes);
  return Workspace(std::move(state));
}

void Plan::run(const AttentionArguments& arguments, Workspace& workspace) const {
  const AttendCall call = door::resolve(arguments);
  check_within(state_->limits, "attention", call, arguments.kv.given());
  if (workspace.bytes() < state_->bytes) {
    base::refuse("attention", "workspace (", workspace.bytes(),
                 " bytes) is not one this plan made (", state_->bytes, " bytes)");
  }
  std::byte* const memory = workspace.state_->memory.data();
  run_schedule(call, state_->schedule(call, memory + state_->scratch), *state_->crew.executor,
               memory);
}

namespace {

struct Described {
  Isa isa;
  ElementType q_type, k_type, v_type;
  std::int64_t head_dim, value_dim;
  int workers;
  std::size_t bytes;
};

std::string text_of(const Described& of) {
  std::ostringstream text;
  text << "attention on " << isa_name(of.isa) << ": q " << element_name(of.q_type);
  if (of.k_type == of.v_type)
    text << ", k and v " << element_name(of.k_type);
  else
    text << ", k " << element_name(of.k_type) << ", v " << element_name(of.v_type);
  text << ", head_dim " << of.head_dim << ", value_dim " << of.value_dim << ", key blocks of "
       << kernels::cpu::kKeyBlock << ", splits of " << kernels::cpu::kSplitKeys << " keys, "
       << of.workers << (of.workers == 1 ? " worker, " : " workers, ") << of.bytes
       << " bytes of scratch";
  return text.str();
}

std::string text_of(const AttendCall& call, const Schedule& schedule) {
  std::ostringstream text;
  text << "; this call: " << schedule.kernel->name << ", " << schedule.items << " work items";
  if (!schedule.turns.share()) text << " of up to " << schedule.rows_per_item << " rows";
  if (schedule.key_splits > 1) text << ", keys in " << schedule.key_splits << " splits";
  if (schedule.split_major) text << ", split by split for all KV heads";
  if (schedule.turns.share()) {
    const KeysRead keys = keys_read(call, schedule);
    text << ", prefixes shared: " << keys.together << " keys read instead of " << keys.apart;
  }
  text << ", " << schedule.workers << (schedule.workers == 1 ? " worker" : " workers");
  return text.str();
}

/// All of a call of attention() but its computation.
struct Prepared {
  const AttendCall call;
  const Crew crew;
  const Isa isa;
  const kernels::cpu::Backend& backend;
  base::AlignedBuffer<std::byte> turns_room;
  const Schedule schedule;
  const std::size_t bytes;  // of scratch

  Prepared(const AttentionArguments& arguments, const Options& options)
      : call(door::resolve(arguments)),
        crew(crew_of("attention", options)),
        isa(resolve_isa(options.isa)),
        backend(kernels::cpu::backend(isa)),
        turns_room(Turns::room_bytes(call)),
        schedule(make_schedule(call, backend, crew.workers, turns_room.data())),
        bytes(scratch_bytes(call, backend, schedule.workers, schedule.turns.share(),
                            schedule.split_major)) {}
};

}  // namespace

std::string Plan::describe() const {
  const Limits& limits = state_->limits;
  return text_of({state_->isa, limits.q_type, limits.kv_type, v_type_of(limits), limits.head_dim,
                  limits.value_dim, state_->crew.workers, state_->bytes});
}

std::string Plan::describe(const AttentionArguments& arguments) const {
  const AttendCall call = door::resolve(arguments);
  check_within(state_->limits, "attention", call, arguments.kv.given());
  base::AlignedBuffer<std::byte> turns_room(Turns::room_bytes(call));
  return describe() + text_of(call, state_->schedule(call, turns_room.data()));
}

std::string describe_call(const AttentionArguments& arguments, const Options& options) {
  const Prepared prepared(arguments, options);
  const AttendCall& call = prepared.call;
  return text_of({prepared.isa, call.q.type, call.k.type, call.v.type, call.head_dim,
                  call.value_dim, prepared.crew.workers, prepared.bytes}) +
         text_of(call, prepared.schedule);
}

void attention(const AttentionArguments& arguments, const Options& options) {
  const Prepared prepared(arguments, options);
  base::AlignedBuffer<std::byte> memory(prepared.bytes);
  run_schedule(prepared.call, prepared.schedule, *prepared.crew.executor, memory.data());
}

}  // namespace polyhead::inline v0
