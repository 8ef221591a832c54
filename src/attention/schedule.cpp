#include "attention/schedule.hpp"

#include <algorithm>

#include "attention/items.hpp"
#include "attention/run.hpp"
#include "attention/shared_rows.hpp"
#include "base/ceil_div.hpp"
#include "base/codes.hpp"

namespace polyhead::inline v0 {
namespace {

using base::ceil_div;
using kernels::AttendCall;
using kernels::cpu::AttendKernel;
using kernels::cpu::Backend;
using kernels::cpu::ElementPath;
using kernels::cpu::kSplitKeys;

constexpr std::int64_t kItemsPerWorker = 4;  // enough to even out unequal items

/// Kernels made for few rows leave user code and per-pair randomness to prefill, which gives the
/// same bits.
bool decodes(const AttendCall& call, const AttendKernel& kernel) {
  return kernel.attend != nullptr && kernel.rows(call) > 0 /* 0: not this layout */ &&
         call.score.custom_count == 0 && call.score.dropout == 0.0f && !call.entropy.data &&
         !call.max_weight.data && !call.max_key.data;
}

void choose_kernels(Schedule& schedule, const AttendCall& call, const Backend& backend) {
  const ElementPath& path = path_of(call, backend);
  const AttendKernel &few = path.decode, &many = path.prefill;
  schedule.kernel = schedule.shared_many = &many;
  if (!decodes(call, few)) return;
  schedule.shared_few = &few;
  if (call.q_len * call.group() <= few.rows(call))
    schedule.kernel = &few;
  else if (call.q_offsets.given() || call.q_lengths.given())
    schedule.few = &few;
}

std::int64_t count_items(const AttendCall& call, const Schedule& schedule) {
  const bool uneven = call.q_offsets.given() || call.q_lengths.given() || schedule.turns.share() ||
                      schedule.key_splits > 1 || schedule.split_major;
  std::int64_t items = 0;
  if (!uneven)
    items = call.batch * ceil_div(call.q_len * call.group(), schedule.rows_per_item);
  else
    for (std::int64_t at = 0; at < schedule.turns.count(); ++at) {
      const Turn turn = schedule.turns[at];
      items +=
          items_a_head(schedule, turn, cut_of(call, schedule, schedule.turns.sequence(turn, 0)));
    }
  return items * call.kv_heads;
}

/// Of any sequence, one at least.
std::int64_t most_splits_seen(const AttendCall& call) {
  std::int64_t most = 1;
  for (std::int64_t b = 0; b < call.batch; ++b) most = std::max(most, splits_seen(call, b).count);
  return most;
}

/// How many items the rows of a head are to be, each of which reads and packs all keys again: rows
/// that fit one item are cut only where even their splits are too few items, and a few, which cost
/// little more than one, only where workers would have none.
std::int64_t cuts_of_rows(const AttendCall& call, const Schedule& schedule, std::int64_t heads,
                          int workers) {
  const std::int64_t wanted = kItemsPerWorker * workers;
  if (workers == 1 || heads >= wanted) return 1;
  if (call.q_len * call.group() > schedule.kernel->rows(call)) return ceil_div(wanted, heads);
  const bool few = schedule.kernel == schedule.shared_few;
  return ceil_div(few ? workers : wanted, heads * most_splits_seen(call));
}

constexpr std::size_t kMostHeadRooms = std::size_t{512} << 10;  // bytes

/// Bytes in front for one room a KV head; 0 where turns would make no difference.
std::size_t head_rooms(const AttendCall& call, const AttendKernel& few) {
  if (few.attend == nullptr || call.kv_heads < 2 || call.kv_len <= kSplitKeys) return 0;
  return static_cast<std::size_t>(call.kv_heads) * head_room(aligned(few.partial_bytes(call)));
}

/// Sequences of few rows over pages in which heads lie beside each other, of which every query sees
/// the first keys; and so few workers that a head's splits, one after the other, keep none of them
/// waiting.
bool goes_split_by_split(const AttendCall& call, const Schedule& schedule, int workers) {
  const bool heads_together = call.k.head < call.k.batch;
  if (!call.pages.given() || !heads_together || schedule.kernel != schedule.shared_few ||
      schedule.turns.share() || call.mask.left >= 0 || 2 * std::int64_t{workers} > call.kv_heads) {
    return false;
  }
  const std::size_t rooms = head_rooms(call, *schedule.kernel);
  return rooms > 0 && rooms <= kMostHeadRooms;
}

}  // namespace

const ElementPath& path_of(const AttendCall& call, const Backend& backend) {
  const auto bfloat16 = [](ElementType type) { return type == ElementType::bfloat16; };
  const auto pairs = [&](ElementType type) { return bfloat16(type) || base::is_float8(type); };
  const auto keys = [&](const auto& are) { return are(call.k.type) && are(call.v.type); };
  if (!bfloat16(call.q.type)) return backend.float32;
  const ElementPath& path = keys(pairs)             ? backend.bfloat16
                            : keys(base::is_scaled) ? backend.integer
                                                    : backend.float32;
  return path.prefill.attend ? path : backend.float32;
}

Schedule make_schedule(const AttendCall& call, const Backend& backend, int workers,
                       std::byte* room) {
  Schedule schedule;
  choose_kernels(schedule, call, backend);
  const std::int64_t rows = call.q_len * call.group();
  // Nothing to cut, of however many sequences.
  if (call.batch == 0 || call.kv_heads == 0 || rows == 0) return schedule;
  const std::int64_t most = schedule.kernel->rows(call), least = schedule.kernel->least_rows;
  // Full items share packed keys; smaller ones keep all workers busy.
  const std::int64_t wanted = workers > 1 ? kItemsPerWorker * workers : 1;
  const std::int64_t heads = std::max<std::int64_t>(1, call.batch * call.kv_heads);
  const std::int64_t even =
      ceil_div(ceil_div(rows, cuts_of_rows(call, schedule, heads, workers)), least) * least;
  // No item much smaller than the others: each fetches what the next one needs, if it lasts.
  const std::int64_t items = ceil_div(rows, std::clamp(even, least, most));
  schedule.rows_per_item =
      std::max(least, ceil_div(ceil_div(rows, std::max<std::int64_t>(1, items)), least) * least);
  schedule.turns.arrange(call, schedule.shared_many->rows(call), room);
  schedule.split_major = goes_split_by_split(call, schedule, workers);
  if (schedule.split_major) schedule.rows_per_item = std::max<std::int64_t>(1, rows);
  schedule.items = count_items(call, schedule);
  if (workers > 1 && schedule.items < wanted && !schedule.split_major) {
    schedule.key_splits = most_splits_seen(call);
    if (schedule.key_splits > 1) schedule.items = count_items(call, schedule);
  }
  schedule.workers = static_cast<int>(std::clamp<std::int64_t>(schedule.items, 1, workers));
  return schedule;
}

std::size_t scratch_bytes(const AttendCall& call, const Backend& backend, int workers, bool share,
                          bool split_major) {
  std::size_t scratch = 0, room = 0;
  for (const AttendKernel* kernel :
       {&backend.float32.prefill, &backend.float32.decode, &backend.bfloat16.prefill,
        &backend.bfloat16.decode, &backend.integer.prefill, &backend.integer.decode}) {
    if (kernel->attend == nullptr) continue;
    scratch = std::max(scratch, aligned(kernel->scratch_bytes(call)));
    room = std::max(room, aligned(kernel->partial_bytes(call)));
    if (share) room = std::max(room, aligned(SharedRows::bytes(call, kernel->rows(call))));
  }
  const int rooms = workers == 1 && !share ? 0 : rooms_a_worker(share);
  const std::size_t each = scratch + static_cast<std::size_t>(rooms) * room;
  std::size_t in_front = workers > 1 ? static_cast<std::size_t>(rooms_in_front(share)) * room : 0;
  for (const ElementPath* path : {&backend.float32, &backend.bfloat16, &backend.integer}) {
    if (split_major)
      in_front = std::max(in_front, std::min(head_rooms(call, path->decode), kMostHeadRooms));
  }
  return in_front + static_cast<std::size_t>(workers) * each;
}

KeysRead keys_read(const AttendCall& call, const Schedule& schedule) {
  KeysRead keys;
  std::int64_t spared = 0;
  for (std::int64_t at = 0; at < schedule.turns.count(); ++at) {
    const Turn turn = schedule.turns[at];
    for (std::int64_t i = 0; i < turn.count; ++i)
      keys.apart += kernels::sequence_of(call, schedule.turns.sequence(turn, i)).kv_len;
    for (int i = 0; i < turn.stretches; ++i) {
      const Stretch& stretch = schedule.turns.stretch(turn, i);
      if (stretch.shared()) spared += (stretch.count - 1) * stretch.splits() * kSplitKeys;
    }
  }
  keys.together = keys.apart - spared;
  return keys;
}

}  // namespace polyhead::inline v0
