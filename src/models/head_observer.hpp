// Head statistics of every layer of a model's run.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "models/config.hpp"
#include "models/model.hpp"
#include "polyhead/heads.h"

namespace polyhead::inline v0::models {

/// Somebody who wants more of a run than HeadStatistics keep, layer by layer.
class LayerWatcher {
 public:
  virtual ~LayerWatcher() = default;

  /// Who takes the rows of a layer's heads, or null. Asked once a layer and chunk.
  virtual HeadRowVisitor* rows_of(std::int64_t layer) {
    (void)layer;
    return nullptr;
  }

  /// After the layer's statistics took the chunk: q, k, v, out and lse of its rows. One sequence;
  /// axes [1, tokens, heads, dim].
  virtual void attended(const AttentionSeen& seen) { (void)seen; }
};

/// What to gather; sizes and tokens come from the model and the text.
struct HeadObserverOptions {
  bool rows = true, received = true;
  std::vector<HeadMapSpec> maps;
  std::vector<bool> layers;  ///< whose heads; empty: all
  Options run;               ///< instruction set and threads, as the model's own
  LayerWatcher* watcher = nullptr;
};

/// Keeps a HeadStatistics a layer, for one text that starts with an empty session (or is the only
/// text of embed()).
class HeadObserver : public Observer {
 public:
  /// `delimiters` has a flag a token. Throws InvalidArgument.
  HeadObserver(const ModelConfig& config, std::span<const std::int32_t> ids,
               std::span<const std::uint8_t> delimiters, const HeadObserverOptions& options = {});

  void attended(const AttentionSeen& seen) override;

  /// None where options.layers left it out.
  const HeadStatistics* layer(std::int64_t index) const;

 private:
  HeadObserverOptions options_;
  std::vector<std::optional<HeadStatistics>> layers_;
};

}  // namespace polyhead::inline v0::models
