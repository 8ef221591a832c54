// How fast this library's kernels are on this machine, each at the sizes of a model.
#pragma once

#include <cstdint>

#include "polyhead/cost.h"

namespace polyhead::cli {

/// What one layer's kernels take here, measured on random numbers: nothing of the model is run.
/// Products over the matrices of a layer and the output matrix, with many rows and with one a
/// sequence; attention with many queries, on the diagonal and beside it, and with one query at two
/// lengths; norms, activations and sums of as many rows.
struct KernelRates {
  cost::Compute compute = cost::Compute::f32;  ///< that the products are done in
  double peak = 0;                             ///< FLOPs a second of this machine, for `compute`
  double bandwidth = 0;                        ///< bytes a second it reads memory at
  double many_rows = 0;                        ///< FLOPs a second of products with many rows
  double diagonal = 0, beside = 0;             ///< FLOPs a second of attention with many queries
  double one_row = 0;        ///< bytes of weights a second of products with a row a sequence
  double query_seconds = 0;  ///< of one layer's attention of one query, whatever its length
  double cache = 0;          ///< bytes of keys and values a second, beyond that
  double rows_many = 0, rows_one = 0;  ///< elements a second of row-wise work

  /// Shares of the peaks for prefill in calls of work.chunk tokens, and for a decode step.
  cost::Utilisation prefill(const cost::Workload& work) const;
  cost::Utilisation decode(const cost::ModelDescription& model, const cost::Workload& work) const;
};

/// Takes about two seconds on `threads` threads (0: all). Layers of several kinds are measured as
/// the commonest of them.
KernelRates measure_kernels(const cost::ModelDescription& model, const cost::Workload& work,
                            const cost::Machine& here, cost::Compute compute, int threads);

/// The model with its quantised weights as this library packs them, which may take more bytes than
/// the file, and everything else in float32.
cost::ModelDescription as_held(cost::ModelDescription model);

/// Tokens of a prefill call of this library's models.
constexpr std::int64_t kHereChunk = 512;

}  // namespace polyhead::cli
