// Cases of attention and of second passes made ready to run.
#include "cases/numbers.hpp"
#include "polyhead/attention.h"
#include "polyhead/inspect.h"

namespace polyhead::bench {
namespace {

constexpr std::int64_t kBins = 64;  // of a pooled map, each way

/// [batch, tokens, heads, dim] over memory of either order.
View heads_view(void* data, ElementType type, Order order, std::int64_t batch, std::int64_t tokens,
                std::int64_t heads, std::int64_t dim) {
  if (order == Order::tokens_first) return {data, type, {batch, tokens, heads, dim}};
  return from_batch_heads_tokens_dim(View(data, type, {batch, heads, tokens, dim}));
}

std::int64_t value_dim(const Case& c) { return c.latent_dim > 0 ? c.latent_dim : c.head_dim; }

Limits limits_of(const Case& c) {
  Limits limits;
  limits.batch = c.batch;
  limits.q_len = c.q_len;
  limits.kv_len = c.kv_len;
  limits.q_heads = c.q_heads;
  limits.kv_heads = c.kv_heads;
  limits.head_dim = c.head_dim;
  limits.value_dim = value_dim(c);
  limits.q_type = limits.kv_type = c.type;
  return limits;
}

class Attend : public Workload {
 public:
  Attend(const Case& c, Isa isa, Executor& executor)
      : q_(c.type, c.batch * c.q_len * c.q_heads * c.head_dim, 1),
        k_(c.type, c.batch * c.kv_len * c.kv_heads * c.head_dim, 2),
        v_(c.type, c.latent_dim > 0 ? 0 : c.batch * c.kv_len * c.kv_heads * c.head_dim, 3),
        out_(c.type, c.batch * c.q_len * c.q_heads * value_dim(c), 4),
        plan_(limits_of(c), options_of(isa, executor)),
        workspace_(plan_.make_workspace()) {
    work_ = attention_work(c);
    if (c.against == Against::dram) {
      work_ = 2.0 * static_cast<double>(c.batch * c.kv_len * c.kv_heads * c.head_dim *
                                        element_bytes(c.type));
    }
    call_.q = heads_view(q_.data(), c.type, c.order, c.batch, c.q_len, c.q_heads, c.head_dim);
    call_.k = heads_view(k_.data(), c.type, c.order, c.batch, c.kv_len, c.kv_heads, c.head_dim);
    call_.v = heads_view(v_.data(), c.type, c.order, c.batch, c.kv_len, c.kv_heads, c.head_dim);
    if (c.latent_dim > 0) {
      call_.v = call_.k;
      call_.v.layout.extents[3] = c.latent_dim;
    }
    call_.out = heads_view(out_.data(), c.type, c.order, c.batch, c.q_len, c.q_heads, value_dim(c));
    add_pattern(c);
    add_extra(c);
  }

  void run() override { plan_.run(call_, workspace_); }

 protected:
  AttentionArguments call_;

 private:
  void add_pattern(const Case& c) {
    if (c.pattern == Pattern::causal) call_.mask = causal();
    if (c.pattern == Pattern::window) call_.mask = window(511, 0);
    if (c.pattern == Pattern::mask_bytes) {
      mask_.resize(static_cast<std::size_t>(c.q_len * c.kv_len));
      std::uint32_t state = 1;
      for (std::uint8_t& byte : mask_) byte = (state = state * 1664525u + 1013904223u) >> 31;
      call_.mask = boolean({mask_.data(), {std::int64_t{1}, std::int64_t{1}, c.q_len, c.kv_len}});
    }
    if (c.pattern == Pattern::mask_bits) {
      mask_.resize(static_cast<std::size_t>(c.q_len * c.kv_len / 8));
      std::uint32_t state = 1;
      for (std::uint8_t& byte : mask_)
        byte = static_cast<std::uint8_t>((state = state * 1664525u + 1013904223u) >> 24);
      call_.mask = boolean(ConstView(static_cast<const void*>(mask_.data()), ElementType::bit,
                                     {std::int64_t{1}, std::int64_t{1}, c.q_len, c.kv_len}));
    }
  }

  void add_extra(const Case& c) {
    Modifiers& m = call_.modifiers;
    if (c.extra == Extra::soft_cap) m.soft_cap = 30.0f;
    if (c.extra == Extra::alibi) m.alibi.use_default_slopes = true;
    if (c.extra == Extra::bias) {
      extra_ = Numbers(ElementType::float32, c.q_len * c.kv_len, 5);
      m.bias = {extra_.data(),
                ElementType::float32,
                {std::int64_t{1}, std::int64_t{1}, c.q_len, c.kv_len}};
    }
    if (c.extra == Extra::sink) {
      extra_ = Numbers(ElementType::float32, c.q_heads, 5);
      m.sink = {extra_.data(), ElementType::float32, {c.q_heads}};
    }
    if (c.extra == Extra::statistics) {
      const std::int64_t rows = c.batch * c.q_len * c.q_heads;
      extra_ = Numbers(ElementType::float32, 4 * rows, 5);
      auto* at = static_cast<float*>(extra_.data());
      call_.statistics.max_key = {
          static_cast<void*>(at), ElementType::int64, {c.batch, c.q_len, c.q_heads}};
      call_.statistics.entropy = {at + 2 * rows, {c.batch, c.q_len, c.q_heads}};
      call_.statistics.max_weight = {at + 3 * rows, {c.batch, c.q_len, c.q_heads}};
    }
  }

  Numbers q_, k_, v_, out_, extra_;
  std::vector<std::uint8_t> mask_;
  Plan plan_;
  Workspace workspace_;
};

/// The pass after attention(), given its LSE.
class SecondPass : public Attend {
 public:
  SecondPass(const Case& c, Isa isa, Executor& executor)
      : Attend(c, isa, executor), options_(options_of(isa, executor)) {
    work_ /= 2;  // the scores once more, no values
    lse_ = Numbers(ElementType::float32, c.batch * c.q_len * c.q_heads, 6);
    call_.lse = {static_cast<float*>(lse_.data()), {c.batch, c.q_len, c.q_heads}};
    Attend::run();
    const std::int64_t per_head = c.work == Work::weights    ? c.q_len * c.kv_len
                                  : c.work == Work::received ? c.kv_len
                                                             : kBins * kBins;
    result_ = Numbers(ElementType::float32, c.batch * c.q_heads * per_head, 7);
    auto* to = static_cast<float*>(result_.data());
    if (c.work == Work::weights) wanted_.weights = {to, {c.batch, c.q_heads, c.q_len, c.kv_len}};
    if (c.work == Work::received) wanted_.received = {to, {c.batch, c.q_heads, c.kv_len}};
    if (c.work == Work::pooled) wanted_.pooled = {to, {c.batch, c.q_heads, kBins, kBins}};
  }

  void run() override { inspect(call_, wanted_, options_); }

 private:
  Options options_;
  Numbers lse_, result_;
  InspectArguments wanted_;
};

}  // namespace

std::unique_ptr<Workload> make_workload(const Case& of, Isa isa, Executor& executor) {
  std::unique_ptr<Workload> workload;
  switch (of.work) {
    case Work::attend:
      workload = std::make_unique<Attend>(of, isa, executor);
      break;
    case Work::weights:
    case Work::received:
    case Work::pooled:
      workload = std::make_unique<SecondPass>(of, isa, executor);
      break;
    case Work::projection:
    case Work::layer:
      workload = make_layer_workload(of, isa, executor);
      break;
    case Work::cache:
      workload = make_cache_workload(of, isa, executor);
      break;
    case Work::product:
      workload = make_product_workload(of, isa, executor);
      break;
  }
  workload->run();
  return workload;
}

}  // namespace polyhead::bench
