// The table of one element path. Included last inside an ISA namespace.

template <class Kernel>
AttendKernel attend_kernel(const char* name, std::int64_t least_rows) {
  return {
      name,           least_rows,      Kernel::rows,  Kernel::scratch_bytes, Kernel::partial_bytes,
      Kernel::attend, Kernel::proceed, Kernel::merge, Kernel::finish,        Kernel::row};
}

template <class Path>
ElementPath element_path(const char* prefill, const char* decode) {
  using Weights = Inspect<Path>;
  using Heads = HeadSweeper<Path>;
  return {attend_kernel<Prefill<Path>>(prefill, kTile),
          attend_kernel<Decode<Path>>(decode, 1),
          {kTile, Weights::rows, Weights::scratch_bytes, Weights::store_weights, Weights::sum_head},
          {kTile, Heads::scratch_bytes, Heads::run}};
}
