// A model given by options instead of a name or a file.
#pragma once

#include <string>

#include "polyhead/cost.h"

namespace CLI {
class App;
}

namespace polyhead::cli {

inline constexpr const char* kOwnModel = "own";  ///< id of what options alone describe

/// The options as text; empty where not given.
struct PlanShape {
  std::string layers, model_dim, q_heads, head_dim, value_dim, window, ffn, vocab;
  std::string q_rank, kv_rank, nope_dim, rope_dim, experts, experts_used;
  bool untied = false, plain_ffn = false;

  void add_options(CLI::App& app);
  bool given() const;
  /// Throws UsageError where sizes are missing, or do not divide.
  cost::ModelDescription model() const;
};

}  // namespace polyhead::cli
