// Chains of the one instruction that does the work, enough of them to fill every port.
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <atomic>
#include <chrono>

#include "ceilings/ceilings.hpp"

namespace polyhead::bench {

// Seen from outside, or a compiler drops the work: where results go, and a zero that it cannot know
// to stay one.
std::atomic<float> arithmetic_kept;
std::atomic<int> arithmetic_kept_int;
std::atomic<float> arithmetic_zero{0.0f};

namespace {

constexpr int kRound = 20000;  // steps between looks at the clock: some 100 microseconds

constexpr int kChains = 12;  // latency times ports is 8 to 12; more would leave the registers

// Each step of a round is one instruction on each accumulator. A round returns its operations.
using Round = double (*)();

/// Chains begin with different numbers, or a compiler computes one and copies it.
float start(int chain) { return arithmetic_zero.load() + static_cast<float>(chain); }

typedef float Vector4 __attribute__((vector_size(16)));

double float32_portable() {
  Vector4 sum[kChains];
  for (int i = 0; i < kChains; ++i) sum[i] = Vector4{start(i), start(i), start(i), start(i)};
  const Vector4 a = {0.999f, 0.999f, 0.999f, 0.999f}, b = {1e-3f, 1e-3f, 1e-3f, 1e-3f};
  for (int step = 0; step < kRound; ++step) {
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) sum[i] = sum[i] * a + b;
  }
  float total = 0.0f;
  for (const Vector4& s : sum) total += s[0];
  arithmetic_kept = total;
  return 8.0 * kChains * kRound;
}

#if defined(__x86_64__)

__attribute__((target("avx2,fma"))) double float32_avx2() {
  __m256 sum[kChains];
  const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(1e-3f);
  for (int i = 0; i < kChains; ++i) sum[i] = _mm256_set1_ps(start(i));
  for (int step = 0; step < kRound; ++step) {
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) sum[i] = _mm256_fmadd_ps(sum[i], a, b);
  }
  float total = 0.0f;
  for (const __m256& s : sum) total += _mm256_cvtss_f32(s);
  arithmetic_kept = total;
  return 16.0 * kChains * kRound;
}

__attribute__((target("avx512f"))) double float32_avx512() {
  __m512 sum[kChains];
  const __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(1e-3f);
  for (int i = 0; i < kChains; ++i) sum[i] = _mm512_set1_ps(start(i));
  for (int step = 0; step < kRound; ++step) {
#pragma GCC unroll 32
    for (int i = 0; i < kChains; ++i) sum[i] = _mm512_fmadd_ps(sum[i], a, b);
  }
  float total = 0.0f;
  for (const __m512& s : sum) total += _mm512_cvtss_f32(s);
  arithmetic_kept = total;
  return 32.0 * kChains * kRound;
}

__attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16"))) double bfloat16_avx512() {
  __m512 sum[kChains];
  const __m512bh a = _mm512_cvtne2ps_pbh(_mm512_set1_ps(0.5f), _mm512_set1_ps(0.5f));
  const __m512bh b = _mm512_cvtne2ps_pbh(_mm512_set1_ps(1e-3f), _mm512_set1_ps(1e-3f));
  for (int i = 0; i < kChains; ++i) sum[i] = _mm512_set1_ps(start(i));
  for (int step = 0; step < kRound; ++step) {
#pragma GCC unroll 32
    for (int i = 0; i < kChains; ++i) sum[i] = _mm512_dpbf16_ps(sum[i], a, b);
  }
  float total = 0.0f;
  for (const __m512& s : sum) total += _mm512_cvtss_f32(s);
  arithmetic_kept = total;
  return 64.0 * kChains * kRound;
}

__attribute__((target("avx512f,avx512vnni"))) double int8_avx512() {
  __m512i sum[kChains];
  const __m512i a = _mm512_set1_epi32(0x01020304), b = _mm512_set1_epi32(0x01ff01ff);
  for (int i = 0; i < kChains; ++i) sum[i] = _mm512_set1_epi32(static_cast<int>(start(i)));
  for (int step = 0; step < kRound; ++step) {
#pragma GCC unroll 32
    for (int i = 0; i < kChains; ++i) sum[i] = _mm512_dpbusd_epi32(sum[i], a, b);
  }
  int total = 0;
  for (const __m512i& s : sum) total ^= _mm512_cvtsi512_si32(s);
  arithmetic_kept_int = total;
  return 128.0 * kChains * kRound;
}

/// Four sums of matrices of zeros, which take what others take.
__attribute__((target("amx-tile,amx-bf16"))) double bfloat16_amx() {
  struct alignas(64) {
    std::uint8_t palette = 1, rest[15] = {};
    std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16};
  } shapes;
  asm volatile(
      "ldtilecfg %0\n tilezero %%tmm0\n tilezero %%tmm1\n tilezero %%tmm2\n"
      "tilezero %%tmm3\n tilezero %%tmm4\n tilezero %%tmm5" ::"m"(shapes)
      : "memory");
  for (int step = 0; step < kRound; ++step) {
    asm volatile(
        "tdpbf16ps %tmm5, %tmm4, %tmm0\n tdpbf16ps %tmm5, %tmm4, %tmm1\n"
        "tdpbf16ps %tmm5, %tmm4, %tmm2\n tdpbf16ps %tmm5, %tmm4, %tmm3");
  }
  asm volatile("tilerelease");
  return 4.0 * 2.0 * 16 * 16 * 32 * kRound;
}

#endif

Round round_of(Arithmetic arithmetic, [[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
  if (arithmetic == Arithmetic::matrix) return isa == Isa::amx_bf16 ? bfloat16_amx : nullptr;
  if (isa >= Isa::avx512) {
    if (arithmetic == Arithmetic::float32) return float32_avx512;
    if (arithmetic == Arithmetic::bfloat16)
      return isa >= Isa::avx512_bf16 ? bfloat16_avx512 : nullptr;
    return __builtin_cpu_supports("avx512vnni") ? int8_avx512 : nullptr;
  }
  if (isa == Isa::avx2) return arithmetic == Arithmetic::float32 ? float32_avx2 : nullptr;
#endif
  return arithmetic == Arithmetic::float32 ? float32_portable : nullptr;
}

}  // namespace

double arithmetic_gops(Arithmetic arithmetic, Isa isa, Executor& executor, double seconds) {
  const Round round = round_of(arithmetic, isa);
  if (round == nullptr) return 0.0;
  using Clock = std::chrono::steady_clock;
  struct Shared {
    Round round;
    double seconds;
    std::atomic<double> rate{0.0};
  } shared{round, seconds, {}};
  const auto measure = [](void* context, int) {
    auto& s = *static_cast<Shared*>(context);
    s.round();  // wakes the wide units up
    const auto begin = Clock::now();
    double operations = 0.0, elapsed = 0.0;
    while (elapsed < s.seconds) {
      operations += s.round();
      elapsed = std::chrono::duration<double>(Clock::now() - begin).count();
    }
    s.rate.fetch_add(operations / elapsed);
  };
  executor.run(executor.concurrency(), Task{measure, &shared});
  return shared.rate.load() / 1e9;
}

}  // namespace polyhead::bench
