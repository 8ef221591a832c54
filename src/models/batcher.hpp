// Continuous batching: requests join and leave a running batch.
#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "models/model.hpp"
#include "models/sampler.hpp"
#include "polyhead/cache_file.h"

namespace polyhead::inline v0::models {

struct BatcherOptions {
  std::int64_t sequences = 8;     ///< that run at once, at most
  std::int64_t pages = 256;       ///< of the pool
  std::int64_t page_tokens = 64;  ///< a power of two from 8 to 256
  /// Of one step: chunks of prompts beside decoding, which takes more where more requests decode.
  std::int64_t step_tokens = 256;
  CacheForm cache{};  ///< what pages hold
};

/// A text to continue.
struct Request {
  std::vector<std::int32_t> prompt;
  std::int64_t max_tokens = 128;
  Sampling sampling{};
  /// Of a tenant: requests of different salts share no pages, however alike they begin.
  std::uint64_t salt = 0;
};

/// Why an answer is no longer than it is. `failed`: its logits were no numbers; step() said so.
enum class Stop : std::uint8_t { running, end, max_tokens, context, failed, cancelled };

struct Answer {
  std::vector<std::int32_t> ids;
  Stop stop = Stop::running;
  /// Of the prompt, tokens whose pages another request computed, or load() brought.
  std::int64_t shared = 0;
};

struct BatcherFigures {
  std::int64_t steps = 0, tokens = 0;  ///< joint runs, and tokens that went through them
  std::int64_t most_pages = 0;         ///< held at once
  /// Times that a request that had begun was put back because the pool was full, to begin again.
  std::int64_t interrupted = 0;
};

/// Runs many requests over one pool of pages. Each step takes one token of every request that is
/// past its prompt, however many they are, and chunks of prompts as long as all are not more than
/// step_tokens. Where prompts of one salt begin alike the pages are shared: a request joins when
/// nobody is about to compute a page that it could share, and when the pool has pages for its first
/// chunk beside what those who run take in the same step. Where the pool is full, the request that
/// joined last gives its pages back and begins again later.
///
/// Every request gets the tokens, and the logits' bits, that it gets alone: neither the batch nor
/// the chunks nor sharing nor an interruption changes them. Used by one caller at a time.
class Batcher {
 public:
  /// Says for each request which tokens end an answer, and hears of each token as it comes. Both
  /// are called within step(); they may submit more, cancel and read answers, but not step.
  using Ends = std::function<bool(std::int32_t token)>;
  using Hear = std::function<void(std::int64_t request, std::int32_t token)>;

  /// `model` outlives the batcher. Throws InvalidArgument for impossible options.
  Batcher(const Model& model, const BatcherOptions& options, Ends ends = {}, Hear hear = {});

  /// Queues a request and gives its number, 0, 1, 2, ... Throws InvalidArgument where its prompt
  /// has no token, more than the model's context or one outside its vocabulary, where max_tokens or
  /// the sampling is out of range, or where it could not run in the whole pool by itself; nothing
  /// is queued then.
  std::int64_t submit(const Request& request);

  /// Ends a request that waits or runs: its answer stays as far as it came, Stop::cancelled, and
  /// its pages are given back, at the end of the step where it is called within one. False, with
  /// nothing changed, where the answer is over. Others get the tokens that they get anyway. Throws
  /// as answer() does.
  bool cancel(std::int64_t request);

  /// One joint run. False when nothing is left to do. What `ends` or `hear` throws comes out, the
  /// first of it, when the step is done: every request has its token, and steps go on from there.
  /// A token that `ends` threw at does not end its answer. InvalidArgument in the same way where
  /// logits are no numbers: of the request that has them the answer is over, Stop::failed.
  bool step();

  /// Writes to a file (cache_file.h) the keys and values of the whole pages that are remembered of
  /// what `tokens` begin with under a salt: of requests that have ended, say. Returns how many
  /// tokens they are; without one there is no file. Throws InvalidArgument.
  std::int64_t save(std::span<const std::int32_t> tokens, const std::string& path,
                    const CacheFingerprint& fingerprint, std::uint64_t salt = 0);

  /// Remembers the pages of such a file, for prompts of this salt that begin with its tokens, until
  /// the pool needs them. Throws InvalidArgument as load_sequences does, where they are more than
  /// the free ones, and where the pool's frames are others.
  void load(const std::string& path, const CacheFingerprint& fingerprint, std::uint64_t salt = 0);

  /// Of what a prompt of this salt begins with, the tokens whose pages are remembered: a request
  /// that joined now would not read them.
  std::int64_t remembered(std::span<const std::int32_t> prompt, std::uint64_t salt = 0);

  /// What there is of an answer; the reference lasts until it is taken. Throws InvalidArgument for
  /// a number that no request has, and for one whose answer was taken.
  const Answer& answer(std::int64_t request) const;

  /// Gives the answer of a request that is over and keeps it no longer: what runs for good has to
  /// take them all. Throws as answer() does, and where the request waits or runs, or ran in the
  /// step that is not done yet.
  Answer take_answer(std::int64_t request);

  BatcherFigures figures() const { return figures_; }
  const PagedCache& cache() const { return pool_.cache(); }

 private:
  struct Running {
    std::int64_t request = 0, sequence = 0;
    std::vector<std::int32_t> tokens;  ///< prompt and answer so far
    std::int64_t max_tokens = 0;
    Sampler sampler;
    std::uint64_t salt = 0;
    std::int64_t held = 0;     ///< of `tokens`, in the cache
    std::int64_t adopted = 0;  ///< of these, what it found there
    std::int64_t reached = 0;  ///< the most it held before it was interrupted
    std::int64_t pending() const { return static_cast<std::int64_t>(tokens.size()) - held; }
  };

  void check(const Request& request) const;
  const Answer& find(const char* call, std::int64_t request) const;
  void admit();
  bool should_wait(const Running& next) const;
  bool join(const Running& next);
  void plan(std::vector<SequencePart>& parts, std::vector<std::size_t>& who) const;
  std::int64_t pages_of(std::int64_t tokens) const;
  bool fits_last() const;
  void interrupt_last();
  void reserve_tokens();
  void take(Running& running, std::span<const float> logits, std::exception_ptr& thrown);
  bool finished(const Running& running) const;
  bool in_use(std::int64_t request) const;
  void drop_finished();

  const Model& model_;
  BatcherOptions options_;
  Ends ends_;
  Hear hear_;
  SequencePool pool_;
  std::deque<Running> waiting_;
  std::vector<Running> running_;  ///< in the order in which they joined
  std::int64_t submitted_ = 0;
  std::unordered_map<std::int64_t, Answer> answers_;  ///< those that were not taken
  BatcherFigures figures_;
  std::vector<float> logits_;
  bool stepping_ = false;
};

}  // namespace polyhead::inline v0::models
