// How arithmetic treats results too small for a normal number.
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace polyhead::inline v0::base {

/// While one lives, float32 results below 2^-126 are zero on its thread (x86 only; elsewhere
/// processors compute with them at speed, and nothing changes). Intel's take some hundred cycles
/// for an instruction that makes or reads one: a layer whose weights are sharp took 8 times as long
/// for weights that no sum can tell from zero.
class FlushSubnormals {
 public:
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

#if defined(__x86_64__)
  FlushSubnormals() : before_(_mm_getcsr()) { set(before_ | _MM_FLUSH_ZERO_ON); }
  ~FlushSubnormals() {
    set((_mm_getcsr() & ~_MM_FLUSH_ZERO_MASK) | (before_ & _MM_FLUSH_ZERO_MASK));
  }

 private:
  static void set(unsigned control) {
    if (control != _mm_getcsr()) _mm_setcsr(control);
  }
  unsigned before_;
#else
  FlushSubnormals() = default;
#endif
};

}  // namespace polyhead::inline v0::base
