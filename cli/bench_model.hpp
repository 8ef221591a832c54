// polyhead bench --model: a whole model's speed against this machine's ceilings.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "cli/console.hpp"
#include "polyhead/attention.h"

namespace polyhead::cli {

/// What to measure.
struct ModelBench {
  std::string model;                           ///< as model_path() takes it
  bool bfloat16 = false;                       ///< weights
  std::int64_t tokens = 2048;                  ///< of prefill
  std::int64_t context = 1024;                 ///< of decoding
  std::int64_t texts = 64, text_tokens = 128;  ///< of an encoder
  double seconds = 3.0;                        ///< for each figure, at least one run
  Isa isa = Isa::automatic;
  int threads = 0;
};

/// Loading, prefill, prefill with every head's statistics and decoding (or embedding) of random
/// tokens: medians, each prefill between two measurements of its ceiling. Operations are those of
/// the products: `share` counts 2 for each weight and token and attention's two products over
/// visible pairs, `weights_share` the former alone, over the same time.
nlohmann::ordered_json bench_model(const ModelBench& bench, const Console& console);

/// The same as a table.
void print_model_bench(const nlohmann::ordered_json& result, const Console& console);

}  // namespace polyhead::cli
