// What `polyhead plan` is told, as it stands on the command line.
#pragma once

#include <optional>
#include <string>

#include "cli/plan_shape.hpp"
#include "polyhead/cost.h"

namespace CLI {
class App;
}

namespace polyhead::cli {

/// A type of caches, or of weights, by name. Throws UsageError.
cost::StorageType type_of_cache(const std::string& name);
cost::StorageType type_of_weights(const std::string& name);

/// Throws UsageError.
cost::Compute compute_named(const std::string& name);

/// The options' values, and what they say without a model.
class PlanOptions {
 public:
  void add_options(CLI::App& app);

  /// Throws UsageError where the command line makes no sense by itself, before any file is read.
  void check() const;

  /// A preset, or one of the user's own; none where neither was given. What else is said of it is
  /// not yet in it. Throws UsageError.
  std::optional<cost::Machine> asked_machine() const;

  cost::Devices devices() const;

  /// Memory, bandwidth and the peak of this arithmetic, where they were given. Throws UsageError.
  void give_amounts(cost::Machine& machine, cost::Compute compute) const;

 protected:
  std::string model_, compare_, context_, batch_ = "1", kv_heads_, kv_type_, weight_type_;
  std::string machine_, memory_, bandwidth_, flops_, compute_, devices_ = "1", split_ = "tensor";
  std::string generate_ = "0", chunk_ = "0", page_ = "0", html_, count_ = "full", form_;
  PlanShape shape_;
  const CLI::App* app_ = nullptr;  ///< knows which options were given
  int threads_ = 0;
  bool measure_ = false;
  bool json_ = false, csv_ = false, explain_ = false, here_ = false, list_ = false,
       training_ = false;

 private:
  void check_companions() const;
  void check_counts() const;
  void check_names() const;
  void check_machine() const;
  void check_shape() const;
};

}  // namespace polyhead::cli
