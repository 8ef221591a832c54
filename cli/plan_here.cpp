// This machine as the planner sees it: the ceilings of `polyhead bench`, its memory.
#include <unistd.h>

#include "cli/measure.hpp"
#include "cli/plan.hpp"

namespace polyhead::cli {

cost::Machine measure_here(int threads) {
  const Isa isa = resolve_isa(Isa::automatic);
  const int all = threads > 0 ? threads : Executor::shared().concurrency();
  Measurer measurer(isa, all);
  const Ceilings ceilings = measurer.ceilings();
  cost::Machine machine;
  machine.id = "here";
  machine.name = "this machine, " + std::to_string(all) + (all == 1 ? " thread, " : " threads, ") +
                 isa_name(isa);
  machine.source = "measured just now: float32 multiply-adds, bfloat16 dots, DRAM reads";
  machine.f32_flops = ceilings.float32 * 1e9;
  machine.f16_flops = ceilings.bfloat16 * 1e9;
  machine.memory_bandwidth = ceilings.dram * 1e9;
  machine.memory_bytes =
      static_cast<std::int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
  return machine;
}

}  // namespace polyhead::cli
