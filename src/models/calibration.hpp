// Frames for a layer's keys and values, found on a run.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "layers/rows.hpp"
#include "models/blocks.hpp"
#include "models/config.hpp"
#include "models/model.hpp"

namespace polyhead::inline v0::models {

/// How errors of a layer's values count for what it adds to the residual stream: value_moments() of
/// code_frame.h for any weights, and that of a norm which follows the output projection.
std::vector<double> value_moments(const layers::Engine& engine, const Block& block);

/// Shows a run from position 0 to a FrameCalibration a layer.
class FrameObserver : public Observer {
 public:
  FrameObserver(const ModelConfig& config, const layers::Engine& engine);

  void attending(std::int64_t layer, std::int64_t first_query,
                 AttentionArguments& arguments) override;
  void attended(const AttentionSeen&) override {}

  /// Of one layer, which the run has reached.
  const FrameCalibration& layer(std::int64_t index) const;

 private:
  const ModelConfig& config_;
  Options options_;
  std::vector<std::optional<FrameCalibration>> layers_;
};

}  // namespace polyhead::inline v0::models
