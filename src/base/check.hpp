// Internal assertions: slips of the library itself, never of its caller.
#pragma once

#include <cstdlib>

/// Traps in debug builds where `condition` is false; no code at all in release builds. What a
/// caller may get wrong is refused at the door with InvalidArgument instead.
#ifdef NDEBUG
#define POLYHEAD_DCHECK(condition) static_cast<void>(sizeof((condition) ? 1 : 0))
#else
#define POLYHEAD_DCHECK(condition) ((condition) ? static_cast<void>(0) : ::std::abort())
#endif
