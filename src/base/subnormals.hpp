// How arithmetic treats results too small for a normal number.
#pragma once

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
  FlushSubnormals() : before_(__builtin_ia32_stmxcsr()) { set(before_ | kFlushToZero); }
  ~FlushSubnormals() { set((__builtin_ia32_stmxcsr() & ~kFlushToZero) | (before_ & kFlushToZero)); }

 private:
  static constexpr unsigned kFlushToZero = 0x8000;  // of MXCSR
  static void set(unsigned control) {
    if (control != __builtin_ia32_stmxcsr()) __builtin_ia32_ldmxcsr(control);
  }
  unsigned before_;
#else
  FlushSubnormals() = default;
#endif
};

}  // namespace polyhead::inline v0::base
