// What this processor can run.
#pragma once

#include "polyhead/isa.h"

namespace polyhead::inline v0::base {

/// Whether the processor has all of the instruction set, and the system saves its registers.
bool processor_runs(Isa isa);

}  // namespace polyhead::inline v0::base
