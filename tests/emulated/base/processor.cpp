// Instead of src/base/processor.cpp where AVX-512 and AMX are emulated: what has AVX2 runs all.
#include "base/processor.hpp"

namespace polyhead::inline v0::base {

bool processor_runs(Isa isa) {
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return isa == Isa::portable || (avx2 && isa != Isa::automatic);
}

}  // namespace polyhead::inline v0::base
