// The floating-point environment that kernels compute in.
#pragma once

#include <cstdint>

namespace polyhead::inline v0::base {

/// Whether results below 2^-126 become zero, where the processor can do that (x86).
enum class Subnormals { flushed, kept };

/// While one lives, its thread rounds to nearest, traps nothing and reads subnormal numbers as they
/// are; then all is as it was, on x86 with the flags of exceptions. So a caller who rounds
/// otherwise or traps has the bits that a pool's threads make. Results below 2^-126 are zero
/// meanwhile unless they are wanted: Intel's processors take some hundred cycles for an instruction
/// that makes or reads a subnormal number, a layer whose weights are sharp took 8 times as long for
/// weights that no sum can tell from zero. On processors other than x86 and aarch64 the environment
/// is the thread's own.
class FloatEnvironment {
 public:
  explicit FloatEnvironment(Subnormals small = Subnormals::flushed) {
    set(small == Subnormals::flushed ? kOurs : kOurs & ~kFlush);
  }
  ~FloatEnvironment() { set(before_); }
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr std::uint64_t kFlush = 0x8000;
  static constexpr std::uint64_t kOurs = 0x1f80 | kFlush;  // MXCSR: all exceptions masked
  static std::uint64_t get() { return __builtin_ia32_stmxcsr(); }
  static void set(std::uint64_t control) {
    __builtin_ia32_ldmxcsr(static_cast<std::uint32_t>(control));
  }
#elif defined(__aarch64__)
  static constexpr std::uint64_t kFlush = 0, kOurs = 0;  // FPCR
  static std::uint64_t get() {
    std::uint64_t control;
    asm volatile("mrs %0, fpcr" : "=r"(control));
    return control;
  }
  static void set(std::uint64_t control) { asm volatile("msr fpcr, %0" : : "r"(control)); }
#else
  static constexpr std::uint64_t kFlush = 0, kOurs = 0;
  static std::uint64_t get() { return 0; }
  static void set(std::uint64_t) {}
#endif
  const std::uint64_t before_ = get();
};

}  // namespace polyhead::inline v0::base
