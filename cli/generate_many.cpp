#include "cli/generate_many.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

#include "cli/command.hpp"
#include "cli/json_text.hpp"
#include "cli/measure.hpp"
#include "cli/model_options.hpp"
#include "cli/stopwatch.hpp"
#include "cli/stream_text.hpp"
#include "cli/table.hpp"
#include "models/formats/file_error.hpp"
#include "models/formats/lines.hpp"
#include "polyhead/error.h"

namespace polyhead::cli {
namespace {

using models::Batcher;

/// When each request spoke first, in seconds from the start.
class FirstWords {
 public:
  explicit FirstWords(std::size_t requests) : seconds_(requests) {}
  double now() const { return watch_.seconds(); }
  void hear(std::int64_t request) {
    std::optional<double>& first = seconds_[static_cast<std::size_t>(request)];
    if (!first) first = now();
  }
  std::optional<double> of(std::size_t request) const { return seconds_[request]; }

  /// The median and the largest of those who spoke, if anybody did.
  std::optional<std::pair<double, double>> median_and_most() const {
    std::vector<double> spoke;
    for (const auto& first : seconds_) {
      if (first) spoke.push_back(*first);
    }
    if (spoke.empty()) return {};
    return std::pair(median(spoke), *std::max_element(spoke.begin(), spoke.end()));
  }

 private:
  Stopwatch watch_;
  std::vector<std::optional<double>> seconds_;
};

/// A prompt of the file as one line of whole characters, whatever its bytes are.
std::string line_of(const std::string& prompt) {
  return formats::escape_controls(whole_characters(prompt));
}

/// Rounded up without a sum: --pool-tokens takes all that 63 bits hold.
std::int64_t pages_of(std::int64_t tokens, const ManyOptions& options) {
  return tokens / options.page_tokens + (tokens % options.page_tokens != 0);
}

/// Pages that a prompt and its answer fill. The last token of an answer is never run, and where
/// none is wanted the prompt is not read.
std::int64_t pages_for(const Prompt& prompt, const ManyOptions& options, std::int64_t context) {
  if (options.rules.max_tokens == 0) return 0;
  const std::int64_t read = std::ssize(prompt.ids);
  return pages_of(read + std::min(options.rules.max_tokens - 1, context - read), options);
}

std::int64_t pool_pages(const std::vector<Prompt>& prompts, const ManyOptions& options,
                        std::int64_t context) {
  std::int64_t longest = 0, all = 0;
  for (const Prompt& prompt : prompts) {
    const std::int64_t pages = pages_for(prompt, options, context);
    longest = std::max(longest, pages);
    all += pages;
  }
  std::int64_t pages = longest * std::min(options.batch, std::ssize(prompts));
  if (options.pool_tokens > 0) pages = std::min(pages_of(options.pool_tokens, options), all);
  return std::max<std::int64_t>(pages, 1);  // a pool has one
}

/// What came of the whole run.
struct Outcome {
  std::size_t written = 0, read = 0;
  std::int64_t shared = 0;
  double seconds = 0.0;
};

void report(const Console& console, const Batcher& batcher, const Outcome& outcome,
            const FirstWords& first) {
  const models::BatcherFigures figures = batcher.figures();
  const PagedCacheConfig& pool = batcher.cache().config();
  const double share = static_cast<double>(figures.most_pages) / static_cast<double>(pool.pages);
  console.err << "polyhead: " << grouped(static_cast<long long>(outcome.read)) << " tokens read, "
              << grouped(static_cast<long long>(outcome.written)) << " written in "
              << duration(outcome.seconds) << " ("
              << fixed(static_cast<double>(outcome.written) / outcome.seconds, 1) << " a second)";
  if (const auto spoke = first.median_and_most()) {
    console.err << "; first token after " << duration(spoke->first) << " (median), "
                << duration(spoke->second) << " (last)";
  }
  console.err << "\npolyhead: " << grouped(figures.steps) << " steps; at most "
              << figures.most_pages << " of " << pool.pages << " pages of " << pool.page_tokens
              << " tokens (" << fixed(100.0 * share, 0) << " % of "
              << fixed(static_cast<double>(batcher.cache().bytes()) / (1 << 20), 1) << " MiB); "
              << grouped(outcome.shared) << " prompt tokens shared; " << figures.interrupted
              << " interrupted\n";
}

/// Requests whose logits were no numbers. The batch goes on without them.
class Failures {
 public:
  /// One step of the batch; false when nothing is left to do.
  bool step(Batcher& batcher, std::size_t requests) {
    try {
      return batcher.step();
    } catch (const InvalidArgument& error) {
      const std::size_t before = failed_.size();
      for (std::size_t i = 0; i < requests; ++i) {
        if (batcher.answer(static_cast<std::int64_t>(i)).stop == models::Stop::failed)
          failed_.insert(i);
      }
      if (failed_.size() == before) throw;
      if (why_.empty()) why_ = error.what();
      return true;
    }
  }

  /// Throws FileError with the lines of those that failed, where there are any.
  void check(const std::string& place, const std::vector<Prompt>& prompts) const {
    if (failed_.empty()) return;
    std::string lines;
    for (const std::size_t i : failed_)
      lines += (lines.empty() ? "" : ", ") + std::to_string(prompts[i].line);
    throw formats::FileError(place,
                             (failed_.size() == 1 ? "line " : "lines ") + lines + ": " + why_);
  }

 private:
  std::set<std::size_t> failed_;
  std::string why_;  ///< of the first
};

nlohmann::ordered_json json_of(const std::optional<double>& number) {
  return number ? nlohmann::ordered_json(*number) : nullptr;
}

nlohmann::ordered_json json_of(const Batcher& batcher, const Outcome& outcome,
                               const FirstWords& first) {
  const models::BatcherFigures figures = batcher.figures();
  nlohmann::ordered_json all;
  all["seconds"] = outcome.seconds;
  all["tokens_read"] = outcome.read;
  all["tokens_written"] = outcome.written;
  all["tokens_per_second"] = static_cast<double>(outcome.written) / outcome.seconds;
  std::optional<double> median, most;
  if (const auto spoke = first.median_and_most()) std::tie(median, most) = *spoke;
  all["first_token_seconds"] = {{"median", json_of(median)}, {"most", json_of(most)}};
  all["steps"] = figures.steps;
  all["cache"] = {{"pages", batcher.cache().config().pages},
                  {"page_tokens", batcher.cache().config().page_tokens},
                  {"bytes", batcher.cache().bytes()},
                  {"most_pages", figures.most_pages},
                  {"shared_tokens", outcome.shared},
                  {"interrupted", figures.interrupted}};
  return all;
}

}  // namespace

const char* stop_name(models::Stop stop, const AnswerText& text) {
  if (text.stopped()) return "stop_text";
  switch (stop) {
    case models::Stop::end:
      return "end";
    case models::Stop::context:
      return "context";
    case models::Stop::failed:
      return "failed";
    default:
      return "max_tokens";
  }
}

models::BatcherOptions batcher_options(const models::Model& model,
                                       const std::vector<Prompt>& prompts,
                                       const ManyOptions& options) {
  models::BatcherOptions to;
  to.sequences = options.batch;
  to.page_tokens = options.page_tokens;
  to.cache = options.cache;
  to.pages = pool_pages(prompts, options, model.config().context_length);
  if (options.files != nullptr) to.pages += options.files->pages(model, to);
  return to;
}

std::vector<Prompt> prompt_lines(const std::string& place) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";  // some editors begin a file with it
  const std::string whole = read_text(place);
  std::string_view text = whole;
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  std::vector<Prompt> prompts;
  std::size_t number = 0;
  for (std::string& line : formats::lines_of(text)) {
    ++number;
    if (!line.empty()) prompts.push_back({number, std::move(line), {}});
  }
  if (prompts.empty()) throw formats::FileError(place, "has no prompt, expected one a line");
  return prompts;
}

void check_prompts(const std::string& place, const std::vector<Prompt>& prompts,
                   const ManyOptions& options, std::int64_t context) {
  const std::int64_t pool = pages_of(options.pool_tokens, options);
  for (const Prompt& prompt : prompts) {
    const std::int64_t tokens = std::ssize(prompt.ids);
    const std::string line = "line " + std::to_string(prompt.line);
    if (tokens == 0) throw formats::FileError(place, line + " has no token");
    const std::string has = line + " has " + std::to_string(tokens) + " tokens";
    if (tokens > context) {
      throw formats::FileError(place, has + ", the model takes " + std::to_string(context));
    }
    const std::int64_t pages = pages_for(prompt, options, context);
    if (options.pool_tokens == 0 || pages <= pool) continue;
    throw formats::FileError(place, has + " and with --max-tokens needs " + std::to_string(pages) +
                                        " pages of " + std::to_string(options.page_tokens) +
                                        ", --pool-tokens holds " + std::to_string(pool));
  }
}

namespace {

/// The answers of a batch as they come, printed in the order of the file.
class Answers {
 public:
  Answers(const Console& console, const std::vector<Prompt>& prompts, const ManyOptions& options)
      : console_(console), prompts_(prompts), json_(options.json), first_(prompts.size()) {
    for (std::size_t i = 0; i < prompts.size(); ++i)
      texts_.push_back(options.rules.text(TextStream()));
  }

  /// False where the answer is over: a stop text is complete.
  bool hear(std::int64_t request, std::string_view bytes) {
    first_.hear(request);
    ++written_;
    return texts_[static_cast<std::size_t>(request)].write(bytes);
  }

  /// Prints those that are over, or keeps them for JSON.
  void print_ready(const Batcher& batcher, Progress& progress) {
    for (; printed_ < prompts_.size(); ++printed_) {
      const models::Answer& answer = batcher.answer(static_cast<std::int64_t>(printed_));
      if (answer.stop == models::Stop::running) return;
      shared_ += answer.shared;
      texts_[printed_].finish();
      progress.clear();
      if (json_)
        keep(answer);
      else
        print();
    }
  }

  std::size_t printed() const { return printed_; }
  std::size_t written() const { return written_; }  ///< tokens
  std::int64_t shared() const { return shared_; }   ///< tokens of the prompts
  const FirstWords& first() const { return first_; }
  nlohmann::ordered_json take_json() { return std::move(list_); }

 private:
  void keep(const models::Answer& answer) {
    const AnswerText& text = texts_[printed_];
    list_.push_back({{"prompt", prompts_[printed_].text},
                     {"ids", answer.ids},
                     {"text", text.text()},
                     {"stop", stop_name(answer.stop, text)},
                     {"first_token_seconds", json_of(first_.of(printed_))}});
  }

  void print() const {
    console_.out << console_.styled(Style::heading, "[" + std::to_string(printed_ + 1) + "] ")
                 << console_.styled(Style::faint, line_of(prompts_[printed_].text)) << '\n';
    TextStream shown(console_.out, console_.out_terminal);
    shown.write(texts_[printed_].text());
    shown.finish();
    console_.out << "\n\n";
    flush(console_.out);
  }

  const Console& console_;
  const std::vector<Prompt>& prompts_;
  bool json_;
  FirstWords first_;
  std::vector<AnswerText> texts_;
  std::size_t printed_ = 0, written_ = 0;
  std::int64_t shared_ = 0;
  nlohmann::ordered_json list_ = nlohmann::ordered_json::array();
};

}  // namespace

void generate_many(const Console& console, const models::Model& model,
                   const models::Tokenizer& tokenizer, const std::string& place,
                   const std::vector<Prompt>& prompts, const ManyOptions& options) {
  Progress progress(console);
  Answers answers(console, prompts, options);
  Outcome outcome;
  Batcher batcher(
      model, batcher_options(model, prompts, options),
      [&](std::int32_t id) { return options.rules.ends(tokenizer, id); },
      [&](std::int64_t request, std::int32_t id) {
        if (!answers.hear(request, tokenizer.written(id))) batcher.cancel(request);
      });
  if (options.files != nullptr) {
    std::vector<std::span<const std::int32_t>> ids;
    ids.reserve(prompts.size());
    for (const Prompt& prompt : prompts) ids.emplace_back(prompt.ids);
    options.files->load(batcher, options.cache, options.origin, ids, console);
  }
  for (const Prompt& prompt : prompts) {
    batcher.submit({prompt.ids, options.rules.max_tokens, options.rules.sampling});
    if (options.rules.max_tokens > 0) outcome.read += prompt.ids.size();
  }
  Failures failures;
  bool more = true;
  while (more) {
    more = failures.step(batcher, prompts.size());
    answers.print_ready(batcher, progress);
    if (more) {
      progress.show(grouped(static_cast<long long>(answers.written())) + " tokens, " +
                    std::to_string(answers.printed()) + " of " + std::to_string(prompts.size()) +
                    " answered");
    }
  }
  outcome.written = answers.written();
  outcome.shared = answers.shared();
  outcome.seconds = answers.first().now();
  progress.clear();
  if (options.json) {
    nlohmann::ordered_json all = json_of(batcher, outcome, answers.first());
    all["answers"] = answers.take_json();
    console.out << json_text(all);
  } else {
    report(console, batcher, outcome, answers.first());
  }
  failures.check(place, prompts);
}

}  // namespace polyhead::cli
