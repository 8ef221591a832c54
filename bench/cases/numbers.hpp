// What the workloads share: arrays of random numbers, and how much work a case is.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/memory.hpp"
#include "cases/cases.hpp"
#include "polyhead/attention.h"

namespace polyhead::bench {

/// A dense array of numbers between -1 and 1. As NumPy's own, a large one asks for large pages.
class Numbers {
 public:
  Numbers() = default;
  Numbers(ElementType type, std::int64_t count, std::uint32_t seed);
  void* data() { return bytes_.data(); }

 private:
  base::AlignedBuffer<std::byte> bytes_;
};

/// Floating-point operations of attention on the pairs that the case's structure shows.
double attention_work(const Case& c);

Options options_of(Isa isa, Executor& executor);

std::unique_ptr<Workload> make_layer_workload(const Case& of, Isa isa, Executor& executor);
std::unique_ptr<Workload> make_cache_workload(const Case& of, Isa isa, Executor& executor);
std::unique_ptr<Workload> make_product_workload(const Case& of, Isa isa, Executor& executor);

}  // namespace polyhead::bench
