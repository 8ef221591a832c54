// The second pass: shares heads and query tiles out over workers.
#include "polyhead/inspect.h"

#include <algorithm>
#include <cstddef>

#include "attention/schedule.hpp"
#include "base/memory.hpp"
#include "base/refuse.hpp"
#include "base/share_out.hpp"
#include "inspect/validate.hpp"
#include "kernels/cpu/backend.hpp"

namespace polyhead::inline v0 {
namespace {

using kernels::InspectCall;
using kernels::cpu::InspectKernel;

/// Bytes between the scratch of workers.
std::int64_t scratch_stride(const InspectKernel& kernel, const InspectCall& call) {
  return (kernel.scratch_bytes(call) + 63) / 64 * 64;
}

void store_weights(const InspectKernel& kernel, const InspectCall& call, const Crew& crew,
                   std::byte* memory) {
  const std::int64_t tiles = (call.query_count + kernel.rows - 1) / kernel.rows;
  const std::int64_t stride = scratch_stride(kernel, call);
  base::share_out(
      *crew.executor, crew.workers, call.attend.batch * call.head_count * tiles,
      [&](std::int64_t item, int worker) {
        const std::int64_t tile = item % tiles, head = item / tiles % call.head_count;
        const std::int64_t offset = tile * kernel.rows;
        const auto rows =
            static_cast<int>(std::min<std::int64_t>(kernel.rows, call.query_count - offset));
        const std::int64_t first = call.first_query + offset;
        kernel.store_weights(call, item / tiles / call.head_count, head, first, rows,
                             first + crew.workers * kernel.rows, memory + worker * stride);
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
  if (options.threads < 0) base::refuse("inspect", "threads (", options.threads, ") is negative");
  const kernels::cpu::Backend& backend = kernels::cpu::backend(resolve_isa(options.isa));
  const InspectKernel& kernel = path_of(resolved.attend, backend).inspect;
  const Crew crew = crew_of(options);
  base::AlignedBuffer<std::byte> memory(
      static_cast<std::size_t>(crew.workers * scratch_stride(kernel, resolved)));
  if (resolved.weights.data) store_weights(kernel, resolved, crew, memory.data());
  if (resolved.received.data || resolved.pooled.data)
    sum_heads(kernel, resolved, crew, memory.data());
}

}  // namespace polyhead::inline v0
