#include "models/batcher.hpp"

#include <algorithm>
#include <utility>

#include "base/ceil_div.hpp"
#include "base/refuse.hpp"
#include "models/cache_notes.hpp"

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

/// A sequence for as long as this lives.
struct LentSequence {
  LentSequence(PagedCache& from, std::uint64_t salt) : cache(from), number(from.create(salt)) {}
  LentSequence(const LentSequence&) = delete;
  LentSequence& operator=(const LentSequence&) = delete;
  ~LentSequence() { cache.release(number); }

  PagedCache& cache;
  const std::int64_t number;
};

}  // namespace

Batcher::Batcher(const Model& model, const BatcherOptions& options, Ends ends, Hear hear)
    : model_(model),
      options_(checked(options)),
      ends_(std::move(ends)),
      hear_(std::move(hear)),
      pool_(model.make_pool(options.pages, options.page_tokens, options.cache)) {}

void Batcher::check(const Request& request) const {
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
  const std::int64_t vocabulary = model_.config().vocab_size;
  for (const std::int32_t id : request.prompt) {
    if (id < 0 || id >= vocabulary) {
      base::refuse(kCall, "prompt has the id ", id, ", expected 0 .. ", vocabulary - 1);
    }
  }
  if (request.max_tokens == 0) return;  // it takes no page
  // The last token of an answer is never run.
  const std::int64_t longest = count + std::min(request.max_tokens - 1, context - count);
  const std::int64_t pages = pages_of(longest);
  if (pages > options_.pages) {
    base::refuse(kCall, "prompt and max_tokens need ", pages,
                 " pages, expected at most the pool's ", options_.pages);
  }
}

std::int64_t Batcher::pages_of(std::int64_t tokens) const {
  return base::ceil_div(tokens, options_.page_tokens);
}

std::int64_t Batcher::submit(const Request& request) {
  check(request);
  const std::int64_t number = submitted_;
  Running next{number,      0, request.prompt, request.max_tokens, Sampler(request.sampling),
               request.salt};
  const bool answered = request.max_tokens == 0;
  if (!answered) waiting_.push_back(std::move(next));
  try {
    answers_[number].stop = answered ? Stop::max_tokens : Stop::running;
  } catch (...) {
    if (!answered) waiting_.pop_back();
    throw;
  }
  ++submitted_;
  return number;
}

void Batcher::admit() {
  for (std::size_t i = 0; i < waiting_.size() && std::ssize(running_) < options_.sequences;) {
    if (should_wait(waiting_[i])) {
      ++i;
      continue;
    }
    if (!join(waiting_[i])) return;
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

/// Whether somebody who runs is about to compute a page that `next` could share, and nobody has
/// computed it yet. Who runs computes all its tokens, so that the wait ends.
bool Batcher::should_wait(const Running& next) const {
  std::int64_t computed = 0, coming = 0;
  for (const Running& running : running_) {
    if (running.salt != next.salt) continue;
    const auto same = std::ranges::mismatch(next.tokens, running.tokens).in1;
    // The last token is run in any case: its logits are wanted.
    const std::int64_t common = std::min(same - next.tokens.begin(), std::ssize(next.tokens) - 1);
    computed = std::max(computed, std::min(common, running.held) / options_.page_tokens);
    coming = std::max(coming, common / options_.page_tokens);
  }
  return coming > computed;
}

/// Whether the pool has the pages that the step takes with the request that joined last: so that
/// nobody joins to be put back at once.
bool Batcher::fits_last() const {
  std::vector<SequencePart> parts;
  std::vector<std::size_t> who;
  plan(parts, who);
  std::int64_t pages = 0;
  const auto add = [&](const Running& running, std::int64_t count) {
    pages += pages_of(running.held + count) - pages_of(running.held);
  };
  for (std::size_t i = 0; i < parts.size(); ++i) add(running_[who[i]], std::ssize(parts[i].ids));
  const Running& last = running_.back();
  const bool has_part = std::ranges::find(who, running_.size() - 1) != who.end();
  if (!has_part) add(last, std::min(options_.step_tokens, last.pending()));
  return pages <= pool_.cache().free_pages();
}

/// Takes a request in, or leaves everything as it is where it has to wait for pages.
bool Batcher::join(const Running& next) {
  struct Undo {
    Batcher& of;
    std::int64_t sequence = -1;
    bool joined = false;
    ~Undo() {
      if (joined) return;
      if (sequence >= 0) of.pool_.cache().release(sequence);
      of.running_.pop_back();
    }
  };
  PagedCache& cache = pool_.cache();
  running_.push_back(next);
  Undo undo{*this};
  Running& last = running_.back();
  last.sequence = undo.sequence = cache.create(next.salt);
  last.held = last.adopted = cache.adopt_prefix(last.sequence, last.tokens);
  if (running_.size() > 1 && !fits_last()) return false;
  undo.joined = true;
  Answer& answer = answers_.at(next.request);
  const std::int64_t prompt = std::ssize(next.tokens) - std::ssize(answer.ids);
  // Up to `reached` the tokens were counted before, or are its own.
  answer.shared += std::max<std::int64_t>(std::min(last.adopted, prompt) - next.reached, 0);
  return true;
}

/// One token of everybody past the prompt first, so that answers go on while prompts are read: of
/// all of them, so that no answer stands still while others go on.
void Batcher::plan(std::vector<SequencePart>& parts, std::vector<std::size_t>& who) const {
  const auto past_prompt = [](const Running& running) { return running.pending() == 1; };
  std::int64_t room = std::max(options_.step_tokens, std::ranges::count_if(running_, past_prompt));
  for (const bool decoding : {true, false}) {
    for (std::size_t i = 0; i < running_.size() && room > 0; ++i) {
      const Running& running = running_[i];
      if (past_prompt(running) != decoding) continue;
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
  waiting_.push_front(std::move(running_.back()));  // or nothing has changed
  running_.pop_back();
  Running& last = waiting_.front();
  pool_.cache().release(last.sequence);
  figures_.interrupted += last.held > last.adopted;  // one that was yet to begin lost nothing
  last.reached = std::max(last.reached, last.held);
  last.held = last.adopted = 0;
}

/// Room for one more token of each, so that memory cannot fail between what the model has run and
/// what is known of it.
void Batcher::reserve_tokens() {
  const auto one_more = [](std::vector<std::int32_t>& list) {
    if (list.size() == list.capacity()) list.reserve(2 * list.size() + 8);
  };
  for (Running& running : running_) {
    one_more(running.tokens);
    one_more(answers_.at(running.request).ids);
  }
}

bool Batcher::finished(const Running& running) const {
  return answers_.at(running.request).stop != Stop::running;
}

void Batcher::take(Running& running, std::span<const float> logits, std::exception_ptr& thrown) {
  const auto asked = [&](const auto& callback) {
    try {
      return callback();
    } catch (...) {
      if (!thrown) thrown = std::current_exception();
    }
    return false;
  };
  Answer& answer = answers_.at(running.request);
  std::int32_t token = 0;
  if (!asked([&] { return token = running.sampler.next(logits, running.tokens), true; })) {
    answer.stop = Stop::failed;
    return;
  }
  const bool ends = ends_ && asked([&] { return ends_(token); });
  if (answer.stop != Stop::running) return;  // the callback cancelled it
  if (ends) {
    answer.stop = Stop::end;
    return;
  }
  answer.ids.push_back(token);
  running.tokens.push_back(token);
  if (hear_) asked([&] { return hear_(running.request, token), true; });
  if (answer.stop != Stop::running) return;
  if (std::ssize(answer.ids) == running.max_tokens) {
    answer.stop = Stop::max_tokens;
  } else if (std::ssize(running.tokens) > model_.config().context_length) {
    answer.stop = Stop::context;
  }
}

void Batcher::drop_finished() {
  std::erase_if(running_, [&](const Running& running) {
    if (!finished(running)) return false;
    pool_.cache().release(running.sequence);
    return true;
  });
}

bool Batcher::cancel(std::int64_t request) {
  if (find("Batcher::cancel", request).stop != Stop::running) return false;
  answers_.at(request).stop = Stop::cancelled;
  std::erase_if(waiting_, [&](const Running& waiting) { return waiting.request == request; });
  if (!stepping_) drop_finished();  // else at the end of the step, which walks through them
  return true;
}

bool Batcher::step() {
  admit();
  if (running_.empty()) return false;
  reserve_tokens();
  const auto vocabulary = static_cast<std::size_t>(model_.config().vocab_size);
  std::vector<SequencePart> parts;
  std::vector<std::size_t> who;
  for (;;) {
    parts.clear();
    who.clear();
    plan(parts, who);
    const auto wanted = std::ranges::count_if(parts, &SequencePart::logits);
    logits_.resize(static_cast<std::size_t>(wanted) * vocabulary);
    if (model_.forward(pool_, parts, logits_.data()) == PagedCache::Status::ok) break;
    interrupt_last();  // one request alone always fits: submit has seen to it
  }
  ++figures_.steps;
  figures_.most_pages = std::max(figures_.most_pages, options_.pages - pool_.cache().free_pages());
  std::exception_ptr thrown;  // of a callback: out when all requests have their tokens
  std::size_t row = 0;
  stepping_ = true;  // what can throw within is asked by take(), which catches it
  for (std::size_t i = 0; i < parts.size(); ++i) {
    Running& running = running_[who[i]];
    const auto count = static_cast<std::int64_t>(parts[i].ids.size());
    running.held += count;
    figures_.tokens += count;
    if (!parts[i].logits) continue;
    const auto logits = std::span(logits_).subspan(row++ * vocabulary, vocabulary);
    if (!finished(running)) take(running, logits, thrown);
  }
  stepping_ = false;
  drop_finished();
  if (thrown) std::rethrow_exception(thrown);
  return !running_.empty() || !waiting_.empty();
}

std::int64_t Batcher::save(std::span<const std::int32_t> tokens, const std::string& path,
                           const CacheFingerprint& fingerprint, std::uint64_t salt) {
  PagedCache& cache = pool_.cache();
  // A sequence adopts all but its last token at most: one more than are wanted.
  std::vector<std::int32_t> and_one(tokens.begin(), tokens.end());
  and_one.push_back(0);
  const LentSequence sequence(cache, salt);
  const std::int64_t held = cache.adopt_prefix(sequence.number, and_one);
  if (held > 0) {
    save_sequences(path, fingerprint, cache, {&sequence.number, 1},
                   notes_of(options_.cache.frames));
  }
  return held;
}

void Batcher::load(const std::string& path, const CacheFingerprint& fingerprint,
                   std::uint64_t salt) {
  PagedCache& cache = pool_.cache();
  const std::vector<std::byte> notes = load_notes(path, fingerprint);
  frames_of_notes(path, notes);  // notes of another kind are refused as such
  if (notes != notes_of(options_.cache.frames))
    base::refuse("Batcher::load", path, " was saved in other frames than the pool's");
  std::vector<std::int64_t> sequences;
  if (load_sequences(path, fingerprint, cache, sequences, salt) == PagedCache::Status::exhausted) {
    base::refuse("Batcher::load", path, " holds more pages than are free, ", cache.free_pages());
  }
  for (const std::int64_t sequence : sequences) cache.release(sequence);
}

std::int64_t Batcher::remembered(std::span<const std::int32_t> prompt, std::uint64_t salt) {
  const LentSequence sequence(pool_.cache(), salt);
  return pool_.cache().adopt_prefix(sequence.number, prompt);
}

const Answer& Batcher::find(const char* call, std::int64_t request) const {
  const auto found = answers_.find(request);
  if (found != answers_.end()) return found->second;
  if (request >= 0 && request < submitted_)
    base::refuse(call, "request (", request, ") has no answer any more: it was taken");
  base::refuse(call, "request (", request, ") is not within 0 .. ", submitted_ - 1);
}

const Answer& Batcher::answer(std::int64_t request) const {
  return find("Batcher::answer", request);
}

bool Batcher::in_use(std::int64_t request) const {
  const auto is_its = [&](const Running& running) { return running.request == request; };
  return std::ranges::any_of(waiting_, is_its) || std::ranges::any_of(running_, is_its);
}

Answer Batcher::take_answer(std::int64_t request) {
  find("Batcher::take_answer", request);
  if (in_use(request)) {
    base::refuse("Batcher::take_answer", "request (", request,
                 ") waits or runs, expected one that is over");
  }
  return std::move(answers_.extract(request).mapped());
}

}  // namespace polyhead::inline v0::models
