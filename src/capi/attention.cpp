// The calls of polyhead_c.h that compute at once, attention and merging; and the instruction sets.
#include "polyhead/attention.h"

#include "capi/convert.hpp"
#include "polyhead/adapters.h"
#include "polyhead/isa.h"

using namespace polyhead::capi;

const char* polyhead_isa_name(int32_t isa) {
  if (isa < POLYHEAD_ISA_AUTOMATIC || isa > POLYHEAD_ISA_AMX_BF16) return nullptr;
  return polyhead::isa_name(static_cast<polyhead::Isa>(isa));
}

polyhead_status polyhead_resolve_isa(int32_t isa, int32_t* resolved) {
  constexpr const char* kCall = "polyhead_resolve_isa";
  return guarded(kCall, [&] {
    need(kCall, "resolved", resolved);
    *resolved = static_cast<int32_t>(polyhead::resolve_isa(to_isa(kCall, isa)));
  });
}

polyhead_status polyhead_attention(const polyhead_attention_arguments* arguments,
                                   const polyhead_options* options) {
  constexpr const char* kCall = "polyhead_attention";
  return guarded(kCall, [&] {
    const AttentionCall call(kCall, arguments);
    polyhead::attention(call.arguments(), to_options(kCall, options));
  });
}

polyhead_status polyhead_merge_partials(const polyhead_merge_arguments* arguments,
                                        const polyhead_options* options) {
  constexpr const char* kCall = "polyhead_merge_partials";
  return guarded(kCall, [&] {
    const polyhead_merge_arguments from = read_struct(kCall, "arguments", arguments);
    polyhead::MergeArguments to;
    to.outs = to_view(kCall, "outs", from.outs);
    to.lses = to_view(kCall, "lses", from.lses);
    to.out = to_view(kCall, "out", from.out);
    to.lse = to_view(kCall, "lse", from.lse);
    to.sink = to_view(kCall, "sink", from.sink);
    polyhead::merge_partials(to, to_options(kCall, options));
  });
}

polyhead_status polyhead_lse_to_base2(const polyhead_view* lse) {
  constexpr const char* kCall = "polyhead_lse_to_base2";
  return guarded(kCall,
                 [&] { polyhead::lse_to_base2(to_view(kCall, "lse", need(kCall, "lse", lse))); });
}

polyhead_status polyhead_lse_from_base2(const polyhead_view* lse) {
  constexpr const char* kCall = "polyhead_lse_from_base2";
  return guarded(kCall,
                 [&] { polyhead::lse_from_base2(to_view(kCall, "lse", need(kCall, "lse", lse))); });
}
