// The one door: every argument of a call is checked here, once, before anything is written.
#pragma once

#include "attention/footprint.hpp"
#include "kernels/contract.hpp"
#include "polyhead/attention.h"

namespace polyhead::inline v0::door {

using kernels::kMaxDim;  // head_dim and value_dim; latent attention has 576 and 512

/// What the call is for: attention itself, or a second pass that reads q, k and the LSE and needs
/// neither v nor out.
enum class Purpose { forward, second_pass };

/// Checks `arguments` and gives what every backend takes. Throws InvalidArgument whose message
/// begins with `call`; allocates only then. The views' data must outlive the result; lengths,
/// offsets and starts are read here.
kernels::AttendCall resolve(const AttentionArguments& arguments, const char* call = "attention",
                            Purpose purpose = Purpose::forward);

/// Checks a cache's view for a call whose batch, q_heads and head_dim are known and fills what it
/// says into `call`: k, v, pages, lengths and the sizes they give. Writes the footprints of what it
/// points to, at most 6, and returns how many.
int resolve_view(const char* call_name, const KvView& view, bool with_values,
                 kernels::AttendCall& call, Footprint* prints);

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

/// `output` does not overlap itself, and is provably disjoint from each of `others`.
void check_writable(const char* call, const Footprint& output, const Footprint* others, int count);

/// A one-axis view of integers as the kernels take it.
kernels::Integers integers_of(const ConstView& view);

}  // namespace polyhead::inline v0::door
