// A transformer that runs real weights through Polyhead's attention.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "models/model_file.hpp"
#include "polyhead/attention.h"
#include "polyhead/code_frame.h"
#include "polyhead/paged_cache.h"

namespace polyhead::inline v0::models {

/// How weights are held. Decoding with `float32` may keep quantised weights as they are in the file
/// where that is faster: the logits are the same bits.
enum class WeightForm : std::uint8_t { float32, bfloat16 };

struct ModelOptions {
  WeightForm weights = WeightForm::float32;
  Options run;  ///< instruction set and threads of everything
};

/// What products read, and caches hold where nothing else is said: float32 or bfloat16.
inline ElementType activation_type(const ModelOptions& options) {
  return options.weights == WeightForm::bfloat16 ? ElementType::bfloat16 : ElementType::float32;
}

/// What one layer's attention was given and gave, for the rows of one chunk. Views live until the
/// observer returns.
struct AttentionSeen {
  std::int64_t layer = 0;
  std::int64_t first_query = 0;  ///< position of the first row
  AttentionArguments call;       ///< q, k, v, mask, modifiers, out and lse: inspect() takes it
};

/// Watches a run from inside, on the calling thread, once for each layer and chunk. Sessions whose
/// cache holds codes refuse one.
class Observer {
 public:
  virtual ~Observer() = default;

  /// Before attention: may ask for row statistics in the same pass, in views that live until
  /// `attended`. lse is asked for already.
  virtual void attending(std::int64_t layer, std::int64_t first_query,
                         AttentionArguments& arguments) {
    (void)layer, (void)first_query, (void)arguments;
  }

  /// After attention, before heads are switched off.
  virtual void attended(const AttentionSeen& seen) = 0;
};

/// Heads whose output is replaced by zeros before the output projection (pruning).
struct HeadMask {
  std::vector<std::vector<bool>> off;  ///< [layer][query head]; empty: none
};

struct RunOptions {
  Observer* observer = nullptr;
  const HeadMask* heads = nullptr;
};

/// What each layer of a run with all heads on was given: the residual stream of every token.
struct LayerInputs {
  std::vector<std::vector<float>> of_layer;  ///< [layer][tokens * model_dim]; none: not yet known
};

/// How a session's or a pool's cache holds keys and values. Attention reads what the cache holds,
/// also in the chunk that wrote it.
struct CacheForm {
  std::optional<ElementType> type{};  ///< none: what attention was given, unchanged
  /// Scales of int8 or int4 keys by channel, [layer][kv_heads * head_dim], as key_scales_by_channel
  /// finds them. Empty: a scale a token and block of 32 dims.
  std::vector<std::vector<float>> key_scales{};
  /// One a layer, for a cache of codes: Model::calibrated gives them, for its type. Empty: keys and
  /// values as they are.
  std::vector<LayerFrames> frames{};
};

enum class Wanted : std::uint8_t { nothing, last, every };  ///< logits of which tokens

class Model;

/// One sequence under way: its KV cache and its scratch. Used by one call at a time.
class Session {
 public:
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;
  ~Session();
  std::int64_t length() const;  ///< tokens seen
  void truncate(std::int64_t length);
  std::int64_t cache_bytes() const;

 private:
  friend class Model;
  struct State;
  explicit Session(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// Many sequences under way: one pool of pages for all of them, and the scratch of a step. Used by
/// one call at a time.
class SequencePool {
 public:
  SequencePool(SequencePool&&) noexcept;
  SequencePool& operator=(SequencePool&&) noexcept;
  ~SequencePool();

  /// Creates, forks, truncates and releases sequences, and lets them begin with pages of equal
  /// prefixes.
  PagedCache& cache();
  const PagedCache& cache() const;

 private:
  friend class Model;
  struct State;
  explicit SequencePool(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// What one sequence of a pool adds to a step: its next tokens, of a prompt or a single one.
struct SequencePart {
  std::int64_t sequence = 0;
  std::span<const std::int32_t> ids;
  bool logits = true;  ///< of the last of them
};

/// Weights packed once; immutable, shared by any number of sessions.
class Model {
 public:
  explicit Model(const ModelFile& file, const ModelOptions& options = {});
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();

  const ModelConfig& config() const;
  std::size_t weight_bytes() const;

  /// `capacity` tokens; 0: the model's context. The cache grows up to it. Throws InvalidArgument.
  Session make_session(std::int64_t capacity = 0, const CacheForm& form = {}) const;

  /// int8 or int4 with keys by channel: frames, and a scale a token and block of 32 dims in them.
  /// int4's values have frames too. Calibrated on `ids` (a prompt, or a part of it), which it runs
  /// once, for positions 0 .. length - 1 (0: the model's context). Throws InvalidArgument.
  CacheForm calibrated(ElementType type, std::span<const std::int32_t> ids,
                       std::int64_t length = 0) const;

  /// Runs `ids` after what the session holds, in chunks of at most `chunk` tokens (0: chosen).
  /// Logits float32 [1 or ids.size()][vocab_size], as `wanted` says. Same bits for any chunking and
  /// any number of threads. Throws InvalidArgument; the session is as before then.
  void forward(Session& session, std::span<const std::int32_t> ids, Wanted wanted, float* logits,
               const RunOptions& options = {}, std::int64_t chunk = 0) const;

  /// A pool of `pages` pages of `page_tokens` tokens each. Throws InvalidArgument where layers
  /// differ in their heads' sizes, which pages cannot.
  SequencePool make_pool(std::int64_t pages, std::int64_t page_tokens = 64,
                         const CacheForm& form = {}) const;

  /// One step of a batch: the parts of different sequences run as one ragged batch, prompts beside
  /// single tokens. Logits float32 [parts that ask for them][vocab_size], in their order. A token
  /// gets the bits it has in a session of its own with the same CacheForm. Where the pool is
  /// exhausted nothing changes. Throws InvalidArgument; the pool is as before then.
  PagedCache::Status forward(SequencePool& pool, std::span<const SequencePart> parts,
                             float* logits) const;

  /// Runs `ids` as forward() does and gives -ln p(targets[i] | everything up to ids[i]) in nats for
  /// each, without keeping logits: nats[targets.size()]. There may be one target fewer than ids.
  /// The sum of exponentials is in double, over the vocabulary in order.
  void losses(Session& session, std::span<const std::int32_t> ids,
              std::span<const std::int32_t> targets, double* nats, const RunOptions& options = {},
              std::int64_t chunk = 0) const;

  /// Mean of the losses of ids[1..], each given all ids before it. NaN for fewer than two.
  ///
  /// Runs of one text with different heads off may share `inputs`. Empty, it is filled by a run
  /// with all heads on: layers * (ids.size() - 1) * model_dim floats. Filled, layers before the
  /// first with a head off are taken from it and not run (nor observed). Same bits either way.
  /// Throws InvalidArgument where heads are off and inputs is empty, or of another text's size.
  double negative_log_likelihood(std::span<const std::int32_t> ids, const RunOptions& options = {},
                                 LayerInputs* inputs = nullptr) const;

  /// Encoders: one pooled vector of model_dim a text, L2-normalised; texts run as a ragged batch.
  void embed(std::span<const std::vector<std::int32_t>> texts, float* vectors,
             const RunOptions& options = {}) const;

 private:
  struct State;
  std::unique_ptr<const State> state_;
};

}  // namespace polyhead::inline v0::models
