// One head of a real model as `polyhead explain` takes it.
#pragma once

#include <cstdint>
#include <string>

#include "cli/explain_case.hpp"
#include "polyhead/attention.h"

namespace polyhead::cli {

struct ModelHead {
  ExplainInput input;       ///< q, k and v of the head, as attention read them; one head
  AttentionArguments call;  ///< the layer's mask, scale and soft-cap
  std::int64_t head = 0, kv_head = 0;
};

/// Runs the text through the model at `place` with float32 weights and keeps one head of one layer.
/// Throws FileError, InvalidArgument.
ModelHead head_of_model(const std::string& place, std::int64_t layer, std::int64_t head,
                        const std::string& text, const Options& options);

/// The traced case under the names of the model's heads.
void name_head(Case& shown, const ModelHead& of);

}  // namespace polyhead::cli
