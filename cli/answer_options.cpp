#include "cli/answer_options.hpp"

#include <CLI/CLI.hpp>

#include "cli/option_checks.hpp"

namespace polyhead::cli {

void AnswerOptions::add_options(CLI::App& app) {
  app_ = &app;
  models::Sampling& sampling = rules_.sampling;
  app.add_option("--max-tokens", rules_.max_tokens, "At most so many tokens (default 128)")
      ->type_name("N")
      ->transform(count(0));
  const auto take_stops = [this](const CLI::results_t& texts) {
    rules_.stops = texts;
    return true;
  };
  app.add_option("--stop", take_stops,
                 "End an answer before this text, of which nothing is printed; may be given\n"
                 "several times: the first that is complete ends it")
      ->type_name("TEXT")
      ->take_all()
      ->check(not_empty());
  app.add_flag("--ignore-eos", rules_.ignore_eos,
               "Go on after the model's end tokens, which print nothing");
  app.add_option("--temperature", sampling.temperature,
                 "Divides the logits before a token is drawn; 0, the default: always the best")
      ->type_name("T")
      ->check(float32_if([](double t) { return t >= 0.0; }, "of at least 0"));
  app.add_option("--top-k", sampling.top_k, "Draw among the K best only; 0, the default: among all")
      ->type_name("K")
      ->transform(count(0));
  app.add_option("--top-p", sampling.top_p,
                 "Draw among the fewest whose probabilities reach P together")
      ->type_name("P")
      ->check(float32_if([](double p) { return p > 0.0 && p <= 1.0; }, "above 0 and at most 1"));
  app.add_option("--min-p", sampling.min_p,
                 "Draw among those at least P times as probable as the best; 0, the default:\n"
                 "among all")
      ->type_name("P")
      ->check(float32_if([](double p) { return p >= 0.0 && p <= 1.0; }, "from 0 to 1"));
  app.add_option("--repeat-penalty", sampling.repeat_penalty,
                 "Divides logits above 0 of tokens that are in prompt or answer already, and\n"
                 "multiplies others of them; 1, the default: none")
      ->type_name("F")
      ->check(float32_if([](double f) { return f > 0.0; }, "above 0"));
  app.add_option("--repeat-last", sampling.repeat_last,
                 "Of the last N tokens only; 0, the default: of all")
      ->type_name("N")
      ->transform(count(0));
  app.add_option("--seed", sampling.seed, "Of the draws (default 0)")
      ->type_name("N")
      ->check(whole_number(0, kLargestSeed));
}

void AnswerOptions::check() const {
  if (app_->count("--repeat-last") > 0 && app_->count("--repeat-penalty") == 0)
    throw UsageError("--repeat-last needs --repeat-penalty");
  if (rules_.sampling.temperature > 0.0f) return;
  for (const char* option : {"--top-k", "--top-p", "--min-p", "--seed"}) {
    if (app_->count(option) == 0) continue;
    throw UsageError(std::string(option) + " needs --temperature above 0: at 0 nothing is drawn");
  }
}

}  // namespace polyhead::cli
