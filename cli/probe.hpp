// Scores on repeated random tokens: what a head does where only repetition says anything.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/console.hpp"
#include "models/model.hpp"
#include "models/tokenizers/tokenizer.hpp"

namespace polyhead::cli {

/// `length` random tokens, twice, after the model's first token where it has one. Over the second
/// copy, the mean weight of each head on
///   induction  the token after the same token's first copy (prefix matching score)
///   duplicate  the first copy itself
/// and over both on
///   previous   the token before
/// averaged over `texts` such texts. Sources: Elhage et al. 2021; Olsson et al. 2022, appendix.
struct ProbeOptions {
  std::int64_t length = 50, texts = 4;
  std::uint64_t seed = 1;
  Options run;
};

struct ProbeScore {
  std::int64_t layer = 0, head = 0;
  double induction = 0, duplicate = 0, previous = 0;
};

/// Whether such texts fit the model. Throws InvalidArgument naming --probe.
void check_probe(const models::ModelConfig& model, const models::Tokenizer& tokenizer,
                 const ProbeOptions& options);

/// Every head in order. Throws what check_probe() does.
std::vector<ProbeScore> probe(const models::Model& model, const models::Tokenizer& tokenizer,
                              const ProbeOptions& options, const Console& console);

nlohmann::ordered_json probe_json(const std::vector<ProbeScore>& scores,
                                  const ProbeOptions& options);
void print_probe(const Console& console, std::vector<ProbeScore> scores,
                 const ProbeOptions& options);

}  // namespace polyhead::cli
