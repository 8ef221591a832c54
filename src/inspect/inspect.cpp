// The second pass: shares heads and query tiles out over workers.
#include "polyhead/inspect.h"

#include <algorithm>
#include <cstddef>

#include "attention/schedule.hpp"
#include "base/ceil_div.hpp"
#include "base/memory.hpp"
#include "base/refuse.hpp"
#include "base/share_out.hpp"
#include "inspect/validate.hpp"
#include "kernels/cpu/backend.hpp"

namespace polyhead::inline v0 {
namespace {

using base::ceil_div;
using kernels::InspectCall;
using kernels::cpu::InspectKernel;
using kernels::cpu::WeightRows;

/// Bytes between the scratch of workers.
std::int64_t scratch_stride(const InspectKernel& kernel, const InspectCall& call) {
  return base::round_up(kernel.scratch_bytes(call), base::kCacheLine);
}

/// How the wanted rows of each head are cut.
class WeightItems {
 public:
  WeightItems(const InspectKernel& kernel, const InspectCall& call, int workers) : call_(call) {
    constexpr std::int64_t kItemsPerWorker = 4;  // enough to even out unequal items
    const std::int64_t heads = std::max<std::int64_t>(1, call.attend.batch * call.head_count);
    const std::int64_t wanted = workers > 1 ? ceil_div(kItemsPerWorker * workers, heads) : 1;
    const std::int64_t most =
        std::clamp(ceil_div(call.query_count, wanted), kernel.least_rows, kernel.rows(call));
    // No item much smaller than the others: each fetches what the next one needs, if it lasts.
    const std::int64_t even = ceil_div(call.query_count, ceil_div(call.query_count, most));
    rows_ = ceil_div(even, kernel.least_rows) * kernel.least_rows;
    a_head_ = ceil_div(call.query_count, rows_);
  }

  std::int64_t count() const { return call_.attend.batch * call_.head_count * a_head_; }

  /// Past the last one: no rows.
  WeightRows operator[](std::int64_t item) const {
    if (item >= count()) return {};
    const std::int64_t offset = item % a_head_ * rows_;
    return {item / a_head_ / call_.head_count, item / a_head_ % call_.head_count,
            call_.first_query + offset, std::min(rows_, call_.query_count - offset)};
  }

 private:
  const InspectCall& call_;
  std::int64_t rows_, a_head_;
};

void store_weights(const InspectKernel& kernel, const InspectCall& call, const Crew& crew,
                   std::byte* memory) {
  if (call.query_count == 0) return;
  const WeightItems items(kernel, call, crew.workers);
  const std::int64_t stride = scratch_stride(kernel, call);
  base::share_out(*crew.executor, crew.workers, items.count(), [&](std::int64_t item, int worker) {
    kernel.store_weights(call, items[item], items[item + crew.workers], memory + worker * stride);
  });
}

void sum_heads(const InspectKernel& kernel, const InspectCall& call, const Crew& crew,
               std::byte* memory) {
  const std::int64_t heads = call.attend.q_heads, stride = scratch_stride(kernel, call);
  base::share_out(*crew.executor, crew.workers, call.attend.batch * heads,
                  [&](std::int64_t item, int worker) {
                    kernel.sum_head(call, item / heads, item % heads, memory + worker * stride);
                  });
}

}  // namespace

void inspect(const AttentionArguments& call, const InspectArguments& wanted,
             const Options& options) {
  const InspectCall resolved = door::resolve_inspect(call, wanted);
  const kernels::cpu::Backend& backend = kernels::cpu::backend(resolve_isa(options.isa));
  const InspectKernel& kernel = path_of(resolved.attend, backend).inspect;
  // An item is a head, or a row of weights at least.
  const std::int64_t rows = resolved.head_count * resolved.query_count;
  const std::int64_t items = resolved.attend.batch * std::max(resolved.attend.q_heads, rows);
  const Crew crew = crew_of("inspect", options).for_items(items);
  base::AlignedBuffer<std::byte> memory(
      static_cast<std::size_t>(crew.workers * scratch_stride(kernel, resolved)));
  if (resolved.weights.data) store_weights(kernel, resolved, crew, memory.data());
  if (resolved.received.data || resolved.pooled.data)
    sum_heads(kernel, resolved, crew, memory.data());
}

}  // namespace polyhead::inline v0
