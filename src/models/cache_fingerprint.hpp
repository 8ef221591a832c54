// What a model's keys and values depend on besides the tokens.
#pragma once

#include <cstdint>
#include <optional>

#include "models/model.hpp"
#include "polyhead/cache_file.h"
#include "polyhead/isa.h"

namespace polyhead::inline v0::models {

/// For files of caches of `file`'s model as it is run: a file of other weights, another form of
/// them, another instruction set or another configuration is refused, since its keys and values
/// would have other bits. Reads all weights. How the cache holds rows, the file says by itself.
CacheFingerprint cache_fingerprint(const ModelFile& file, const ModelOptions& options);

/// How weights are held and multiplied.
struct WeightRun {
  WeightForm weights = WeightForm::float32;
  Isa isa = Isa::portable;  ///< never automatic
};

WeightRun weight_run(const ModelOptions& options);

/// The run of these very weights that has such a CacheFingerprint::weights, on any processor; none
/// where the weights are others. Reads all weights.
std::optional<WeightRun> run_of_weights(const ModelFile& file, std::uint64_t fingerprint);

}  // namespace polyhead::inline v0::models
