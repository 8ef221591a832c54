// polyhead look: runs a text through a model and says what each of its heads did.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <optional>
#include <utility>

#include "cli/browser.hpp"
#include "cli/command.hpp"
#include "cli/json_text.hpp"
#include "cli/list_text.hpp"
#include "cli/look_print.hpp"
#include "cli/look_run.hpp"
#include "cli/model_options.hpp"
#include "cli/option_checks.hpp"
#include "cli/page_report.hpp"
#include "cli/probe.hpp"
#include "cli/table.hpp"
#include "models/formats/output_file.hpp"
#include "polyhead/error.h"

namespace polyhead::cli {
namespace {

constexpr const char* kExample =
    "Roles are rules on this text (docs/heads.md); a weight says how much of a value is mixed in, "
    "not why the\nmodel answered. Heads are named LAYER.HEAD.\n\n"
    "Examples:\n"
    "  polyhead look smollm2 --text 'When Mary and John went to the store, John gave a drink to'\n"
    "  polyhead look smollm2 --file story.txt -o heads.html --open\n"
    "  polyhead look smollm2 --file story.txt --layers 10-19\n"
    "  polyhead look smollm2 --text 'The cat sat' --json --rows 0-2\n"
    "  polyhead look smollm2 --text 'The cat sat' --probe";

class Look : public Command {
 public:
  const char* name() const override { return "look"; }
  const char* summary() const override { return "Run a text and show what each head did"; }
  void add_options(CLI::App& app) override;
  void run(const Console& console) override;

 private:
  void check_options() const;
  void take_text(LookData& look) const;
  void read_lists();
  void choose_heads(LookData& look) const;

  ModelOptions model_;
  std::string text_, file_, place_, layers_, heads_, rows_text_, output_;
  std::vector<IndexRange> layer_ranges_, row_ranges_;         ///< --layers, --rows
  std::vector<std::pair<std::int64_t, std::int64_t>> pairs_;  ///< --heads
  std::int64_t most_tokens_ = 0;
  bool json_ = false, probe_ = false, open_ = false;
  CLI::Option* text_option_ = nullptr;
};

void Look::add_options(CLI::App& app) {
  model_.add_options(app);
  text_option_ = app.add_option("--text", text_, "The text")->type_name("TEXT");
  CLI::Option* const file = app.add_option("--file", file_, "A file with the text")
                                ->type_name("FILE")
                                ->check(not_empty());
  file->excludes(text_option_);
  app.add_option("input", place_, "- reads the text from standard input")->type_name("-");
  app.add_option(kOutputOption, output_,
                 "Write a page that shows every head: one HTML file, offline")
      ->type_name("FILE.html")
      ->check(output_name());
  app.add_flag("--open", open_, "Show the page in the browser");
  app.add_option("--tokens", most_tokens_, "Only the first N tokens")
      ->type_name("N")
      ->transform(count(1));
  app.add_option("--layers", layers_, "Only these layers, e.g. 0,10-19; a line for each head")
      ->type_name("LIST")
      ->check(not_empty());
  app.add_option("--heads", heads_, "Only these heads, e.g. 17.4,16.0; a line for each")
      ->type_name("LIST")
      ->check(not_empty());
  app.add_flag("--probe", probe_,
               "Also all heads' scores on repeated random tokens by which the literature\n"
               "knows induction heads");
  app.add_flag("--json", json_, "Print JSON, every number in full");
  app.add_option("--rows", rows_text_, "With --json: the weights of these queries, e.g. 1,14-28")
      ->type_name("LIST")
      ->check(not_empty());
  app.footer(kExample);
}

void Look::take_text(LookData& look) const {
  std::string text = text_;
  if (!file_.empty() || !place_.empty()) text = read_text(place_.empty() ? file_ : place_);
  const std::int64_t context = look.config->context_length;
  if (most_tokens_ > context) {
    throw InvalidArgument("look: --tokens (" + std::to_string(most_tokens_) +
                          ") is more than the model's context, " + std::to_string(context));
  }
  look.ids = look.tokenizer->encode(text);
  if (most_tokens_ > 0 && look.ids.size() > static_cast<std::size_t>(most_tokens_))
    look.ids.resize(static_cast<std::size_t>(most_tokens_));
  const auto tokens = static_cast<std::int64_t>(look.ids.size());
  if (tokens == 0) throw InvalidArgument("look: the text has no tokens");
  if (tokens > context) {
    throw InvalidArgument("look: the text has " + std::to_string(tokens) +
                          " tokens, the model's context " + std::to_string(context) +
                          " (--tokens takes the first ones)");
  }
  for (const IndexRange& rows : row_ranges_) {
    if (rows.last < tokens) continue;
    throw InvalidArgument("look: --rows " + std::to_string(rows.last) + " is not one of " +
                          std::to_string(tokens) + " tokens");
  }
  look.delimiters = delimiters_of(*look.tokenizer, look.ids);
}

/// What "LAYER.HEAD" names. Throws UsageError.
std::pair<std::int64_t, std::int64_t> head_of(const std::string& entry) {
  const std::string what = "--heads: '" + entry + "'";
  const std::size_t dot = entry.find('.');
  if (dot == std::string::npos) throw UsageError(what + " is not LAYER.HEAD");
  return {whole(entry.substr(0, dot), what), whole(entry.substr(dot + 1), what)};
}

/// What options say of layers, heads and rows, whatever the model has.
void Look::read_lists() {
  layer_ranges_ = ranges_of("--layers", layers_);
  row_ranges_ = ranges_of("--rows", rows_text_);
  pairs_.clear();
  if (heads_.empty()) return;
  for (const std::string& entry : full_pieces_of("--heads", heads_)) {
    const auto pair = head_of(entry);
    if (std::ranges::find(pairs_, pair) != pairs_.end()) refuse_twice("--heads", entry);
    pairs_.push_back(pair);
  }
}

void check_below(const char* option, std::int64_t index, std::int64_t limit) {
  if (index < limit) return;
  throw InvalidArgument(std::string("look: ") + option + ": " + std::to_string(index) +
                        " is not within 0 .. " + std::to_string(limit - 1));
}

void Look::choose_heads(LookData& look) const {
  const auto layers = static_cast<std::int64_t>(look.config->layers.size());
  const bool all = layers_.empty() && heads_.empty();
  for (const models::LayerGeometry& layer : look.config->layers)
    look.chosen.emplace_back(static_cast<std::size_t>(layer.q_heads), all);
  for (const auto& [first, last] : layer_ranges_) {
    check_below("--layers", last, layers);
    for (std::int64_t layer = first; layer <= last; ++layer) {
      std::vector<bool>& heads = look.chosen[static_cast<std::size_t>(layer)];
      heads.assign(heads.size(), true);
    }
  }
  for (const auto& [layer, head] : pairs_) {
    check_below("--heads", layer, layers);
    std::vector<bool>& heads = look.chosen[static_cast<std::size_t>(layer)];
    check_below("--heads", head, std::ssize(heads));
    heads[static_cast<std::size_t>(head)] = true;
  }
}

void Look::check_options() const {
  if (!rows_text_.empty() && !json_) throw UsageError("--rows goes with --json");
  if (open_ && output_.empty()) throw UsageError("--open needs -o");
  // CLI11 takes an unknown option's value for this: were it to refuse it, that option went untold.
  const bool other = !file_.empty() || text_option_->count() > 0;
  if (!place_.empty() && (other || place_ != "-"))
    throw UsageError("'" + place_ + "' was not expected" +
                     (other ? "" : "; --text, --file or - says what to read"));
  if (place_.empty() && !other) throw UsageError("--text, --file or - is needed");
}

void Look::run(const Console& console) {
  check_options();
  read_lists();
  if (!output_.empty()) formats::check_writable(output_);
  const models::ModelFile file = model_.open();
  const models::Tokenizer tokenizer(file.tokenizer());
  LookData look;
  look.file = &file;
  look.tokenizer = &tokenizer;
  look.config = &file.config();
  look.weights = model_.weights();
  take_text(look);
  if (!output_.empty()) formats::check_writable(output_);  // nor has it been read meanwhile
  choose_heads(look);
  ProbeOptions probing;
  probing.run = model_.run_options();
  if (probe_) check_probe(*look.config, tokenizer, probing);
  const models::Model model = model_.load(file);
  LookWanted wanted;
  for (const IndexRange& rows : row_ranges_) {
    for (std::int64_t row = rows.first; row <= rows.last; ++row) wanted.rows.push_back(row);
  }
  wanted.run = model_.run_options();
  std::optional<PageReport> page;
  if (!output_.empty()) wanted.report = &page.emplace(output_);
  const LookRun result = run_look(model, look, wanted, console);
  std::vector<ProbeScore> scores;
  if (probe_) scores = probe(model, tokenizer, probing, console);
  if (page) page->write(look);
  if (json_) {
    nlohmann::ordered_json json = look_json(look, result.rows);
    if (probe_) json["probe"] = probe_json(scores, probing);
    console.out << json_text(json);
  } else {
    print_look(console, look, !layers_.empty() || !heads_.empty());
    if (probe_) print_probe(console, scores, probing);
    if (page) console.out << "\nThe page: " << printable(output_) << '\n';
  }
  if (open_) open_in_browser(output_);
}

}  // namespace

std::unique_ptr<Command> make_look() { return std::make_unique<Look>(); }

}  // namespace polyhead::cli
