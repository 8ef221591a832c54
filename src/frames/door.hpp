// What the calls of this room refuse, before anything is written.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "base/crew.hpp"
#include "polyhead/code_frame.h"

namespace polyhead::inline v0::frames {

inline constexpr std::int64_t kMostHeads = std::int64_t{1} << 16;  // sizes of sums fit 64 bits

/// What a call reads of a frame.
enum class Reads { everything, no_rounding };

/// Throws InvalidArgument, beginning with `call` and the frame's name, unless its parts are of
/// these sizes, finite where they are read, and the stretch positive. A frame that is not given
/// passes.
void check_frame(const char* call, const char* name, const CodeFrame& frame, std::int64_t kv_heads,
                 std::int64_t dim, Reads reads = Reads::everything);

/// A view [batch?, tokens, heads, dim], or none.
struct NamedView {
  const char* name;
  const ConstView& view;
};

/// Each is of this shape and a floating type. Those that are not given pass.
void check_rows(const char* call, std::initializer_list<NamedView> views);

/// Each may be written: none overlaps itself or another. Three views at most.
void check_apart(const char* call, std::initializer_list<NamedView> views);

/// b is of a's sequences and tokens.
void check_same_tokens(const char* call, const NamedView& a, const NamedView& b);

/// KV heads of a frame that fits rows of `dim`, whose rounding is not read; refuses one that does
/// not.
std::int64_t kv_heads_of(const char* call, const char* name, const CodeFrame& frame,
                         std::int64_t dim);

/// Rows of query heads fall into whole groups of so many KV heads.
void check_groups(const char* call, const NamedView& rows, std::int64_t kv_heads);

/// Whom the options name.
Crew checked_crew(const char* call, const Options& options);

}  // namespace polyhead::inline v0::frames
