#include "cli/explain_model.hpp"

#include "models/head_observer.hpp"
#include "models/model_path.hpp"
#include "models/tokenizers/tokenizer.hpp"
#include "polyhead/error.h"

namespace polyhead::cli {
namespace {

/// Tokens [0, count) of one head of a view [1, tokens, heads, dim] into [1, .., 1, dim] from
/// `first` on.
void copy_head(const ConstView& from, std::int64_t head, std::int64_t first, const View& to) {
  const detail::Layout& layout = from.layout;
  auto* out = static_cast<float*>(to.data) + first * layout.extents[3];
  for (std::int64_t token = 0; token < layout.extents[1]; ++token) {
    for (std::int64_t dim = 0; dim < layout.extents[3]; ++dim) {
      const std::int64_t index[] = {0, token, head, dim};
      *out++ = static_cast<float>(element(from, index));
    }
  }
}

/// Copies what one head of one layer was given, chunk by chunk.
class HeadCopier : public models::LayerWatcher {
 public:
  HeadCopier(std::int64_t layer, std::int64_t tokens, const models::LayerGeometry& geometry,
             ModelHead& to)
      : layer_(layer), tokens_(tokens), to_(to) {
    const std::int64_t keys[] = {1, tokens, 1, geometry.head_dim};
    const std::int64_t values[] = {1, tokens, 1, geometry.value_dim};
    q_ = allocate(ElementType::float32, keys);
    k_ = allocate(ElementType::float32, keys);
    v_ = allocate(ElementType::float32, values);
    to_.input.q = q_.array;
    to_.input.k = k_.array;
    to_.input.v = v_.array;
  }

  void attended(const models::AttentionSeen& seen) override {
    if (seen.layer != layer_) return;
    copy_head(seen.call.q, to_.head, seen.first_query, q_.view);
    if (seen.first_query + seen.call.q.layout.extents[1] < tokens_) return;
    copy_head(seen.call.k, to_.kv_head, 0, k_.view);
    copy_head(seen.call.v, to_.kv_head, 0, v_.view);
    to_.call.mask.causal = seen.call.mask.causal;
    to_.call.mask.windowed = seen.call.mask.windowed;
    to_.call.mask.left = seen.call.mask.left;
    to_.call.mask.right = seen.call.mask.right;
    to_.call.mask.align = Align::end;
    to_.call.modifiers.scale = seen.call.modifiers.scale;
    to_.call.modifiers.soft_cap = seen.call.modifiers.soft_cap;
  }

 private:
  std::int64_t layer_, tokens_;
  ModelHead& to_;
  OwnedArray q_, k_, v_;
};

void check_within(const char* name, std::int64_t index, std::int64_t count) {
  if (index >= 0 && index < count) return;
  throw InvalidArgument(std::string("explain: ") + name + " " + std::to_string(index) +
                        " (the model has 0 to " + std::to_string(count - 1) + ")");
}

}  // namespace

ModelHead head_of_model(const std::string& place, std::int64_t layer, std::int64_t head,
                        const std::string& text, const Options& options) {
  const models::ModelFile file(models::model_path(place));
  const models::ModelConfig& config = file.config();
  check_within("--layer", layer, static_cast<std::int64_t>(config.layers.size()));
  const models::LayerGeometry& geometry = config.layers[static_cast<std::size_t>(layer)];
  check_within("--head", head, geometry.q_heads);
  const models::Tokenizer tokenizer(file.tokenizer());
  const std::vector<std::int32_t> ids = tokenizer.encode(text);
  const auto tokens = static_cast<std::int64_t>(ids.size());
  if (tokens == 0 || tokens > config.context_length) {
    throw InvalidArgument("explain: the text has " + std::to_string(tokens) +
                          " tokens (expected 1 to " + std::to_string(config.context_length) + ")");
  }
  ModelHead result;
  result.head = head;
  result.kv_head = head / (geometry.q_heads / geometry.kv_heads);
  for (const std::int32_t id : ids) result.input.q_tokens.emplace_back(tokenizer.bytes(id));
  result.input.k_tokens = result.input.q_tokens;

  HeadCopier copier(layer, tokens, geometry, result);
  models::HeadObserverOptions none;
  none.layers.assign(config.layers.size(), false);
  none.watcher = &copier;
  models::HeadObserver observer(config, ids, {}, none);
  const models::Model model(file, {models::WeightForm::float32, options});
  const models::RunOptions watched{&observer, nullptr};
  if (config.causal) {
    auto session = model.make_session(tokens);
    model.forward(session, ids, models::Wanted::nothing, nullptr, watched);
  } else {
    std::vector<float> vector(static_cast<std::size_t>(config.model_dim));
    model.embed(std::vector<std::vector<std::int32_t>>(1, ids), vector.data(), watched);
  }
  return result;
}

void name_head(Case& shown, const ModelHead& of) {
  for (HeadNumbers& head : shown.heads) {
    head.head = of.head;
    head.kv_head = of.kv_head;
  }
}

}  // namespace polyhead::cli
