// Who runs a call's work items.
#pragma once

#include <algorithm>
#include <cstdint>

#include "polyhead/options.h"

namespace polyhead::inline v0 {

/// The executor that `options` stand for, and how many of its tasks to use.
struct Crew {
  Executor* executor;
  int workers;

  /// The same for `items` of work: nobody has scratch who has none.
  Crew for_items(std::int64_t items) const {
    return {executor,
            static_cast<int>(std::max<std::int64_t>(1, std::min<std::int64_t>(items, workers)))};
  }
};
/// `call` refuses threads below 0, or more than a pool can have.
Crew crew_of(const char* call, const Options& options);

}  // namespace polyhead::inline v0
