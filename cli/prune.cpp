// polyhead prune: what a model loses without each of its heads.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/command.hpp"
#include "cli/curve_svg.hpp"
#include "cli/json_text.hpp"
#include "cli/look_print.hpp"
#include "cli/model_options.hpp"
#include "cli/option_checks.hpp"
#include "cli/prune_run.hpp"
#include "cli/table.hpp"
#include "models/formats/output_file.hpp"
#include "models/tokenizers/tokenizer.hpp"
#include "polyhead/error.h"

namespace polyhead::cli {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t kShown = 12;  // heads at either end of the table

constexpr const char* kExample =
    "A head is switched off by zeros in place of its output. First each head alone: the change of "
    "the mean negative\nlog-likelihood of the text. Then more and more heads at once, the least "
    "missed first (Voita et al. 2019,\nMichel et al. 2019). Changes are of this text; heads that "
    "stand in for each other are not missed alone.\n\n"
    "Examples:\n"
    "  polyhead prune smollm2 --file story.txt\n"
    "  polyhead prune smollm2 --file story.txt --tokens 128 --points 10 -o curve.svg";

constexpr std::int64_t kTokens = 256;  // as a rule: each head off costs half a run over them

class Prune : public Command {
 public:
  const char* name() const override { return "prune"; }
  const char* summary() const override { return "What a model loses without each of its heads"; }
  void add_options(CLI::App& app) override;
  void run(const Console& console) override;

 private:
  std::vector<std::int32_t> read_ids(const models::ModelFile& file) const;
  void print(const Console& console, const models::ModelFile& file, std::size_t tokens) const;
  ordered_json json(const models::ModelFile& file, std::size_t tokens) const;
  void write_curve(const models::ModelFile& file) const;

  ModelOptions model_;
  std::string file_, text_, output_;
  std::int64_t most_tokens_ = 0, points_ = 20;  ///< 0: kTokens
  bool json_ = false;
  Pruning made_;
};

void Prune::add_options(CLI::App& app) {
  model_.add_options(app);
  auto* const file = app.add_option("--file", file_, "The text; - reads standard input");
  file->type_name("FILE")->check(not_empty());
  app.add_option("--text", text_, "The text itself")->type_name("TEXT")->excludes(file);
  app.add_option("--tokens", most_tokens_,
                 "Only the first N tokens (default 256): the model reads them about half\n"
                 "a time a head")
      ->type_name("N")
      ->transform(count(2));
  app.add_option("--points", points_, "Points of the curve between no and all heads (default 20)")
      ->type_name("N")
      ->transform(count(1));
  app.add_flag("--json", json_, "Print JSON, every number in full");
  app.add_option(kOutputOption, output_, "Also draw the curve")
      ->type_name("FILE.svg")
      ->check(output_name());
  app.footer(kExample);
}

std::vector<std::int32_t> Prune::read_ids(const models::ModelFile& file) const {
  if (!file.config().causal)
    throw InvalidArgument("prune: the model is an encoder and predicts no tokens");
  const models::Tokenizer tokenizer(file.tokenizer());
  auto ids = tokenizer.encode(file_.empty() ? text_ : read_text(file_));
  const std::int64_t context = file.config().context_length;
  if (most_tokens_ > context) {
    throw InvalidArgument("prune: --tokens (" + std::to_string(most_tokens_) +
                          ") is more than the model's context, " + std::to_string(context));
  }
  const auto most = most_tokens_ > 0 ? most_tokens_ : std::min(kTokens, context);
  if (ids.size() > static_cast<std::size_t>(most)) ids.resize(static_cast<std::size_t>(most));
  if (ids.size() < 2)
    throw InvalidArgument("prune: the text has fewer than two tokens: nothing to predict");
  return ids;
}

std::string signed_change(double change) { return (change < 0 ? "" : "+") + fixed(change); }

void Prune::print(const Console& console, const models::ModelFile& file, std::size_t tokens) const {
  console.out << printable(model_title(file)) << ": " << grouped(static_cast<long long>(tokens))
              << " tokens, " << made_.heads.size() << (made_.heads.size() == 1 ? " head" : " heads")
              << ", mean negative log-likelihood " << fixed(made_.nll) << " nats\n\n"
              << console.styled(Style::heading, "Without one head") << ' '
              << console.styled(Style::faint, "(the most missed first)") << '\n';
  Table table = Table::numbers(2);
  table.header({"head off", "nats", "change"});
  const bool cut = made_.heads.size() > 2 * kShown;
  for (std::size_t i = 0; i < made_.heads.size(); ++i) {
    if (cut && i == kShown) table.rule();
    if (cut && i >= kShown && i + kShown < made_.heads.size()) continue;
    const HeadLoss& head = made_.heads[made_.heads.size() - 1 - i];
    table.row({head_name(head.layer, head.head), fixed(head.nll), signed_change(head.change)});
  }
  table.print(console);
  console.out << '\n'
              << console.styled(Style::heading, "Without more and more heads") << ' '
              << console.styled(Style::faint, "(the least missed first)") << '\n';
  Table curve = Table::numbers(3);
  curve.header({"heads off", "of all", "nats", "change"});
  for (const CurvePoint& point : made_.curve) {
    const double share = static_cast<double>(point.off) / static_cast<double>(made_.heads.size());
    curve.row({std::to_string(point.off), fixed(100 * share, 0) + " %", fixed(point.nll),
               signed_change(point.nll - made_.nll)});
  }
  curve.print(console);
}

ordered_json Prune::json(const models::ModelFile& file, std::size_t tokens) const {
  ordered_json result{{"model", model_title(file)}, {"tokens", tokens}, {"nll", made_.nll}};
  result["heads"] = ordered_json::array();
  for (const HeadLoss& head : made_.heads) {
    result["heads"].push_back(
        {{"layer", head.layer}, {"head", head.head}, {"nll", head.nll}, {"change", head.change}});
  }
  result["curve"] = ordered_json::array();
  for (const CurvePoint& point : made_.curve)
    result["curve"].push_back({{"off", point.off}, {"nll", point.nll}});
  return result;
}

void Prune::write_curve(const models::ModelFile& file) const {
  Curve curve{printable(model_title(file)) + " without its heads",
              "heads switched off",
              "nats a token",
              {}};
  for (const CurvePoint& point : made_.curve)
    curve.points.emplace_back(static_cast<double>(point.off), point.nll);
  const std::string svg = curve_svg(curve);
  formats::OutputFile output(output_);
  output.write(svg.data(), svg.size());
  output.commit();
}

void Prune::run(const Console& console) {
  if (file_.empty() && text_.empty()) throw UsageError("--file or --text with a text is needed");
  if (!output_.empty()) formats::check_writable(output_);
  const models::ModelFile file = model_.open();
  const std::vector<std::int32_t> ids = read_ids(file);
  if (!output_.empty()) formats::check_writable(output_);  // nor has it been read meanwhile
  made_ = prune_heads(model_.load(file), ids, points_, console);
  if (!output_.empty()) write_curve(file);
  if (json_)
    console.out << json_text(json(file, ids.size()));
  else
    print(console, file, ids.size());
}

}  // namespace

std::unique_ptr<Command> make_prune() { return std::make_unique<Prune>(); }

}  // namespace polyhead::cli
