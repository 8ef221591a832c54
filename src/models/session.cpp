// A sequence under way, and whole texts through an encoder.
#include "base/refuse.hpp"
#include "models/model_state.hpp"

namespace polyhead::inline v0::models {

void Session::State::truncate(std::int64_t to) {
  for (KvCache& cache : caches) {
    if (cache.length(0) > to) cache.truncate(0, to);
  }
  length = to;
}

Session::Session(std::unique_ptr<State> state) : state_(std::move(state)) {}
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;
Session::~Session() = default;

std::int64_t Session::length() const { return state_->length; }

void Session::truncate(std::int64_t length) {
  if (length < 0 || length > state_->length) {
    base::refuse("Session::truncate", "length (", length, ") is not within 0 .. ", state_->length);
  }
  state_->truncate(length);
}

std::int64_t Session::cache_bytes() const {
  std::int64_t sum = 0;
  for (const KvCache& cache : state_->caches) sum += cache.bytes();
  return sum;
}

Session Model::make_session(std::int64_t capacity) const {
  const ModelConfig& config = state_->config;
  const std::int64_t most = config.context_length;
  if (capacity < 0 || capacity > most) {
    base::refuse("Model::make_session", "capacity (", capacity, ") is not within 0 .. ", most,
                 ", the model's context");
  }
  auto session = std::make_unique<Session::State>();
  session->capacity = capacity > 0 ? capacity : most;
  for (const LayerGeometry& layer : config.layers) {
    session->caches.emplace_back(KvCacheConfig{1, layer.kv_heads, layer.head_dim, layer.value_dim,
                                               state_->activations, 0, true});
  }
  return Session(std::move(session));
}

}  // namespace polyhead::inline v0::models
