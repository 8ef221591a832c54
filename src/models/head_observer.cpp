#include "models/head_observer.hpp"

#include "base/batch_of_one.hpp"
#include "base/refuse.hpp"

namespace polyhead::inline v0::models {
namespace {

constexpr const char* kCall = "HeadObserver";

/// A call as HeadStatistics takes it: a ragged one of one sequence becomes a batch of one.
AttentionArguments one_sequence(AttentionArguments call) {
  if (!call.q_offsets.given()) return call;
  if (call.q_offsets.layout.extents[0] != 2) {
    base::refuse(kCall, "the run has ", call.q_offsets.layout.extents[0] - 1,
                 " texts, expected one");
  }
  call.q = base::batch_of_one(call.q);
  call.k = base::batch_of_one(call.k);
  call.v = base::batch_of_one(call.v);
  call.out = base::batch_of_one(call.out);
  call.lse = base::batch_of_one(call.lse);
  call.q_offsets = call.kv_offsets = {};
  call.statistics = {};
  return call;
}

}  // namespace

HeadObserver::HeadObserver(const ModelConfig& config, std::span<const std::int32_t> ids,
                           std::span<const std::uint8_t> delimiters,
                           const HeadObserverOptions& options)
    : options_(options) {
  if (!options.layers.empty() && options.layers.size() != config.layers.size()) {
    base::refuse(kCall, "layers has ", options.layers.size(), " flags, the model has ",
                 config.layers.size(), " layers");
  }
  layers_.resize(config.layers.size());
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (!options.layers.empty() && !options.layers[i]) continue;
    HeadStudy study;
    study.q_heads = config.layers[i].q_heads;
    study.q_len = study.kv_len = static_cast<std::int64_t>(ids.size());
    study.tokens = ids;
    study.delimiters = delimiters;
    study.rows = options.rows;
    study.received = options.received;
    study.maps = options.maps;
    layers_[i].emplace(study);
  }
}

void HeadObserver::attended(const AttentionSeen& seen) {
  AttentionSeen one = seen;
  one.call = one_sequence(seen.call);
  auto& statistics = layers_[static_cast<std::size_t>(seen.layer)];
  LayerWatcher* const watcher = options_.watcher;
  if (statistics) {
    if (seen.first_query != statistics->rows_seen()) {
      base::refuse(kCall, "a chunk begins at token ", seen.first_query, " after ",
                   statistics->rows_seen(), " rows");
    }
    statistics->add(one.call, options_.run, watcher ? watcher->rows_of(seen.layer) : nullptr);
  }
  if (watcher) watcher->attended(one);
}

const HeadStatistics* HeadObserver::layer(std::int64_t index) const {
  const auto i = static_cast<std::size_t>(index);
  if (index < 0 || i >= layers_.size()) {
    base::refuse(kCall, "layer (", index, ") is not within 0 .. ", std::ssize(layers_) - 1);
  }
  const auto& statistics = layers_[i];
  return statistics ? &*statistics : nullptr;
}

}  // namespace polyhead::inline v0::models
