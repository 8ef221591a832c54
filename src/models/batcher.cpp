#include "models/batcher.hpp"

#include <algorithm>
#include <utility>

#include "base/refuse.hpp"

namespace polyhead::inline v0::models {
namespace {

const BatcherOptions& checked(const BatcherOptions& options) {
  const std::pair<const char*, std::int64_t> sizes[] = {{"sequences", options.sequences},
                                                        {"pages", options.pages},
                                                        {"step_tokens", options.step_tokens}};
  for (const auto& [name, size] : sizes) {
    if (size < 1) base::refuse("Batcher", name, " (", size, ") is not positive");
  }
  return options;
}

}  // namespace

Batcher::Batcher(const Model& model, const BatcherOptions& options, Ends ends, Hear hear)
    : model_(model),
      options_(checked(options)),
      ends_(std::move(ends)),
      hear_(std::move(hear)),
      pool_(model.make_pool(options.pages, options.page_tokens, options.cache)) {}

std::int64_t Batcher::submit(const Request& request) {
  constexpr const char* kCall = "Batcher::submit";
  const auto count = static_cast<std::int64_t>(request.prompt.size());
  if (count == 0) base::refuse(kCall, "prompt has no token");
  if (request.max_tokens < 0) {
    base::refuse(kCall, "max_tokens (", request.max_tokens, ") is negative");
  }
  const std::int64_t context = model_.config().context_length;
  if (count > context) {
    base::refuse(kCall, "prompt has ", count, " tokens, expected at most the model's context, ",
                 context);
  }
  // The last token of an answer is never run.
  const std::int64_t longest =
      std::min(context, count + std::max<std::int64_t>(request.max_tokens - 1, 0));
  const std::int64_t pages = (longest + options_.page_tokens - 1) / options_.page_tokens;
  if (pages > options_.pages) {
    base::refuse(kCall, "prompt and max_tokens need ", pages,
                 " pages, expected at most the pool's ", options_.pages);
  }
  const auto number = static_cast<std::int64_t>(answers_.size());
  answers_.emplace_back();
  if (request.max_tokens == 0) {
    answers_.back().stop = Stop::max_tokens;
    return number;
  }
  waiting_.push_back({number, 0, request.prompt, 0, request.max_tokens, Sampler(request.sampling)});
  return number;
}

void Batcher::admit() {
  PagedCache& cache = pool_.cache();
  while (!waiting_.empty() && std::ssize(running_) < options_.sequences) {
    // A full pool takes nobody in beside those who run.
    if (!running_.empty() && cache.free_pages() == 0) return;
    Running next = std::move(waiting_.front());
    waiting_.pop_front();
    next.sequence = cache.create();
    next.held = cache.adopt_prefix(next.sequence, next.tokens);
    answers_[static_cast<std::size_t>(next.request)].shared += next.held;
    running_.push_back(std::move(next));
  }
}

/// One token of everybody past the prompt first, so that answers go on while prompts are read.
void Batcher::plan(std::vector<SequencePart>& parts, std::vector<std::size_t>& who) const {
  std::int64_t room = options_.step_tokens;
  for (const bool decoding : {true, false}) {
    for (std::size_t i = 0; i < running_.size() && room > 0; ++i) {
      const Running& running = running_[i];
      if ((running.pending() == 1) != decoding) continue;
      const std::int64_t count = std::min(room, running.pending());
      const auto ids =
          std::span(running.tokens)
              .subspan(static_cast<std::size_t>(running.held), static_cast<std::size_t>(count));
      parts.push_back({running.sequence, ids, count == running.pending()});
      who.push_back(i);
      room -= count;
    }
  }
}

void Batcher::interrupt_last() {
  Running last = std::move(running_.back());
  running_.pop_back();
  pool_.cache().release(last.sequence);
  last.held = 0;
  waiting_.push_front(std::move(last));
  ++figures_.interrupted;
}

bool Batcher::finished(const Running& running) const {
  return answers_[static_cast<std::size_t>(running.request)].stop != Stop::running;
}

void Batcher::take(Running& running, std::span<const float> logits) {
  Answer& answer = answers_[static_cast<std::size_t>(running.request)];
  const std::int32_t token = running.sampler.next(logits);
  if (ends_ && ends_(token)) {
    answer.stop = Stop::end;
    return;
  }
  answer.ids.push_back(token);
  running.tokens.push_back(token);
  if (hear_) hear_(running.request, token);
  if (std::ssize(answer.ids) == running.max_tokens) {
    answer.stop = Stop::max_tokens;
  } else if (std::ssize(running.tokens) > model_.config().context_length) {
    answer.stop = Stop::context;
  }
}

bool Batcher::step() {
  admit();
  if (running_.empty()) return false;
  const auto vocabulary = static_cast<std::size_t>(model_.config().vocab_size);
  std::vector<SequencePart> parts;
  std::vector<std::size_t> who;
  for (;;) {
    parts.clear();
    who.clear();
    plan(parts, who);
    logits_.resize(parts.size() * vocabulary);
    if (model_.forward(pool_, parts, logits_.data()) == PagedCache::Status::ok) break;
    interrupt_last();  // one request alone always fits: submit has seen to it
  }
  ++figures_.steps;
  figures_.most_pages = std::max(figures_.most_pages, options_.pages - pool_.cache().free_pages());
  std::size_t row = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    Running& running = running_[who[i]];
    const auto count = static_cast<std::int64_t>(parts[i].ids.size());
    running.held += count;
    figures_.tokens += count;
    if (parts[i].logits) take(running, std::span(logits_).subspan(row++ * vocabulary, vocabulary));
  }
  std::erase_if(running_, [&](const Running& running) {
    if (!finished(running)) return false;
    pool_.cache().release(running.sequence);
    return true;
  });
  return !running_.empty() || !waiting_.empty();
}

const Answer& Batcher::answer(std::int64_t request) const {
  if (request < 0 || request >= std::ssize(answers_)) {
    base::refuse("Batcher::answer", "request (", request, ") is not within 0 .. ",
                 std::ssize(answers_) - 1);
  }
  return answers_[static_cast<std::size_t>(request)];
}

}  // namespace polyhead::inline v0::models
