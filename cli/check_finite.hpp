// Figures of a model that are no numbers: its file is damaged, or its weights are beyond what they
// are run as.
#pragma once

#include <cmath>
#include <string>

#include "polyhead/error.h"

namespace polyhead::cli {

/// Throws InvalidArgument where `value`, which `what()` names for a person, is not finite: nothing
/// that is printed or written from it would be a result.
template <class What>
void check_finite(double value, const What& what) {
  if (std::isfinite(value)) return;
  const char* const found = std::isnan(value) ? "NaN" : value > 0 ? "infinite" : "-infinite";
  throw InvalidArgument(std::string(what()) + " is " + found +
                        ": the model's weights or its text give no numbers");
}

}  // namespace polyhead::cli
