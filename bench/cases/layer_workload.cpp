// A layer's steps made ready to run.
#include "cases/numbers.hpp"
#include "polyhead/layer.h"

namespace polyhead::bench {
namespace {

class Layer : public Workload {
 public:
  Layer(const Case& c, Isa isa, Executor& executor)
      : dim_(c.q_heads * c.head_dim),
        weights_(ElementType::float32, 4 * dim_ * dim_, 1),
        x_(c.type, c.q_len * dim_, 2),
        y_(c.type, c.q_len * dim_, 3),
        layer_(config_of(c), weights_of(c), options_of(isa, executor)) {
    const double rows = static_cast<double>(c.q_len), dim = static_cast<double>(dim_);
    work_ = 2.0 * rows * dim * dim;
    if (c.work == Work::layer) work_ = 4.0 * work_ + attention_work(c);
    steps_ = c.work == Work::layer;
    x_view_ = {x_.data(), c.type, {c.q_len, dim_}};
    y_view_ = {y_.data(), c.type, {c.q_len, dim_}};
    call_.workspace = &workspace_;
  }

  void run() override {
    if (steps_)
      layer_.forward(x_view_, y_view_, call_);
    else
      layer_.output(x_view_, y_view_);
  }

 private:
  LayerConfig config_of(const Case& c) const {
    LayerConfig config;
    config.model_dim = dim_;
    config.q_heads = c.q_heads;
    config.use_projections = c.work == Work::layer;
    config.weight_type = c.type;
    return config;
  }

  LayerWeights weights_of(const Case& c) {
    LayerWeights weights;
    auto* at = static_cast<float*>(weights_.data());
    weights.w_o = {at, {dim_, dim_}};
    if (c.work == Work::layer) weights.w_qkv = {at + dim_ * dim_, {3 * dim_, dim_}};
    return weights;
  }

  std::int64_t dim_;
  Numbers weights_, x_, y_;
  MultiHeadAttention layer_;
  ConstView x_view_;
  View y_view_;
  LayerWorkspace workspace_;
  LayerCall call_;
  bool steps_ = true;
};

}  // namespace

std::unique_ptr<Workload> make_layer_workload(const Case& of, Isa isa, Executor& executor) {
  return std::make_unique<Layer>(of, isa, executor);
}

}  // namespace polyhead::bench
