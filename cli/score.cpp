// polyhead score: how well a model predicts a text.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

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
    "  polyhead score smollm2 --text 'The cat sat on the mat.' --json";

constexpr std::int64_t kLeastContext = 4;  // half of it read before, and a token of the model's own

/// Sums of what was scored so far.
struct Score {
  double nats = 0.0;
  std::int64_t tokens = 0;
  double mean() const { return nats / static_cast<double>(tokens); }
};

class ScoreCommand : public Command {
 public:
  const char* name() const override { return "score"; }
  const char* summary() const override { return "Mean log-likelihood and perplexity of a text"; }
  void add_options(CLI::App& app) override;
  void run(const Console& console) override;

 private:
  Score score(const models::Model& model, const models::Tokenizer& tokenizer,
              const std::vector<std::int32_t>& ids, const Console& console) const;

  ModelOptions model_;
  KvOptions kv_;
  std::string file_, text_;
  std::int64_t context_ = 0;
  bool json_ = false;
};

void ScoreCommand::add_options(CLI::App& app) {
  model_.add_options(app);
  kv_.add_options(app);
  auto* const file = app.add_option("--file", file_, "The text; - reads standard input");
  file->type_name("FILE")->check(not_empty());
  app.add_option("--text", text_, "The text itself")->type_name("TEXT")->excludes(file);
  app.add_option("--context", context_, "Tokens of a window (default: the model's context)")
      ->type_name("N")
      ->check(whole_number(kLeastContext));
  app.add_flag("--json", json_, "Print the figures as JSON");
  app.footer(kExample);
}

Score ScoreCommand::score(const models::Model& model, const models::Tokenizer& tokenizer,
                          const std::vector<std::int32_t>& ids, const Console& console) const {
  constexpr std::int64_t kPiece = 512;  // tokens between two signs of progress
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
  const auto count = static_cast<std::int64_t>(ids.size());
  Progress progress(console);
  Score sum;
  std::int64_t scored = 1;  // tokens of the text that are done, the first without a figure
  const models::TokenizerSpec& spec = tokenizer.spec();
  const std::int32_t begin_token = spec.add_bos ? spec.bos : -1;
  auto session =
      model.make_session(context, kv_.form(model, tokenizer, ids, std::min(context, count)));
  while (scored < count) {
    session.truncate(0);
    const bool first = scored == 1;
    std::vector<std::int32_t> window;
    if (!first && begin_token >= 0) window.push_back(begin_token);
    const auto room = context - static_cast<std::int64_t>(window.size());
    const std::int64_t begin = first ? 0 : scored - context / 2;
    const std::int64_t end = std::min(begin + room, count - 1);  // of what is read; targets: one on
    const auto extra = static_cast<std::int64_t>(window.size());
    window.insert(window.end(), ids.begin() + begin, ids.begin() + end);
    const auto length = static_cast<std::int64_t>(window.size());
    for (std::int64_t at = 0; at < length; at += kPiece) {
      const std::int64_t size = std::min(kPiece, length - at);
      const std::span<const std::int32_t> piece(window.data() + at, static_cast<std::size_t>(size));
      const std::int64_t target = begin + at - extra + 1;  // of the piece's first token
      // The begin token is followed by the window's own first token, which is not counted.
      std::vector<std::int32_t> targets;
      for (std::int64_t i = 0; i < size; ++i) {
        targets.push_back(ids[static_cast<std::size_t>(target + i)]);
      }
      std::vector<double> nats(targets.size());
      if (target + size > scored) {
        model.losses(session, piece, targets, nats.data());
      } else {
        model.forward(session, piece, models::Wanted::nothing, nullptr);
      }
      for (std::int64_t i = std::max<std::int64_t>(scored - target, 0); i < size; ++i) {
        const double loss = nats[static_cast<std::size_t>(i)];
        check_finite(loss,
                     [&] { return "score: the loss of token " + std::to_string(target + i); });
        sum.nats += loss;
        ++sum.tokens;
      }
      progress.show("scored " + grouped(sum.tokens) + " of " + grouped(count - 1) + " tokens, " +
                    (sum.tokens > 0 ? fixed(sum.mean()) + " nats" : "") + " ...");
    }
    scored = end + 1;
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
  if (json_) {
    console.out << json_text({{"tokens", ids.size()},
                              {"scored", sum.tokens},
                              {"nll", sum.mean()},
                              {"perplexity", std::exp(sum.mean())}});
    return;
  }
  Table table = Table::numbers(1);
  table.row({"tokens", grouped(static_cast<long long>(ids.size()))});
  table.row({"mean negative log-likelihood, nats", fixed(sum.mean(), 6)});
  table.row({"perplexity", fixed(std::exp(sum.mean()), 4)});
  table.print(console);
}

}  // namespace

std::unique_ptr<Command> make_score() { return std::make_unique<ScoreCommand>(); }

}  // namespace polyhead::cli
