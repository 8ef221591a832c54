// A real model beside the figures that must come out of it.
#pragma once

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "models/model_path.hpp"

namespace polyhead::test {

/// Where `scripts/get-model NAME` put the model, or "" where it was not fetched: such tests skip.
inline std::string fetched_model(const std::string& name) {
  for (const models::KnownModel& model : models::known_models()) {
    if (model.name != name) continue;
    const std::string path = models::model_folder() + "/" + model.file;
    if (std::filesystem::exists(path)) return path;
  }
  return "";
}

/// tests/data/model_NAME.json: from transformers in float32 with eager attention, weights
/// dequantised to float32.
inline nlohmann::json golden_model(const std::string& name) {
  std::ifstream file(POLYHEAD_TEST_DATA "/model_" + name + ".json");
  return nlohmann::json::parse(file);
}

}  // namespace polyhead::test
