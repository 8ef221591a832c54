// A sequence under way: how it begins, the form of its cache and what calibrates that.
#include <string>
#include <utility>

#include "base/codes.hpp"
#include "base/refuse.hpp"
#include "frames/door.hpp"
#include "models/calibration.hpp"
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

void check_count(const char* call, const char* name, std::size_t count, std::size_t layers) {
  if (count != 0 && count != layers)
    base::refuse(call, name, " has ", count, " layers, expected ", layers);
}

/// Refuses a layer's scales of keys that are not as many as the layer has channels.
void check_scales(const char* call, std::size_t layer, std::size_t found, std::int64_t expected) {
  if (std::cmp_equal(found, expected)) return;
  base::refuse(call, "key_scales[", layer, "] has ", found, " scales, expected ", expected);
}

/// Refuses frames that are not for a layer, with its number.
void check_frames(const char* call, std::size_t layer, const LayerFrames& of,
                  const LayerGeometry& sizes) {
  const std::string name = "frames[" + std::to_string(layer) + "]";
  frames::check_frame(call, (name + ".keys").c_str(), of.keys, sizes.kv_heads, sizes.head_dim);
  frames::check_frame(call, (name + ".values").c_str(), of.values, sizes.kv_heads, sizes.value_dim);
}

}  // namespace

void Model::State::check_form(const char* call, const CacheForm& form) const {
  check_count(call, "key_scales", form.key_scales.size(), config.layers.size());
  check_count(call, "frames", form.frames.size(), config.layers.size());
  for (std::size_t i = 0; i < form.key_scales.size(); ++i) {
    const LayerGeometry& layer = config.layers[i];
    check_scales(call, i, form.key_scales[i].size(), layer.kv_heads * layer.head_dim);
  }
  for (std::size_t i = 0; i < form.frames.size(); ++i)
    check_frames(call, i, form.frames[i], config.layers[i]);
  const ElementType type = form.type.value_or(activations);
  if (!form.frames.empty() && !base::is_code(type)) {  // observers read keys as they are
    base::refuse(call, "frames are given for ", element_name(type),
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
  FrameObserver observer(config, state_->engine);
  RunOptions run;
  run.observer = &observer;
  forward(session, ids, Wanted::nothing, nullptr, run);
  CacheForm form{type};
  for (std::size_t layer = 0; layer < config.layers.size(); ++layer) {
    std::vector<double> of_values;
    if (type == ElementType::int4) of_values = value_moments(state_->engine, state_->blocks[layer]);
    form.frames.push_back(
        observer.layer(static_cast<std::int64_t>(layer)).frames(type, length, of_values));
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
  session->frames = form.frames;
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
