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

void Model::State::check_form(const char* call, const CacheForm& form) const {
  if (form.key_scales.empty()) return;
  if (form.key_scales.size() != config.layers.size()) {
    base::refuse(call, "key_scales has ", form.key_scales.size(), " layers, expected ",
                 config.layers.size());
  }
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    const LayerGeometry& layer = config.layers[i];
    const auto expected = static_cast<std::size_t>(layer.kv_heads * layer.head_dim);
    if (form.key_scales[i].size() != expected) {
      base::refuse(call, "key_scales[", i, "] has ", form.key_scales[i].size(),
                   " scales, expected ", expected);
    }
  }
}

CacheForm Model::calibrated(ElementType type, std::span<const std::int32_t> ids) const {
  constexpr const char* kCall = "Model::calibrated";
  if (ids.empty()) base::refuse(kCall, "ids is empty");
  CacheForm form{type, {}};
  Session session = make_session();
  forward(session, ids, Wanted::nothing, nullptr);
  // Later keys may be a little larger, and clamping costs more than wider steps of int8 do. int4
  // has nothing to spare.
  const float room = type == ElementType::int8 ? 1.25f : 1.0f;
  for (const KvCache& cache : session.state_->caches) {
    form.key_scales.push_back(key_scales_by_channel(cache.keys(), type));
    for (float& scale : form.key_scales.back()) scale *= room;
  }
  return form;
}

Session Model::make_session(std::int64_t capacity, const CacheForm& form) const {
  const ModelConfig& config = state_->config;
  const std::int64_t most = config.context_length;
  if (capacity < 0 || capacity > most) {
    base::refuse("Model::make_session", "capacity (", capacity, ") is not within 0 .. ", most,
                 ", the model's context");
  }
  state_->check_form("Model::make_session", form);
  auto session = std::make_unique<Session::State>();
  session->capacity = capacity > 0 ? capacity : most;
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    const LayerGeometry& layer = config.layers[i];
    KvCacheConfig cache{1, layer.kv_heads, layer.head_dim, layer.value_dim};
    cache.type = form.type.value_or(state_->activations);
    cache.growing = true;
    if (!form.key_scales.empty())
      cache.key_scales = ConstView(form.key_scales[i].data(), {layer.kv_heads, layer.head_dim});
    session->caches.emplace_back(cache);
  }
  return Session(std::move(session));
}

}  // namespace polyhead::inline v0::models
