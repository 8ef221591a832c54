// Runs of one text that differ in their heads alone share the layers before the first difference.
#include <algorithm>

#include "base/refuse.hpp"
#include "models/model_state.hpp"

namespace polyhead::inline v0::models {
namespace {

/// First layer with a head off; -1 where all are on.
std::int64_t first_changed(const RunOptions& options) {
  if (options.heads == nullptr) return -1;
  const auto& off = options.heads->off;
  for (std::size_t layer = 0; layer < off.size(); ++layer) {
    if (std::find(off[layer].begin(), off[layer].end(), true) != off[layer].end())
      return static_cast<std::int64_t>(layer);
  }
  return -1;
}

}  // namespace

bool Model::State::prepare_inputs(const char* call, LayerInputs& inputs, std::int64_t tokens,
                                  const RunOptions& options) const {
  const auto size = static_cast<std::size_t>(tokens * config.model_dim);
  if (first_changed(options) < 0) {
    inputs.of_layer.assign(blocks.size(), std::vector<float>(size));
    return true;
  }
  if (inputs.of_layer.size() != blocks.size()) {
    base::refuse(call, "inputs has ", inputs.of_layer.size(), " layers, expected ", blocks.size(),
                 " (a run with all heads on fills it)");
  }
  for (const std::vector<float>& rows : inputs.of_layer) {
    if (rows.size() != size) {
      base::refuse(call, "inputs has ", rows.size(), " figures a layer, expected ", size);
    }
  }
  return false;
}

void Model::State::run_from(LayerInputs& inputs, std::int64_t first, const RunOptions& options,
                            Pass& pass) const {
  const Matrix& x = pass.residual();
  const auto rows_of = [&](std::int64_t layer) {
    return inputs.of_layer[static_cast<std::size_t>(layer)].data() + first * config.model_dim;
  };
  const auto layers = static_cast<std::int64_t>(blocks.size());
  std::int64_t layer = std::max<std::int64_t>(first_changed(options), 0);
  const bool writes = first_changed(options) < 0;
  if (writes) {
    embed(pass);
  } else {
    const float* const from = rows_of(layer);
    for (std::int64_t row = 0; row < x.rows; ++row)
      std::copy_n(from + row * config.model_dim, config.model_dim, x.floats(row));
  }
  for (; layer < layers; ++layer) {
    float* const to = rows_of(layer);
    for (std::int64_t row = 0; writes && row < x.rows; ++row)
      std::copy_n(x.floats(row), config.model_dim, to + row * config.model_dim);
    run_block(layer, pass);
  }
}

}  // namespace polyhead::inline v0::models
