// polyhead generate: the words a model continues a text with.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/limits.hpp"
#include "cli/answer_options.hpp"
#include "cli/command.hpp"
#include "cli/generate_many.hpp"
#include "cli/json_text.hpp"
#include "cli/kv_options.hpp"
#include "cli/model_options.hpp"
#include "cli/option_checks.hpp"
#include "cli/stopwatch.hpp"
#include "cli/stream_text.hpp"
#include "cli/table.hpp"
#include "models/chat.hpp"
#include "models/formats/file_error.hpp"
#include "models/tokenizers/tokenizer.hpp"
#include "polyhead/error.h"

namespace polyhead::cli {
namespace {

using models::Model;
using models::ModelFile;
using models::Tokenizer;

constexpr const char* kExample =
    "The text goes to stdout as it comes, only whole characters, or of --prompts an answer when "
    "all\nbefore it are there; figures of speed go to stderr. It ends at the model's end token, "
    "before a\n--stop text, after --max-tokens, or where the model's context is full. The same "
    "seed gives the\nsame text, with any number of threads.\n\n"
    "Examples:\n"
    "  polyhead generate smollm2 --prompt 'The capital of France is' --max-tokens 20\n"
    "  polyhead generate smollm2 --chat --prompt 'What is attention?'\n"
    "  polyhead generate smollm2 --prompts questions.txt --batch 16 --chat\n"
    "  polyhead generate smollm2 --file manual.txt --max-tokens 0 --save-cache manual.kv\n"
    "  polyhead generate smollm2 --file list.txt --stop $'\\n\\n'\n"
    "  polyhead generate smollm2 --prompt - --temperature 0.8 --min-p 0.1 --seed 7 < story.txt";

/// What came of a run.
struct Outcome {
  std::vector<std::int32_t> prompt, ids;
  std::string text;
  const char* stop = "max_tokens";
  std::int64_t loaded = 0, saved = 0;              ///< tokens from and to files of the cache
  double load = 0.0, prefill = 0.0, decode = 0.0;  ///< seconds
};

class Generate : public Command {
 public:
  const char* name() const override { return "generate"; }
  const char* summary() const override { return "Continue a text with a model"; }
  void add_options(CLI::App& app) override;
  void run(const Console& console) override;

 private:
  /// The cache of a prompt and of what may follow it.
  models::CacheForm cache_for(const Model& model, const Tokenizer& tokenizer,
                              std::span<const std::int32_t> prompt) const;
  void speak(const Model& model, const Tokenizer& tokenizer, const Console& console,
             Outcome& outcome) const;
  /// The same by way of a pool of pages, which files of the cache are of.
  void speak_in_pages(const Model& model, const ModelFile& file, const Tokenizer& tokenizer,
                      const Console& console, Outcome& outcome) const;
  AnswerText shown_text(const Console& console) const;
  ManyOptions many_options() const;
  /// How pages hold rows, and the files of the cache.
  void prepare_pages(const Model& model, const ModelFile& file, const Tokenizer& tokenizer,
                     std::span<const std::int32_t> prompt, ManyOptions& options) const;
  void report(const Console& console, const Outcome& outcome) const;

  /// Throws UsageError where options make no sense together, or by themselves.
  void check_options() const;
  std::vector<std::int32_t> prompt_ids(const Tokenizer& tokenizer, const std::string& text) const;
  std::vector<std::int32_t> one_prompt(const ModelFile& file, const Tokenizer& tokenizer) const;
  /// --system '': no system message, the default one of a template neither.
  bool told_nothing() const { return app_->count("--system") > 0 && system_.empty(); }
  void answer_all(const Console& console, Progress& progress) const;

  ModelOptions model_;
  KvOptions kv_;
  AnswerOptions answer_;
  std::string prompt_, file_, prompts_, chat_template_, system_;
  bool chat_ = false;
  ManyOptions many_;
  CacheOptions files_;
  bool json_ = false;
  const CLI::App* app_ = nullptr;  ///< knows which options were given
};

void Generate::add_options(CLI::App& app) {
  app_ = &app;
  const std::span<const char* const> names = models::chat_template_names();
  model_.add_options(app);
  kv_.add_options(app);
  auto* one =
      app.add_option("--prompt", prompt_,
                     "The text to continue; - reads standard input, without a last line end")
          ->type_name("TEXT");
  auto* file = app.add_option("--file", file_,
                              "A file with the text to continue, without a last line end; - reads\n"
                              "standard input");
  file->type_name("FILE")->check(not_empty())->excludes(one);
  auto* many = app.add_option("--prompts", prompts_,
                              "Texts to continue, one a line, in one running batch; - reads\n"
                              "standard input")
                   ->type_name("FILE")
                   ->excludes(one)
                   ->excludes(file);
  app.add_option("--batch", many_.batch, "Prompts that run at once, at most (default 8)")
      ->type_name("N")
      ->transform(count(1))
      ->needs(many);
  app.add_option("--page-tokens", many_.page_tokens,
                 "Tokens of a page of the KV cache: a power of two from 8 to 256 (default 64);\n"
                 "with --prompts or a file of the cache")
      ->type_name("N")
      ->transform(count(1));
  app.add_option("--pool-tokens", many_.pool_tokens,
                 "Tokens that the KV cache of the whole batch holds, in whole pages: rounded up\n"
                 "(default: the longest of --prompts with --max-tokens, --batch times)")
      ->type_name("N")
      ->transform(count(1))
      ->needs(many);
  files_.add_options(app);
  app.add_flag("--chat", chat_, "The prompt is what a person says to a chat model");
  app.add_option("--chat-template", chat_template_,
                 "chatml, gemma, llama2 or llama3 (default: as the model's own says); with --chat")
      ->type_name("NAME")
      ->check(not_empty())
      ->check(CLI::IsMember(std::vector<std::string>(names.begin(), names.end())).description(""));
  app.add_option("--system", system_,
                 "What the model is told before; with --chat. '': nothing, not what its template\n"
                 "would say either")
      ->type_name("TEXT");
  answer_.add_options(app);
  app.add_flag("--json", json_, "Print ids, text and figures as JSON when all is done");
  app.footer(kExample);
}

models::CacheForm Generate::cache_for(const Model& model, const Tokenizer& tokenizer,
                                      std::span<const std::int32_t> prompt) const {
  // For the whole context: how many tokens are wanted does not change which they are.
  return kv_.form(model, tokenizer, prompt, model.config().context_length);
}

void Generate::speak(const Model& model, const Tokenizer& tokenizer, const Console& console,
                     Outcome& outcome) const {
  const AnswerRules& rules = answer_.rules();
  models::Sampler sampler(rules.sampling);
  auto session = model.make_session(0, cache_for(model, tokenizer, outcome.prompt));
  std::vector<float> logits(static_cast<std::size_t>(model.config().vocab_size));
  Stopwatch watch;
  model.forward(session, outcome.prompt, models::Wanted::last, logits.data());
  outcome.prefill = watch.lap();

  AnswerText text = shown_text(console);
  std::vector<std::int32_t> all = outcome.prompt;
  while (std::ssize(outcome.ids) < rules.max_tokens) {
    const std::int32_t id = sampler.next(logits, all);
    if (rules.ends(tokenizer, id)) {
      outcome.stop = "end";
      break;
    }
    outcome.ids.push_back(id);
    all.push_back(id);
    if (!text.write(tokenizer.written(id))) {
      outcome.stop = "stop_text";
      break;
    }
    if (std::ssize(outcome.ids) == rules.max_tokens) break;
    if (session.length() == model.config().context_length) {
      outcome.stop = "context";
      break;
    }
    model.forward(session, {&id, 1}, models::Wanted::last, logits.data());
  }
  text.finish();
  outcome.text = text.text();
  outcome.decode = watch.lap();
  if (!json_) console.out << '\n';
}

/// Of one answer: to where it is printed as it comes, or for JSON.
AnswerText Generate::shown_text(const Console& console) const {
  return answer_.rules().text(json_ ? TextStream() : TextStream(console.out, console.out_terminal));
}

ManyOptions Generate::many_options() const {
  ManyOptions options = many_;
  options.rules = answer_.rules();
  options.json = json_;
  return options;
}

/// Frames that --load-cache was saved with need no text.
void Generate::prepare_pages(const Model& model, const ModelFile& file, const Tokenizer& tokenizer,
                             std::span<const std::int32_t> prompt, ManyOptions& options) const {
  if (files_.given()) {
    options.files = &files_;
    options.origin = {&file, model_.options(), models::cache_fingerprint(file, model_.options())};
  }
  options.cache = files_.loads() && kv_.follows_prompt()
                      ? files_.form(model, *kv_.type(), options.page_tokens, options.origin)
                      : cache_for(model, tokenizer, prompt);
  files_.check();  // now that the model and --kv-text are read, which it may not write over
}

void Generate::speak_in_pages(const Model& model, const ModelFile& file, const Tokenizer& tokenizer,
                              const Console& console, Outcome& outcome) const {
  ManyOptions options = many_options();
  options.batch = 1;
  const bool wanted = options.rules.max_tokens > 0;
  if (!wanted) options.rules.max_tokens = 1;  // a prompt is read to predict one
  prepare_pages(model, file, tokenizer, outcome.prompt, options);
  AnswerText text = shown_text(console);
  Stopwatch watch;
  models::Batcher batcher(
      model, batcher_options(model, {{1, prompt_, outcome.prompt}}, options),
      [&](std::int32_t id) {
        if (outcome.prefill == 0.0) outcome.prefill = watch.lap();
        return options.rules.ends(tokenizer, id);
      },
      [&](std::int64_t request, std::int32_t id) {
        if (wanted && !text.write(tokenizer.written(id))) batcher.cancel(request);
      });
  const std::span<const std::int32_t> prompts[] = {outcome.prompt};
  files_.load(batcher, options.cache, options.origin, prompts, console);
  batcher.submit({outcome.prompt, options.rules.max_tokens, options.rules.sampling});
  while (batcher.step()) {
  }
  const models::Answer& answer = batcher.answer(0);
  text.finish();
  outcome.text = text.text();
  if (wanted) {
    outcome.ids = answer.ids;
    outcome.stop = stop_name(answer.stop, text);
  }
  outcome.loaded = answer.shared;
  outcome.decode = watch.lap();
  if (!json_) console.out << '\n';
  std::vector<std::int32_t> all = outcome.prompt;
  all.insert(all.end(), outcome.ids.begin(), outcome.ids.end());
  outcome.saved = files_.save(batcher, options.origin, all);
}

void Generate::report(const Console& console, const Outcome& outcome) const {
  const auto rate = [](std::size_t tokens, double seconds) {
    return seconds > 0.0 ? static_cast<double>(tokens) / seconds : 0.0;
  };
  const std::size_t run = outcome.prompt.size() - static_cast<std::size_t>(outcome.loaded);
  const double read = rate(run, outcome.prefill);
  // The first token comes of the prompt's run.
  const std::size_t steps = outcome.ids.empty() ? 0 : outcome.ids.size() - 1;
  const double written = rate(steps, outcome.decode);
  if (files_.saves() && outcome.saved == 0) {
    console.err << "polyhead: nothing saved: prompt and answer, less its last token, fill no page"
                << " of " << many_.page_tokens << " tokens (--page-tokens)\n";
  }
  if (json_) {
    nlohmann::ordered_json summary;
    summary["prompt_ids"] = outcome.prompt;
    summary["ids"] = outcome.ids;
    summary["text"] = outcome.text;
    summary["stop"] = outcome.stop;
    summary["seconds"] = {
        {"load", outcome.load}, {"prefill", outcome.prefill}, {"decode", outcome.decode}};
    summary["tokens_per_second"] = {{"prefill", read}, {"decode", written}};
    if (files_.given())
      summary["cache"] = {{"loaded_tokens", outcome.loaded}, {"saved_tokens", outcome.saved}};
    console.out << json_text(summary);
    return;
  }
  console.err << "polyhead: loaded in " << duration(outcome.load) << "; "
              << grouped(static_cast<long long>(run)) << " tokens read in "
              << duration(outcome.prefill) << " (" << fixed(read, 0) << " a second), "
              << grouped(static_cast<long long>(outcome.ids.size())) << " written in "
              << duration(outcome.decode) << " (" << fixed(written, 1) << " a second)";
  if (outcome.loaded > 0)
    console.err << "; " << grouped(outcome.loaded) << " tokens of the prompt were in the file";
  if (outcome.saved > 0) console.err << "; " << grouped(outcome.saved) << " tokens saved";
  console.err << '\n';
}

void check_decoder(const ModelFile& file) {
  if (!file.config().causal) {
    throw InvalidArgument(
        "generate: the model is an encoder and continues no text (polyhead embed runs it)");
  }
}

/// A pool's pages have one shape for all layers: said before weights are packed for nothing.
void check_layers(const ModelFile& file, const std::string& option) {
  const std::string why = models::unlike_layer(file.config());
  if (!why.empty()) throw formats::FileError(file.path(), option + " needs layers alike: " + why);
}

std::vector<std::int32_t> Generate::prompt_ids(const Tokenizer& tokenizer,
                                               const std::string& text) const {
  if (!chat_) return tokenizer.encode(text);
  std::vector<models::ChatMessage> messages;
  if (!system_.empty()) messages.push_back({"system", system_});
  messages.push_back({"user", text});
  models::ChatFormat format = models::choose_chat(tokenizer.spec(), chat_template_);
  if (told_nothing()) format.default_system.clear();
  return tokenizer.encode(models::render_chat(format, messages), {false, true});
}

void Generate::answer_all(const Console& console, Progress& progress) const {
  ManyOptions options = many_options();
  std::vector<Prompt> prompts = prompt_lines(prompts_);
  const ModelFile file = model_.open();
  check_decoder(file);
  check_layers(file, "--prompts");
  const Tokenizer tokenizer(file.tokenizer());
  for (Prompt& prompt : prompts) prompt.ids = prompt_ids(tokenizer, prompt.text);
  check_prompts(prompts_, prompts, options, file.config().context_length);
  const Model model = model_.load(file);
  progress.clear();
  prepare_pages(model, file, tokenizer, {}, options);  // the same for all: no prompt decides
  generate_many(console, model, tokenizer, prompts_, prompts, options);
}

/// What comes from a file or a pipe ends with a line's end, which no prompt means.
std::string prompt_in(const std::string& place) {
  std::string text = read_text(place);
  const std::string_view end = text.ends_with("\r\n") ? "\r\n" : "\n";
  if (text.ends_with(end)) text.erase(text.size() - end.size());
  return text;
}

/// What --prompt or --file says, for a model that can read so much.
std::vector<std::int32_t> Generate::one_prompt(const ModelFile& file,
                                               const Tokenizer& tokenizer) const {
  const bool from_file = !file_.empty() || prompt_ == "-";
  auto ids = prompt_ids(tokenizer, from_file ? prompt_in(file_.empty() ? "-" : file_) : prompt_);
  const std::string option = file_.empty() ? "generate: --prompt" : "generate: --file";
  if (ids.empty()) throw InvalidArgument(option + ": the text has no token");
  const std::int64_t context = file.config().context_length;
  if (std::ssize(ids) > context) {
    throw InvalidArgument(option + " has " + std::to_string(ids.size()) +
                          " tokens, the model takes " + std::to_string(context));
  }
  return ids;
}

void Generate::check_options() const {
  if (prompt_.empty() && file_.empty() && prompts_.empty())
    throw UsageError("expected --prompt, --file or --prompts, with a text");
  if (!chat_ && (app_->count("--chat-template") > 0 || app_->count("--system") > 0)) {
    throw UsageError("--chat-template and --system need --chat");
  }
  answer_.check();
  if (files_.saves() && !prompts_.empty())
    throw UsageError("--save-cache needs --prompt or --file");
  if (!base::is_page_size(many_.page_tokens)) {
    throw UsageError("--page-tokens (" + std::to_string(many_.page_tokens) +
                     ") is not a power of two from " + std::to_string(base::kLeastPage) + " to " +
                     std::to_string(base::kMostPage));
  }
  if (app_->count("--page-tokens") > 0 && prompts_.empty() && !files_.given())
    throw UsageError("--page-tokens needs --prompts, --save-cache or --load-cache");
  kv_.check({{"--prompt", prompt_}, {"--file", file_}, {"--prompts", prompts_}});
  if (!prompts_.empty() && kv_.follows_prompt() && !files_.loads()) {
    throw UsageError(
        "--prompts with --kv-keys channel needs --kv-text or --load-cache: calibrated on one of "
        "the prompts, the others would not get the bits they have alone");
  }
  files_.check();
}

void Generate::run(const Console& console) {
  check_options();
  Progress progress(console);
  progress.show("loading ...");
  if (!prompts_.empty()) return answer_all(console, progress);
  Stopwatch watch;
  const ModelFile file = model_.open();
  check_decoder(file);
  if (files_.given()) check_layers(file, files_.saves() ? "--save-cache" : "--load-cache");
  const Tokenizer tokenizer(file.tokenizer());
  Outcome outcome;
  outcome.prompt = one_prompt(file, tokenizer);
  const Model model = model_.load(file);
  outcome.load = watch.lap();
  progress.clear();
  if (files_.given())
    speak_in_pages(model, file, tokenizer, console, outcome);
  else
    speak(model, tokenizer, console, outcome);
  report(console, outcome);
}

}  // namespace

std::unique_ptr<Command> make_generate() { return std::make_unique<Generate>(); }

}  // namespace polyhead::cli
