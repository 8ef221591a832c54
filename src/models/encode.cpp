// Whole texts through an encoder, as a ragged batch.
#include <algorithm>
#include <cmath>

#include "base/refuse.hpp"
#include "models/model_state.hpp"

namespace polyhead::inline v0::models {
namespace {

constexpr const char* kCall = "Model::embed";
constexpr std::int64_t kBatchTokens = 2048;  // tokens that run together; a longer text runs alone

/// The pooled, L2-normalised rows [first, end) of the residual stream.
void pool(Pooling pooling, const Matrix& x, std::int64_t first, std::int64_t end, float* to) {
  std::vector<double> sums(static_cast<std::size_t>(x.columns));
  const std::int64_t last = pooling == Pooling::first ? first + 1 : end;
  for (std::int64_t row = first; row < last; ++row) {
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += static_cast<double>(x.floats(row)[i]);
  }
  double squares = 0.0;
  for (double& sum : sums) {
    sum /= static_cast<double>(last - first);
    squares += sum * sum;
  }
  const double length = std::max(std::sqrt(squares), 1e-12);  // zeros stay zeros
  for (std::size_t i = 0; i < sums.size(); ++i) to[i] = static_cast<float>(sums[i] / length);
}

}  // namespace

void Model::embed(std::span<const std::vector<std::int32_t>> texts, float* vectors,
                  const RunOptions& options) const {
  const State& model = *state_;
  const ModelConfig& config = model.config;
  if (config.pooling == Pooling::none) {
    base::refuse(kCall, "the model gives no sentence vectors (its file names no pooling)");
  }
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const auto length = static_cast<std::int64_t>(texts[i].size());
    if (length < 1 || length > config.context_length) {
      base::refuse(kCall, "text ", i, " has ", length, " tokens, expected 1 .. ",
                   config.context_length);
    }
    model.check_ids(kCall, texts[i]);
  }
  model.check_heads(kCall, options);
  PassMemory memory;
  for (std::size_t first = 0; first < texts.size();) {
    std::vector<std::int32_t> ids;
    Tokens tokens;
    tokens.offsets.push_back(0);
    std::size_t end = first;
    while (end < texts.size() &&
           (end == first ||
            static_cast<std::int64_t>(ids.size() + texts[end].size()) <= kBatchTokens)) {
      ids.insert(ids.end(), texts[end].begin(), texts[end].end());
      tokens.offsets.push_back(static_cast<std::int64_t>(ids.size()));
      ++end;
    }
    tokens.ids = ids;
    Pass pass(config, model.engine, model.activations, tokens, memory, options);
    model.embed(pass);
    model.run_blocks(pass);
    layers::share_out(
        model.engine.crew, static_cast<std::int64_t>(end - first), [&](std::int64_t text, int) {
          const auto at = static_cast<std::size_t>(text);
          pool(config.pooling, pass.residual(), tokens.offsets[at], tokens.offsets[at + 1],
               vectors + (static_cast<std::int64_t>(first) + text) * config.model_dim);
        });
    first = end;
  }
}

}  // namespace polyhead::inline v0::models
