// The table of one element path: a constant, so that nothing of an instruction set runs before one
// of its kernels is called. Included last inside an ISA namespace.

template <class Kernel>
constexpr AttendKernel attend_kernel(const char* name, std::int64_t least_rows) {
  return {
      name,           least_rows,      Kernel::rows,  Kernel::scratch_bytes, Kernel::partial_bytes,
      Kernel::attend, Kernel::proceed, Kernel::merge, Kernel::finish,        Kernel::row};
}

template <class Path>
std::int64_t inspect_bytes(const InspectCall& call) {
  return std::max(ExactWeights<Path>::scratch_bytes(call), WeightSums<Path>::scratch_bytes(call));
}

template <class Path>
constexpr ElementPath element_path(const char* prefill, const AttendKernel& decode) {
  using Weights = ExactWeights<Path>;
  using Sums = WeightSums<Path>;
  using Heads = HeadSweeper<Path>;
  return {attend_kernel<Prefill<Path>>(prefill, kTile),
          decode,
          {kTile, Weights::rows, inspect_bytes<Path>, Weights::store_weights, Sums::sum_head},
          {kTile, Heads::scratch_bytes, Heads::run}};
}
