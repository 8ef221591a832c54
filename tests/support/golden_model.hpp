// A real model beside the figures that must come out of it.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "models/model_path.hpp"
#include "support/json.hpp"

namespace polyhead::test {

/// Where `scripts/get-model NAME` put the model, or "" where it was not fetched: such tests skip.
/// With POLYHEAD_MODELS set, as scripts/test does, that is a failure.
inline std::string fetched_model(const std::string& name) {
  for (const models::KnownModel& model : models::known_models()) {
    if (model.name != name) continue;
    const std::string path = models::model_folder() + "/" + model.file;
    if (std::filesystem::exists(path)) return path;
    if (std::getenv("POLYHEAD_MODELS") != nullptr) ADD_FAILURE() << path << " is not there";
  }
  return "";
}

#define SKIP_WITHOUT(name)                         \
  if (polyhead::test::fetched_model(name).empty()) \
  GTEST_SKIP() << "scripts/get-model " name " was not run"

/// tests/data/model_NAME.json: from transformers in float32 with eager attention, weights
/// dequantised to float32.
inline nlohmann::json golden_model(const std::string& name) {
  return json_file(POLYHEAD_TEST_DATA "/model_" + name + ".json");
}

}  // namespace polyhead::test
