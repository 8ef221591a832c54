// A sequence under way, and whole texts through an encoder.
#include <algorithm>

#include "base/codes.hpp"
#include "base/refuse.hpp"
#include "models/key_frame.hpp"
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

namespace {

/// Refuses parts of a form that are given, but not one a layer of the size that the layer has.
template <class Parts, class Size, class Expected>
void check_parts(const char* call, const char* name, const Parts& parts, std::size_t layers,
                 const Size& size, const Expected& expected) {
  if (parts.empty()) return;
  if (parts.size() != layers)
    base::refuse(call, name, " has ", parts.size(), " layers, expected ", layers);
  for (std::size_t i = 0; i < layers; ++i) {
    if (size(parts[i]) == expected(i)) continue;
    base::refuse(call, name, "[", i, "] has ", size(parts[i]), " scales, expected ", expected(i));
  }
}

}  // namespace

void Model::State::check_form(const char* call, const CacheForm& form) const {
  const std::size_t layers = config.layers.size();
  const auto expected = [&](std::size_t i) {
    return static_cast<std::size_t>(config.layers[i].kv_heads * config.layers[i].head_dim);
  };
  const auto size_of_scales = [](const std::vector<float>& scales) { return scales.size(); };
  const auto size_of_frame = [](const KeyFrame& frame) {
    return std::min(frame.centre.size(), frame.stretch.size());
  };
  check_parts(call, "key_scales", form.key_scales, layers, size_of_scales, expected);
  check_parts(call, "key_frames", form.key_frames, layers, size_of_frame, expected);
  const ElementType type = form.type.value_or(activations);
  if (!form.key_frames.empty() && !base::is_code(type)) {  // observers read keys as they are
    base::refuse(call, "key_frames are given for ", element_name(type),
                 ", expected int8, int4 or an 8-bit float");
  }
}

CacheForm Model::calibrated(ElementType type, std::span<const std::int32_t> ids,
                            std::int64_t length) const {
  constexpr const char* kCall = "Model::calibrated";
  const ModelConfig& config = state_->config;
  if (type != ElementType::int8 && type != ElementType::int4)
    base::refuse(kCall, "type is ", element_name(type), ", expected int8 or int4");
  if (ids.empty()) base::refuse(kCall, "ids is empty");
  if (length < 0 || length > config.context_length) {
    base::refuse(kCall, "length (", length, ") is not within 0 .. ", config.context_length,
                 ", the model's context");
  }
  if (length == 0) length = config.context_length;
  Session session = make_session();
  KeyFrameObserver observer(config);
  RunOptions run;
  run.observer = &observer;
  forward(session, ids, Wanted::nothing, nullptr, run);
  return {type, {}, observer.frames(length)};
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
  session->key_frames = form.key_frames;
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
