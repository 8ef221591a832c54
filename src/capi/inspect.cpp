// Looking inside, behind polyhead_c.h.
#include "polyhead/inspect.h"

#include "capi/convert.hpp"

using namespace polyhead::capi;

polyhead_status polyhead_inspect(const polyhead_attention_arguments* call,
                                 const polyhead_inspect_arguments* wanted,
                                 const polyhead_options* options) {
  constexpr const char* kCall = "polyhead_inspect";
  return guarded(kCall, [&] {
    const AttentionCall forward(kCall, call);
    const polyhead_inspect_arguments from = read_struct(kCall, "wanted", wanted);
    polyhead::InspectArguments to;
    to.weights = to_view(kCall, "weights", from.weights);
    to.heads = to_view(kCall, "heads", from.heads);
    to.first_query = from.first_query;
    to.received = to_view(kCall, "received", from.received);
    to.pooled = to_view(kCall, "pooled", from.pooled);
    polyhead::inspect(forward.arguments(), to, to_options(kCall, options));
  });
}
