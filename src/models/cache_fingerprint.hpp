// What a model's keys and values depend on besides the tokens.
#pragma once

#include "models/model.hpp"
#include "polyhead/cache_file.h"

namespace polyhead::inline v0::models {

/// For files of caches of `file`'s model as it is run: a file of other weights, another form of
/// them, another instruction set or another configuration is refused, since its keys and values
/// would have other bits. Reads all weights. How the cache holds rows, the file says by itself.
CacheFingerprint cache_fingerprint(const ModelFile& file, const ModelOptions& options);

}  // namespace polyhead::inline v0::models
