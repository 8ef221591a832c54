// polyhead score: how well a model predicts a text.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>

#include "cli/check_finite.hpp"
#include "cli/command.hpp"
#include "cli/json_text.hpp"
#include "cli/kv_options.hpp"
#include "cli/model_options.hpp"
#include "cli/option_checks.hpp"
#include "cli/table.hpp"
#include "models/tokenizers/tokenizer.hpp"
#include "polyhead/error.h"

namespace polyhead::cli {
namespace {

constexpr const char* kExample =
    "The mean is over every token but the first, each predicted from all before it. A text longer "
    "than the model's\ncontext of C tokens (or than --context) is read in windows of C that begin "
    "C / 2 before the first token they\ncount: each token counts once, and is predicted from at "
    "least C / 2 before it. Where the model begins texts\nwith a token of its own, every window "
    "does.\n\n"
    "Examples:\n"
    "  polyhead score smollm2 --file book.txt\n"
    "  polyhead score smollm2 --text 'The cat sat on the mat.' --per-token";

constexpr std::int64_t kLeastContext = 4;  // half of it read before, and a token of the model's own

/// What was scored so far.
struct Score {
  double nats = 0.0;
  std::int64_t tokens = 0;
  std::vector<double> losses;  ///< nats of each token of the text; NaN of those that have none
  double mean() const { return nats / static_cast<double>(tokens); }
};

class ScoreCommand : public Command {
 public:
  const char* name() const override { return "score"; }
  const char* summary() const override { return "Mean log-likelihood and perplexity of a text"; }
  void add_options(CLI::App& app) override;
  void run(const Console& console) override;

 private:
  std::int64_t context_of(const models::Model& model) const;
  Score score(const models::Model& model, const models::Tokenizer& tokenizer,
              std::span<const std::int32_t> ids, const Console& console) const;
  void print_json(const Console& console, const models::Tokenizer& tokenizer,
                  std::span<const std::int32_t> ids, const Score& sum) const;
  void print(const Console& console, const models::Tokenizer& tokenizer,
             std::span<const std::int32_t> ids, const Score& sum) const;

  ModelOptions model_;
  KvOptions kv_;
  std::string file_, text_;
  std::int64_t context_ = 0;
  bool json_ = false, per_token_ = false;
};

void ScoreCommand::add_options(CLI::App& app) {
  model_.add_options(app);
  kv_.add_options(app);
  auto* const file = app.add_option("--file", file_, "The text; - reads standard input");
  file->type_name("FILE")->check(not_empty());
  app.add_option("--text", text_, "The text itself")->type_name("TEXT")->excludes(file);
  app.add_option("--context", context_, "Tokens of a window (default: the model's context)")
      ->type_name("N")
      ->transform(count(kLeastContext));
  app.add_flag("--per-token", per_token_, "Also the figure of each token");
  app.add_flag("--json", json_, "Print the figures as JSON");
  app.footer(kExample);
}

/// What the model reads at once: a stretch of the text, which a token of the model's may precede.
struct Window {
  std::vector<std::int32_t> tokens;
  std::int64_t target = 0;  // place in the text of what follows the first of these tokens
};

/// The first one, or the one whose tokens from half a context on are the first not yet scored.
Window window_at(std::span<const std::int32_t> ids, std::int64_t scored, std::int64_t context,
                 std::int32_t begin_token) {
  const auto count = static_cast<std::int64_t>(ids.size());
  const bool first = scored == 1;
  Window window;
  if (!first && begin_token >= 0) window.tokens.push_back(begin_token);
  const auto extra = static_cast<std::int64_t>(window.tokens.size());
  const std::int64_t begin = first ? 0 : scored - context / 2;
  const std::int64_t end = std::min(begin + context - extra, count - 1);  // targets: one on
  window.tokens.insert(window.tokens.end(), ids.begin() + begin, ids.begin() + end);
  window.target = begin - extra + 1;
  return window;
}

std::int64_t ScoreCommand::context_of(const models::Model& model) const {
  const std::int64_t most = model.config().context_length;
  const std::int64_t context = context_ > 0 ? context_ : most;
  if (context > most) {
    throw InvalidArgument("score: --context (" + std::to_string(context) +
                          ") is more than the model's, " + std::to_string(most));
  }
  if (context < kLeastContext) {
    throw InvalidArgument("score: the model's context is " + std::to_string(context) +
                          " tokens; windows need at least " + std::to_string(kLeastContext));
  }
  return context;
}

/// Reads some tokens and adds the losses of `targets`, those that follow them in the text, the
/// first of which is `target`; those before `scored` were counted by the window before.
void score_piece(const models::Model& model, models::Session& session,
                 std::span<const std::int32_t> piece, std::span<const std::int32_t> targets,
                 std::int64_t target, std::int64_t scored, Score& sum) {
  const auto size = static_cast<std::int64_t>(piece.size());
  if (target + size <= scored) {
    model.forward(session, piece, models::Wanted::nothing, nullptr);
    return;
  }
  std::vector<double> nats(piece.size());
  model.losses(session, piece, targets, nats.data());
  for (std::int64_t i = std::max<std::int64_t>(scored - target, 0); i < size; ++i) {
    const double loss = nats[static_cast<std::size_t>(i)];
    check_finite(loss, [&] { return "score: the loss of token " + std::to_string(target + i); });
    sum.nats += loss;
    ++sum.tokens;
    sum.losses[static_cast<std::size_t>(target + i)] = loss;
  }
}

Score ScoreCommand::score(const models::Model& model, const models::Tokenizer& tokenizer,
                          std::span<const std::int32_t> ids, const Console& console) const {
  constexpr std::size_t kPiece = 512;  // tokens between two signs of progress
  const std::int64_t context = context_of(model);
  const auto count = static_cast<std::int64_t>(ids.size());
  const models::TokenizerSpec& spec = tokenizer.spec();
  const std::int32_t begin_token = spec.add_bos ? spec.bos : -1;
  auto session =
      model.make_session(context, kv_.form(model, tokenizer, ids, std::min(context, count)));
  Progress progress(console);
  Score sum;
  sum.losses.resize(ids.size(), std::numeric_limits<double>::quiet_NaN());
  std::int64_t scored = 1;  // tokens of the text that are done, the first without a figure
  while (scored < count) {
    session.truncate(0);
    const Window window = window_at(ids, scored, context, begin_token);
    for (std::size_t at = 0; at < window.tokens.size(); at += kPiece) {
      const std::size_t size = std::min(kPiece, window.tokens.size() - at);
      const std::int64_t target = window.target + static_cast<std::int64_t>(at);
      score_piece(model, session, std::span(window.tokens).subspan(at, size),
                  ids.subspan(static_cast<std::size_t>(target), size), target, scored, sum);
      progress.show("scored " + grouped(sum.tokens) + " of " + grouped(count - 1) + " tokens, " +
                    (sum.tokens > 0 ? fixed(sum.mean()) + " nats" : "") + " ...");
    }
    scored = window.target + static_cast<std::int64_t>(window.tokens.size());
  }
  return sum;
}

void ScoreCommand::run(const Console& console) {
  if (file_.empty() && text_.empty()) throw UsageError("--file or --text with a text is needed");
  kv_.check({{"--file", file_}});
  const models::ModelFile file = model_.open();
  if (!file.config().causal)
    throw InvalidArgument("score: the model is an encoder and predicts no tokens");
  const models::Tokenizer tokenizer(file.tokenizer());
  const auto ids = tokenizer.encode(file_.empty() ? text_ : read_text(file_));
  if (ids.size() < 2)
    throw InvalidArgument("score: the text has fewer than two tokens: nothing to predict");
  const Score sum = score(model_.load(file), tokenizer, ids, console);
  if (json_)
    print_json(console, tokenizer, ids, sum);
  else
    print(console, tokenizer, ids, sum);
}

void ScoreCommand::print_json(const Console& console, const models::Tokenizer& tokenizer,
                              std::span<const std::int32_t> ids, const Score& sum) const {
  nlohmann::ordered_json json{{"tokens", ids.size()},
                              {"scored", sum.tokens},
                              {"total_nll", sum.nats},
                              {"nll", sum.mean()},
                              {"perplexity", std::exp(sum.mean())}};
  for (std::size_t i = 0; per_token_ && i < ids.size(); ++i) {
    nlohmann::ordered_json one{{"id", ids[i]}, {"text", std::string(tokenizer.bytes(ids[i]))}};
    one["nll"] = nullptr;
    if (!std::isnan(sum.losses[i])) one["nll"] = sum.losses[i];
    json["per_token"].push_back(std::move(one));
  }
  console.out << json_text(json);
}

void print_tokens(const Console& console, const models::Tokenizer& tokenizer,
                  std::span<const std::int32_t> ids, const std::vector<double>& losses) {
  using enum Table::Align;
  Table table({right, right, left, right, right});
  table.header({"place", "id", "text", "nats", "probability"});
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const bool none = std::isnan(losses[i]);
    table.row({std::to_string(i), std::to_string(ids[i]),
               "'" + printable(tokenizer.bytes(ids[i])) + "'", none ? "" : fixed(losses[i]),
               none ? "" : fixed(100 * std::exp(-losses[i]), 2) + " %"});
  }
  table.print(console);
  console.out << '\n';
}

void ScoreCommand::print(const Console& console, const models::Tokenizer& tokenizer,
                         std::span<const std::int32_t> ids, const Score& sum) const {
  if (per_token_) print_tokens(console, tokenizer, ids, sum.losses);
  Table table = Table::numbers(1);
  table.row({"tokens", grouped(static_cast<long long>(ids.size()))});
  table.row({"mean negative log-likelihood, nats", fixed(sum.mean(), 6)});
  table.row({"perplexity", fixed(std::exp(sum.mean()), 4)});
  table.print(console);
}

}  // namespace

std::unique_ptr<Command> make_score() { return std::make_unique<ScoreCommand>(); }

}  // namespace polyhead::cli
