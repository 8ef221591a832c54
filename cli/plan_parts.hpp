// Parts of the printed plan that stand in files of their own.
#pragma once

#include <string>

#include "cli/plan.hpp"

namespace polyhead::cli {

void heading(const Console& console, const std::string& text);

/// "8 KV heads", "MLA".
std::string heads_of(const std::string& heads);

/// One layer of each kind, step by step.
void print_terms(const Console& console, const PlanResult& plan);

/// A run on this machine beside what was predicted; nothing where there was none.
void print_measured(const Console& console, const PlanResult& plan);

/// Every formula of a case with its numbers.
void explain_case(const Console& console, const PlanResult& plan, const PlanCase& c);

/// What kernels reach on this machine, and the seconds each kind adds; nothing without --here.
void explain_rates(const Console& console, const PlanResult& plan);

}  // namespace polyhead::cli
