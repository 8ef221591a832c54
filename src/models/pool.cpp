// Many sequences in one step, over one pool of pages.
#include <algorithm>
#include <utility>

#include "base/refuse.hpp"
#include "models/model_state.hpp"

namespace polyhead::inline v0::models {
namespace {

constexpr const char* kCall = "Model::forward";

/// Forgets what a step added to its sequences, unless it is told that the step succeeded.
class Extended {
 public:
  explicit Extended(const PooledSequences& pooled) : pooled_(pooled) {}
  Extended(const Extended&) = delete;
  Extended& operator=(const Extended&) = delete;
  ~Extended() {
    if (kept_) return;
    for (std::size_t i = 0; i < pooled_.sequences.size(); ++i)
      pooled_.cache->truncate(pooled_.sequences[i], pooled_.starts[i]);
  }
  void keep() { kept_ = true; }

 private:
  const PooledSequences& pooled_;
  bool kept_ = false;
};

void check_parts(const PagedCache& cache, std::span<const SequencePart> parts,
                 std::int64_t context) {
  std::vector<std::int64_t> numbers;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto count = static_cast<std::int64_t>(parts[i].ids.size());
    if (count == 0) base::refuse(kCall, "parts[", i, "] has no ids");
    const std::int64_t length = cache.length(parts[i].sequence);
    if (count > context - length) {
      base::refuse(kCall, "parts[", i, "]: ", count, " tokens after ", length,
                   " exceed the model's context, ", context);
    }
    numbers.push_back(parts[i].sequence);
  }
  std::sort(numbers.begin(), numbers.end());
  const auto twice = std::adjacent_find(numbers.begin(), numbers.end());
  if (twice != numbers.end()) base::refuse(kCall, "sequence ", *twice, " has two parts");
}

}  // namespace

SequencePool::SequencePool(std::unique_ptr<State> state) : state_(std::move(state)) {}
SequencePool::SequencePool(SequencePool&&) noexcept = default;
SequencePool& SequencePool::operator=(SequencePool&&) noexcept = default;
SequencePool::~SequencePool() = default;
PagedCache& SequencePool::cache() { return state_->cache; }
const PagedCache& SequencePool::cache() const { return state_->cache; }

SequencePool Model::make_pool(std::int64_t pages, std::int64_t page_tokens,
                              const CacheForm& form) const {
  constexpr const char* kMake = "Model::make_pool";
  const ModelConfig& config = state_->config;
  if (!config.causal) base::refuse(kMake, "the model is an encoder; embed() runs it");
  if (const std::string why = unlike_layer(config); !why.empty()) base::refuse(kMake, why);
  const LayerGeometry& first = config.layers.front();
  PagedCacheConfig cache;
  cache.pages = pages;
  cache.page_tokens = page_tokens;
  cache.layers = static_cast<std::int64_t>(config.layers.size());
  cache.kv_heads = first.kv_heads;
  cache.head_dim = first.head_dim;
  cache.value_dim = first.value_dim;
  cache.type = form.type.value_or(state_->activations);
  state_->check_form(kMake, form);
  std::vector<float> key_scales;  // of all layers, as a paged cache takes them
  for (const std::vector<float>& layer : form.key_scales)
    key_scales.insert(key_scales.end(), layer.begin(), layer.end());
  if (!key_scales.empty())
    cache.key_scales = ConstView(key_scales.data(), {cache.layers, cache.kv_heads, cache.head_dim});
  auto pool = std::make_unique<SequencePool::State>(cache);
  pool->frames = form.frames;
  return SequencePool(std::move(pool));
}

PagedCache::Status Model::forward(SequencePool& pool, std::span<const SequencePart> parts,
                                  float* logits) const {
  const State& model = *state_;
  SequencePool::State& held = *pool.state_;
  check_parts(held.cache, parts, model.config.context_length);
  std::vector<std::int32_t> ids;
  std::vector<std::int64_t> last;  // rows whose logits are wanted
  std::vector<PagedCache::Extension> room;
  Tokens tokens;
  tokens.offsets.push_back(0);
  tokens.pooled.cache = &held.cache;
  tokens.pooled.batch = &held.batch;
  for (const SequencePart& part : parts) {
    model.check_ids(kCall, part.ids);
    ids.insert(ids.end(), part.ids.begin(), part.ids.end());
    tokens.offsets.push_back(static_cast<std::int64_t>(ids.size()));
    tokens.pooled.sequences.push_back(part.sequence);
    tokens.pooled.starts.push_back(held.cache.length(part.sequence));
    room.push_back({part.sequence, std::ssize(part.ids), part.ids});
    if (part.logits) last.push_back(tokens.offsets.back() - 1);
  }
  if (parts.empty()) return PagedCache::Status::ok;
  tokens.ids = ids;
  tokens.frames = held.frames;

  if (held.cache.extend(room) != PagedCache::Status::ok) return PagedCache::Status::exhausted;
  Extended extended(tokens.pooled);
  held.cache.batch(tokens.pooled.sequences, held.batch);
  const RunOptions options;
  Pass pass(model.config, model.engine, model.activations, tokens, held.memory, options);
  model.embed(pass);
  model.run_blocks(pass);
  if (!last.empty()) {
    pass.keep_rows(last);
    const std::int64_t vocabulary = model.config.vocab_size;
    const auto rows = static_cast<std::int64_t>(last.size());
    model.logits(pass, 0, rows,
                 Matrix{reinterpret_cast<std::byte*>(logits), ElementType::float32, rows,
                        vocabulary, vocabulary * 4});
  }
  extended.keep();
  return PagedCache::Status::ok;
}

}  // namespace polyhead::inline v0::models
