// Runs a text through a model and gathers what its heads did.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "cli/console.hpp"
#include "cli/look_data.hpp"
#include "models/model.hpp"

namespace polyhead::cli {

/// Weights of one query of one head, [tokens].
using HeadRows =
    std::map<std::pair<std::int64_t, std::int64_t>, std::map<std::int64_t, std::vector<float>>>;

struct LookWanted {
  std::vector<std::int64_t> rows;  ///< queries whose weights are kept
  LookReport* report = nullptr;
  std::size_t next = 10;  ///< likeliest next tokens
  Options run;
};

struct LookRun {
  std::unique_ptr<models::HeadObserver> heads;
  HeadRows rows;
};

/// Fills in what a run finds out: top, nll, embedding, seconds. `look` has file, tokenizer, config,
/// ids, delimiters and chosen; the observer that it points to afterwards is the returned one.
/// Throws InvalidArgument, also where something of it is no number, and what the report throws.
LookRun run_look(const models::Model& model, LookData& look, const LookWanted& wanted,
                 const Console& console);

}  // namespace polyhead::cli
