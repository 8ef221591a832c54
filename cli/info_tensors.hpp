// Each tensor of a model's file, for `polyhead info --tensors`.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "cli/console.hpp"
#include "models/model_file.hpp"

namespace polyhead::cli {

/// A row a tensor, in file order, as the file names and shapes it; its canonical name where that is
/// another.
void print_tensors(const Console& console, const models::ModelFile& file);

/// The same, [{name, canonical, type, shape, bytes}].
nlohmann::ordered_json tensors_json(const models::ModelFile& file);

}  // namespace polyhead::cli
