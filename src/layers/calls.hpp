// The arguments of a layer's calls, checked, and what attention is told of them.
#pragma once

#include <utility>

#include "attention/validate.hpp"
#include "base/refuse.hpp"
#include "layers/layer_state.hpp"

namespace polyhead::inline v0::layers {

/// The x or the context of one call: its rows, and how they fall into sequences.
struct Input {
  const char* name;
  Rows rows;
  bool ragged = false;
  kernels::Integers offsets;   ///< ragged
  std::int64_t sequences = 0;  ///< batch, or those between the offsets
};

/// Checks a number of tokens for each sequence of a batch, at most `tokens`; or none.
void check_lengths(const char* call, const char* name, const ConstView& lengths, std::int64_t batch,
                   std::int64_t tokens);

/// Checks the offsets that `name` names over `tokens` rows of `of`.
void check_offsets(const char* call, const char* name, const ConstView& offsets,
                   std::int64_t tokens, const char* of);

/// The offsets of the context cut it into as many sequences as those of x.
void check_as_many(const char* name, const LayerCall& call);

/// Checks x and the lengths or offsets of the call.
Input input_of(const Layer& layer, const char* name, const ConstView& x, const LayerCall& call);

/// Checks the context of cross attention to x, `input`, and its lengths or offsets and positions.
Input context_of(const Layer& layer, const Input& input, const ConstView& context,
                 const LayerCall& call);

/// What a call says of a context has no place beside keys and values that do not come from one;
/// `why` goes on after "context_lengths are given".
template <class... Why>
void refuse_context(const char* name, const LayerCall& call, const Why&... why) {
  for (const auto& [part, view] : {std::pair{"context_lengths", call.context_lengths},
                                   {"context_offsets", call.context_offsets},
                                   {"context_positions", call.context_positions}}) {
    if (view.given()) base::refuse(name, part, " are given", why...);
  }
}

/// The lengths and offsets of a call, which no output of it may touch.
door::Inputs lengths_read(const char* name, const LayerCall& call);

/// No output of a call, `to` and its LSE and statistics, touches what is read meanwhile.
void check_outputs(const char* name, const char* output, const View& to, const LayerCall& call,
                   const door::Inputs& read);

/// Checks y against x, itself, the other outputs and the lengths and offsets of the call. Not for
/// overlap with x: x is read before y is written, unless attention itself writes y, which then
/// checks.
Rows output_of(const Layer& layer, const Input& input, const View& y, const LayerCall& call);

/// Checks explicit RoPE positions; `two_axes` as the rows have them.
void check_positions(const Layer& layer, const Input& input, const ConstView& positions,
                     bool two_axes, const char* name = "positions");

/// One position a row for RoPE: given, or counted from `starts` (none: 0) in each sequence.
const std::int64_t* positions_of(const Layer& layer, const Input& input, const ConstView& given,
                                 const std::int64_t* starts, Buffer& buffer);

/// k and v of this call come from x itself.
void require_self(const Layer& layer, const char* name, const LayerCall& call);

Mask padding(const ConstView& kv_lengths, const ConstView& q_lengths);

/// The heads of projected rows, as attention takes them.
void place_q(const Layer& layer, const Slab& slab, const Input& input,
             AttentionArguments& arguments);
void place_kv(const Layer& layer, const Slab& slab, const Input& from,
              AttentionArguments& arguments);

/// Steps 1 and 2 of self and cross attention: everything attention takes, but out.
AttentionArguments prepare_self(const Layer& layer, const Input& input, const LayerCall& call,
                                Scratch& scratch);
AttentionArguments prepare_cross(const Layer& layer, const Input& input, const Input& context,
                                 const LayerCall& call, Scratch& scratch);

}  // namespace polyhead::inline v0::layers
