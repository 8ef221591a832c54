// The one door: every argument of a call is checked here, once, before anything is written.
#pragma once

#include "base/footprint.hpp"
#include "kernels/contract.hpp"
#include "polyhead/attention.h"

namespace polyhead::inline v0::door {

using base::check_writable;
using base::Footprint;
using base::footprint_of;
using base::kernel_stride;
using base::kMaxDim;
using base::kMaxExtent;

/// What the call is for: attention itself, a second pass that reads q, k and the LSE and needs
/// neither v nor out, or a trace, which reads v as well.
enum class Purpose { forward, second_pass, trace };

/// What refusals call the call and its output.
struct CallName {
  const char *call, *out;

  CallName(const char* of, const char* output = "out") : call(of), out(output) {}
};

/// Everything that a call reads: no output may touch it.
struct Inputs {
  // q, k, v, 2 scales, table, oldest, 2 offsets, start, 3 lengths, 2 documents, 4 boolean masks,
  // bias, slopes, sink, ids, lse or heads of a second pass
  Footprint prints[25];
  int count = 0;

  void add(const Footprint& print) { prints[count++] = print; }
};

/// 1 / sqrt(head_dim), the scale where none is given, however the thread rounds.
float default_scale(std::int64_t head_dim);

/// Checks `arguments` and gives what every backend takes; what it reads is added to `inputs`.
/// Throws InvalidArgument whose message begins with the call's name; allocates only then. The
/// views' data must outlive the result; lengths, offsets and starts are read here.
kernels::AttendCall resolve(const AttentionArguments& arguments, CallName name, Purpose purpose,
                            Inputs& inputs);
kernels::AttendCall resolve(const AttentionArguments& arguments, CallName name = "attention",
                            Purpose purpose = Purpose::forward);

/// Checks a cache's view for a call whose batch, q_heads and head_dim are known and fills what it
/// says into `call`: k, v, pages, lengths and the sizes they give. What it points to is added to
/// `inputs`.
void resolve_view(const char* call_name, const KvView& view, bool with_values,
                  kernels::AttendCall& call, Inputs& inputs);

/// Checks the mask, the modifiers and the positions of a call whose sizes and lengths are known,
/// and fills them into `call`; `q_tokens` and `kv_tokens` are those of the q and k views.
void resolve_scores(const char* call_name, const AttentionArguments& arguments,
                    std::int64_t q_tokens, std::int64_t kv_tokens, kernels::AttendCall& call,
                    Inputs& inputs);

/// Checks what the mask and the modifiers say whatever call they come with; what views point to is
/// not read, and what another mask may bring (`causal`, for a prefix) not asked for.
void check_settings(const char* call, const Mask& mask, const Modifiers& modifiers,
                    std::int64_t q_heads);

/// One axis of a view: its name, its expected extent, and what else is allowed.
struct Axis {
  enum Rule { exact, or_one, at_least, at_least_or_one };
  const char* name;
  std::int64_t size;
  Rule rule = exact;
};

/// The view is given and has these axes with these extents.
void check_axes(const char* call, const char* name, const ConstView& view,
                std::initializer_list<Axis> axes);

void check_floating(const char* call, const char* name, const ConstView& view);
void check_integer(const char* call, const char* name, const ConstView& view);
void check_type(const char* call, const char* name, const ConstView& view, ElementType expected);

/// Each of the sinks is finite, or -inf: none.
void check_sinks(const char* call, const char* name, const float* sinks, std::int64_t stride,
                 std::int64_t heads);

/// Integers [batch], one a sequence; none where the view is not given.
kernels::Integers sequence_integers(const char* call, const char* name, const ConstView& view,
                                    std::int64_t batch, Inputs& inputs);

/// Offsets of `batch` sequences begin with 0 and ascend; returns the longest sequence.
std::int64_t check_ascending(const char* call, const char* name, const kernels::Integers& offsets,
                             std::int64_t batch);
/// They end within the tokens of `of`.
void check_end(const char* call, const char* name, const kernels::Integers& offsets,
               std::int64_t batch, std::int64_t tokens, const char* of);

/// A one-axis view of integers as the kernels take it.
kernels::Integers integers_of(const ConstView& view);

}  // namespace polyhead::inline v0::door
