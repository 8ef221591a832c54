// A floating-point environment that is not the library's.
#pragma once

#include <cfenv>

namespace polyhead::test {

/// A thread that rounds upwards, takes subnormal numbers for zero (x86) and traps exceptions (where
/// the processor can).
class OddFloats {
 public:
  OddFloats() {
    std::fegetenv(&before_);
    std::feclearexcept(FE_ALL_EXCEPT);
#if defined(__x86_64__)
    constexpr unsigned kSubnormalsAreZero = 0x40;
    __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | kSubnormalsAreZero);
#endif
    std::fesetround(FE_UPWARD);
    feenableexcept(FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW);
    odd_ = fegetexcept();
  }
  ~OddFloats() { std::fesetenv(&before_); }
  OddFloats(const OddFloats&) = delete;
  OddFloats& operator=(const OddFloats&) = delete;

  bool unchanged() const {
    return std::fegetround() == FE_UPWARD && fegetexcept() == odd_ &&
           std::fetestexcept(FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW) == 0;
  }

 private:
  std::fenv_t before_;
  int odd_;
};

}  // namespace polyhead::test
