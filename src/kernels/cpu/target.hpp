// The region of a file that is compiled for an instruction set. Not by -m flags: an inline function
// of the standard library compiled twice may be linked from the wrong one.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define POLYHEAD_PRAGMA(text) _Pragma(#text)

/// From here on functions may use `features`, as g++ and clang name them.
#if defined(__clang__)
#define POLYHEAD_TARGET_BEGIN(features) \
  POLYHEAD_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define POLYHEAD_TARGET_END POLYHEAD_PRAGMA(clang attribute pop)
#else
#define POLYHEAD_TARGET_BEGIN(features) \
  POLYHEAD_PRAGMA(GCC push_options)     \
  POLYHEAD_PRAGMA(GCC target(features))
#define POLYHEAD_TARGET_END POLYHEAD_PRAGMA(GCC pop_options)
#endif

/// The value of a vector that is a variable is in its register from here on.
#define POLYHEAD_SETTLE(v) __asm__ volatile("" : "+v"(v))
