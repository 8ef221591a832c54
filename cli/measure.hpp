// Measuring cases against ceilings taken in the same breath.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "bench/cases/cases.hpp"
#include "bench/ceilings/ceilings.hpp"
#include "polyhead/executor.h"

namespace polyhead::cli {

/// One case's figures: medians over its samples. A sample is the case once, its arrays in no cache,
/// between two measurements of what it is a share of.
struct Measured {
  const bench::Case* of = nullptr;
  double median_seconds = 0.0;
  double rate = 0.0;  ///< GFLOP/s, or GB/s against DRAM
  double share = 0.0;
  int samples = 0;
};

/// The machine's ceilings, in giga-operations or gigabytes a second; 0 where there is no such
/// instruction.
struct Ceilings {
  /// Of all threads of the run.
  double float32 = 0.0, bfloat16 = 0.0, matrix = 0.0, int8 = 0.0, dram = 0.0;
  double one_float32 = 0.0, one_bfloat16 = 0.0, one_matrix = 0.0, one_int8 = 0.0, one_dram = 0.0;
  double l1 = 0.0, l2 = 0.0, l3 = 0.0;
  std::vector<std::pair<Isa, double>> float32_by_isa;  ///< one thread
};

/// The middle of the values in their order, or halfway between the two in the middle; 0 of none.
double median(std::vector<double> values);

class Measurer {
 public:
  /// `isa` is not automatic. Threads: how many the cases that take all have.
  Measurer(Isa isa, int threads);

  Ceilings ceilings();

  /// Takes about `seconds`, at least one sample. Throws InvalidArgument where the case cannot run
  /// here.
  Measured measure(const bench::Case& of, double seconds);

 private:
  Executor& executor(int threads);
  Isa isa_of(const bench::Case& of) const;
  /// What the share of `of` is taken of, measured now; `base` is ready where the case has one.
  double reference(const bench::Case& of, bench::Workload* base);

  Isa isa_;
  int threads_;
  bench::Reader reader_;
  std::map<int, std::unique_ptr<ThreadPool>> pools_;
};

}  // namespace polyhead::cli
