// Instead of src/kernels/cpu/target.hpp where AVX-512 is emulated: all of the file is compiled for
// AVX2, and the intrinsics beyond it are functions.
#pragma once

#include <immintrin.h>

#include "base/float_environment.hpp"
#include "kernels/cpu/avx512.hpp"

#define POLYHEAD_TARGET_BEGIN(features)
#define POLYHEAD_TARGET_END
#define POLYHEAD_SETTLE(v) static_cast<void>(v)
