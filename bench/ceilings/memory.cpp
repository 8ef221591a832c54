// How fast memory is read: straight through, prefetched, nothing done with it but an exclusive or.
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <string>

#include "base/large_pages.hpp"
#include "ceilings/ceilings.hpp"

namespace polyhead::bench {

// Seen from outside, or a compiler drops the reading.
std::atomic<std::uint64_t> memory_kept;

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kBlockWords = 64;          // 512 bytes a step of the read loops
constexpr std::size_t kPrefetchBytes = 8 << 10;  // ahead: what the decoding kernels do as well

using Read = std::uint64_t (*)(const std::uint64_t* from, std::size_t words, bool prefetch);

typedef std::uint64_t Words __attribute__((vector_size(16)));

std::uint64_t read_portable(const std::uint64_t* from, std::size_t words, bool prefetch) {
  Words sum[8] = {};
  for (std::size_t at = 0; at < words; at += kBlockWords) {
    const auto* block = reinterpret_cast<const Words*>(from + at);
    if (prefetch) {
      for (std::size_t line = 0; line < kBlockWords; line += 8) {
        __builtin_prefetch(from + at + line + kPrefetchBytes / 8);
      }
    }
#pragma GCC unroll 32
    for (int i = 0; i < 32; ++i) sum[i % 8] ^= block[i];
  }
  std::uint64_t total = 0;
  for (const Words& s : sum) total ^= s[0] ^ s[1];
  return total;
}

#if defined(__x86_64__)

__attribute__((target("avx2"))) std::uint64_t read_avx2(const std::uint64_t* from,
                                                        std::size_t words, bool prefetch) {
  __m256i sum[8];
  for (__m256i& s : sum) s = _mm256_setzero_si256();
  for (std::size_t at = 0; at < words; at += kBlockWords) {
    if (prefetch) {
      for (std::size_t line = 0; line < kBlockWords; line += 8) {
        _mm_prefetch(reinterpret_cast<const char*>(from + at + line) + kPrefetchBytes, _MM_HINT_T0);
      }
    }
    const auto* block = reinterpret_cast<const __m256i*>(from + at);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i)
      sum[i % 8] = _mm256_xor_si256(sum[i % 8], _mm256_loadu_si256(block + i));
  }
  for (int i = 1; i < 8; ++i) sum[0] = _mm256_xor_si256(sum[0], sum[i]);
  alignas(32) std::uint64_t lanes[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), sum[0]);
  return lanes[0] ^ lanes[1] ^ lanes[2] ^ lanes[3];
}

__attribute__((target("avx512f"))) std::uint64_t read_avx512(const std::uint64_t* from,
                                                             std::size_t words, bool prefetch) {
  __m512i sum[8];
  for (__m512i& s : sum) s = _mm512_setzero_si512();
  for (std::size_t at = 0; at < words; at += kBlockWords) {
    if (prefetch) {
      for (std::size_t line = 0; line < kBlockWords; line += 8) {
        _mm_prefetch(reinterpret_cast<const char*>(from + at + line) + kPrefetchBytes, _MM_HINT_T0);
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i)
      sum[i] = _mm512_xor_si512(sum[i], _mm512_loadu_si512(from + at + 8 * i));
  }
  for (int i = 1; i < 8; ++i) sum[0] = _mm512_xor_si512(sum[0], sum[i]);
  std::uint64_t lanes[8];
  _mm512_storeu_si512(lanes, sum[0]);
  std::uint64_t total = 0;
  for (const std::uint64_t lane : lanes) total ^= lane;  // all of them, or loads may be narrowed
  return total;
}

#endif

/// The widest loads this machine has: memory is not a matter of which instruction set is being
/// measured.
Read best_read() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return read_avx512;
  if (__builtin_cpu_supports("avx2")) return read_avx2;
#endif
  return read_portable;
}

}  // namespace

Reader::Reader(std::size_t dram_bytes) : buffer_(dram_bytes / 8 / kBlockWords * kBlockWords) {
  base::prefer_large_pages(buffer_.data(), buffer_.bytes());
  std::fill(buffer_.begin(), buffer_.end(), 0x0101010101010101u);
}

double Reader::cached_gbps(std::size_t bytes, double seconds) const {
  const Read read = best_read();
  const std::size_t words = std::min(bytes / 8 / kBlockWords * kBlockWords, buffer_.size());
  if (words == 0) return 0.0;
  memory_kept = read(buffer_.data(), words, false);
  const std::size_t repeats = std::max<std::size_t>(1, (std::size_t{1} << 17) / words);
  const auto begin = Clock::now();
  double total = 0.0, elapsed = 0.0;
  while (elapsed < seconds) {
    for (std::size_t i = 0; i < repeats; ++i) memory_kept = read(buffer_.data(), words, false);
    total += 8.0 * static_cast<double>(words * repeats);
    elapsed = std::chrono::duration<double>(Clock::now() - begin).count();
  }
  return total / elapsed / 1e9;
}

double Reader::dram_gbps(Executor& executor) const {
  struct Shared {
    const base::AlignedBuffer<std::uint64_t>& buffer;
    Read read;
    std::size_t blocks, parts;
  };
  const auto parts = static_cast<std::size_t>(executor.concurrency());
  Shared shared{buffer_, best_read(), buffer_.size() / kBlockWords, parts};
  const auto measure = [](void* context, int index) {
    const auto& s = *static_cast<Shared*>(context);
    const auto part = static_cast<std::size_t>(index);
    const std::size_t first = s.blocks * part / s.parts, end = s.blocks * (part + 1) / s.parts;
    memory_kept = s.read(s.buffer.data() + first * kBlockWords, (end - first) * kBlockWords, true);
  };
  const auto begin = Clock::now();
  executor.run(executor.concurrency(), Task{measure, &shared});
  const double elapsed = std::chrono::duration<double>(Clock::now() - begin).count();
  return 8.0 * static_cast<double>(buffer_.size()) / elapsed / 1e9;
}

void Reader::evict() const { memory_kept = best_read()(buffer_.data(), buffer_.size(), true); }

namespace {

/// The size file of one cache of the first processor, such as "32768K"; 0 where there is none.
std::size_t size_of_cache(int index) {
  std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/size");
  std::size_t size = 0;
  char unit = 'B';
  if (!(file >> size)) return 0;
  file >> unit;
  return unit == 'K' ? size << 10 : unit == 'M' ? size << 20 : size;
}

}  // namespace

// Linux lists data, instruction, second and third level as 0, 1, 2 and 3. (sysconf gives the
// socket's third level.)
CacheBytes cache_bytes() { return {size_of_cache(0), size_of_cache(2), size_of_cache(3)}; }

}  // namespace polyhead::bench
