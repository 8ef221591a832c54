#include "polyhead/isa.h"

#include <cstdlib>
#include <string>

#include "base/refuse.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace polyhead::inline v0 {
namespace {

struct NamedIsa {
  Isa isa;
  const char* name;
};

// Least capable first.
constexpr NamedIsa kIsas[] = {{Isa::portable, "portable"},
                              {Isa::avx2, "avx2"},
                              {Isa::avx512, "avx512"},
                              {Isa::avx512_bf16, "avx512_bf16"},
                              {Isa::amx_bf16, "amx_bf16"}};

#if defined(__x86_64__)
// Not among the names that every compiler's __builtin_cpu_supports knows.
bool cpu_has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

bool cpu_has_amx_bf16() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kBfloat16 = 1u << 22, kTiles = 1u << 24;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kBfloat16) && (d & kTiles);
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

// __builtin_cpu_supports also asks whether the operating system saves the registers.
bool cpu_runs(Isa isa) {
  const bool avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && cpu_has_f16c();
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  const bool bfloat16 =
      avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
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
bool cpu_runs(Isa isa) { return isa == Isa::portable; }
#endif

std::string known_names() {
  std::string names;
  for (const NamedIsa& known : kIsas)
    names += (names.empty() ? "" : ", ") + std::string(known.name);
  return names;
}

Isa most_capable() {
  Isa best = Isa::portable;
  for (const NamedIsa& known : kIsas) {
    if (cpu_runs(known.isa)) best = known.isa;
  }
  return best;
}

Isa require_runnable(Isa isa, const char* asked_by) {
  if (!cpu_runs(isa)) {
    std::string here;
    for (Isa one : available_isas())
      here += (here.empty() ? "" : ", ") + std::string(isa_name(one));
    base::refuse(asked_by, "this processor cannot run \"", isa_name(isa), "\"; it can run ", here);
  }
  return isa;
}

Isa named(const char* asked_by, std::string_view name) {
  if (name == "automatic") return Isa::automatic;
  for (const NamedIsa& known : kIsas) {
    if (name == known.name) return known.isa;
  }
  base::refuse(asked_by, "\"", name, "\" is no instruction set; known are automatic, ",
               known_names());
}

}  // namespace

const char* isa_name(Isa isa) {
  for (const NamedIsa& known : kIsas) {
    if (known.isa == isa) return known.name;
  }
  return "automatic";
}

Isa isa_from_name(std::string_view name) { return named("isa", name); }

std::vector<Isa> available_isas() {
  std::vector<Isa> isas;
  for (const NamedIsa& known : kIsas) {
    if (cpu_runs(known.isa)) isas.push_back(known.isa);
  }
  return isas;
}

Isa resolve_isa(Isa isa) {
  if (isa != Isa::automatic) return require_runnable(isa, "isa");
  constexpr const char* kVariable = "POLYHEAD_ISA";
  const char* name = std::getenv(kVariable);
  if (name == nullptr || *name == '\0') return most_capable();
  const Isa wanted = named(kVariable, name);
  return wanted == Isa::automatic ? most_capable() : require_runnable(wanted, kVariable);
}

}  // namespace polyhead::inline v0
