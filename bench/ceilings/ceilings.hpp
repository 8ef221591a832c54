// What this machine can do at most: the figures that results are shares of.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/memory.hpp"
#include "polyhead/executor.h"
#include "polyhead/isa.h"

namespace polyhead::bench {

enum class Arithmetic {
  float32,   ///< fused multiply-add, two operations each (multiply and add apart on `portable`)
  bfloat16,  ///< vdpbf16ps: pairs of products added to a float32
  int8,      ///< vpdpbusd: four products added to an int32
  matrix,    ///< tdpbf16ps: 16 x 16 sums of 32 products of bfloat16 each
};

/// Giga-operations a second of `isa`'s widest vectors on every thread of the executor, measured for
/// about `seconds`; 0 where this machine or build has no such instruction. A multiply and an add
/// count as two.
double arithmetic_gops(Arithmetic arithmetic, Isa isa, Executor& executor, double seconds);

/// Read rates, of memory that is read over and over or of a buffer that no cache holds.
class Reader {
 public:
  /// Takes and fills `dram_bytes` of memory, in large pages where the system has them: what memory
  /// gives, not what page tables let through.
  explicit Reader(std::size_t dram_bytes);

  /// GB/s of reading `bytes` of the buffer again and again in one thread: small ones lie in L1, L2
  /// or L3.
  double cached_gbps(std::size_t bytes, double seconds) const;

  /// GB/s of reading the whole buffer once, each thread a part of its own.
  double dram_gbps(Executor& executor) const;

  /// Reads the whole buffer, which drives everything else out of the caches.
  void evict() const;

 private:
  base::AlignedBuffer<std::uint64_t> buffer_;
};

/// Bytes of the data caches of the processor this runs on, as the system tells them; 0 where it
/// does not.
struct CacheBytes {
  std::size_t l1 = 0, l2 = 0, l3 = 0;
};
CacheBytes cache_bytes();

}  // namespace polyhead::bench
