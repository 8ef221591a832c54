// Who runs a call's work items.
#pragma once

#include "polyhead/options.h"

namespace polyhead::inline v0 {

/// The executor that `options` stand for, and how many of its tasks to use.
struct Crew {
  Executor* executor;
  int workers;
};
Crew crew_of(const Options& options);

}  // namespace polyhead::inline v0
