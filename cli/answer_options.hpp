// How an answer is drawn and where it ends, on the command line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/answer_text.hpp"
#include "cli/command.hpp"
#include "models/sampler.hpp"
#include "models/tokenizers/tokenizer.hpp"

namespace polyhead::cli {

/// The same for every answer of a run.
struct AnswerRules {
  std::int64_t max_tokens = 128;
  models::Sampling sampling{};
  std::vector<std::string> stops{};  ///< texts that end it
  bool ignore_eos = false;

  bool ends(const models::Tokenizer& tokenizer, std::int32_t id) const {
    return !ignore_eos && tokenizer.ends_answer(id);
  }
  AnswerText text(TextStream to) const { return {std::move(to), stops}; }
};

/// --max-tokens, --stop, --ignore-eos, --repeat-penalty, --repeat-last, --temperature, --top-k,
/// --top-p, --min-p and --seed.
class AnswerOptions {
 public:
  void add_options(CLI::App& app);

  /// Throws UsageError where they make no sense together.
  void check() const;

  const AnswerRules& rules() const { return rules_; }

 private:
  AnswerRules rules_;
  const CLI::App* app_ = nullptr;  ///< knows which options were given
};

}  // namespace polyhead::cli
