// A model as the program runs it, as what costs something.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "models/config.hpp"
#include "polyhead/cost.h"

namespace polyhead::cli {

/// A tensor under its canonical name (models/model_file.hpp).
struct NamedShape {
  std::string_view name;
  std::span<const std::int64_t> shape;  ///< outermost first
};

/// The product of the extents, which are not negative; at most kUnlimited + 1, which cost::check
/// refuses by name.
std::int64_t elements(std::span<const std::int64_t> shape);

/// Layers, biases, norms and positions as configuration and tensors have them. What it is called
/// and the types of its weights are left empty.
cost::ModelDescription description_of(const models::ModelConfig& config,
                                      std::span<const NamedShape> tensors);

}  // namespace polyhead::cli
