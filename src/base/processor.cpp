#include "base/processor.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace polyhead::inline v0::base {
#if defined(__x86_64__)
namespace {

// What is not among the names that every compiler's __builtin_cpu_supports knows is asked of the
// processor, once: virtual machines take microseconds for each answer, and calls ask several times.

bool cpu_has_f16c() {
  static const bool has = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
  }();
  return has;
}

bool cpu_has_amx_bf16() {
  static const bool has = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    constexpr unsigned kBfloat16 = 1u << 22, kTiles = 1u << 24;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kBfloat16) && (d & kTiles);
  }();
  return has;
}

/// Linux saves AMX's registers (8 KiB a thread) for processes that ask for them. Whoever asks has
/// them for all of its threads.
bool system_lends_matrices() {
#if defined(__linux__)
  constexpr int kAskForPermission = 0x1023, kTileData = 18;  // arch_prctl(2)
  static const bool lent = syscall(SYS_arch_prctl, kAskForPermission, kTileData) == 0;
  return lent;
#else
  return false;
#endif
}

}  // namespace

// __builtin_cpu_supports also asks whether the operating system saves the registers.
bool processor_runs(Isa isa) {
  const bool avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && cpu_has_f16c();
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  const bool bfloat16 = avx512 && __builtin_cpu_supports("avx512bf16") &&
                        __builtin_cpu_supports("avx512vnni") &&
                        __builtin_cpu_supports("avx512vbmi");
  switch (isa) {
    case Isa::portable:
      return true;
    case Isa::avx2:
      return avx2;
    case Isa::avx512:
      return avx512;
    case Isa::avx512_bf16:
      return bfloat16;
    case Isa::amx_bf16:
      return bfloat16 && cpu_has_amx_bf16() && system_lends_matrices();
    case Isa::automatic:
      return false;
  }
  return false;
}
#else
bool processor_runs(Isa isa) { return isa == Isa::portable; }
#endif
}  // namespace polyhead::inline v0::base
