// The floating-point environment that kernels compute in.
#pragma once

namespace polyhead::inline v0::base {

/// While one lives, its thread rounds to nearest, traps nothing, reads subnormal numbers as they
/// are and makes zero of results below 2^-126; then all is as it was, the flags of exceptions
/// included. So a caller who rounds otherwise or traps has the bits that a pool's threads make.
/// Intel's processors take some hundred cycles for an instruction that makes or reads a subnormal
/// number: a layer whose weights are sharp took 8 times as long for weights that no sum can tell
/// from zero. x86 only: elsewhere the environment stays the thread's own.
class FloatEnvironment {
 public:
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

#if defined(__x86_64__)
  FloatEnvironment() : before_(__builtin_ia32_stmxcsr()) { set(kMasked | kFlushToZero); }
  ~FloatEnvironment() { set(before_); }

 private:
  static constexpr unsigned kMasked = 0x1f80, kFlushToZero = 0x8000;  // of MXCSR
  static void set(unsigned control) { __builtin_ia32_ldmxcsr(control); }
  const unsigned before_;
#else
  FloatEnvironment() = default;
#endif
};

}  // namespace polyhead::inline v0::base
