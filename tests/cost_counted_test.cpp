// FLOPs as they are counted: a naive attention whose numbers count every multiply-add, run over
// every variant, mask, chunk and decode step, against what the formulas say.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "polyhead/cost.h"

namespace polyhead::cost {
namespace {

/// Matrices of sizes alone: what a product would do is counted, step by step, not computed.
class Counter {
 public:
  /// One multiply-add.
  void fma() { ++operations_[step_]; }
  void step(const std::string& name) { step_ = name; }

  /// rows [rows, in] times a matrix [in, out], element by element.
  void matrix(const char* name, std::int64_t rows, std::int64_t in, std::int64_t out) {
    step(name);
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t o = 0; o < out; ++o)
        for (std::int64_t i = 0; i < in; ++i) fma();
  }
  void dot(std::int64_t length) {
    for (std::int64_t i = 0; i < length; ++i) fma();
  }

  /// FLOPs: two each.
  Count flops(const char* name) const {
    const auto found = operations_.find(name);
    return Count(2) * Count(found == operations_.end() ? 0 : found->second);
  }

 private:
  std::map<std::string, std::int64_t> operations_;
  std::string step_;
};

/// Where hidden pairs are computed too, as a rectangle of the call, or left out.
bool computed(const Layer& layer, Counting counting, std::int64_t q_pos, std::int64_t last,
              std::int64_t key) {
  if (layer.attends != Attends::causal) return true;
  if (counting == Counting::triangle)
    return key <= q_pos && (layer.window == 0 || key > q_pos - layer.window);
  // The rectangle is as wide as what the last query of the call sees.
  return layer.window == 0 || key > last - layer.window;
}

/// One call: `fresh` new tokens after `before` others.
void run_call(Counter& count, const Layer& layer, Counting counting, LatentForm form,
              std::int64_t before, std::int64_t fresh) {
  const Latent& l = layer.latent;
  const std::int64_t heads = layer.q_heads, d = layer.model_dim, keys = before + fresh;
  std::int64_t score_width = layer.head_dim, value_width = layer.value_dim;
  if (l.given()) {
    const std::int64_t q_dim = l.nope_dim + l.rope_dim;
    if (l.q_rank > 0) {
      count.matrix("q_projection", fresh, d, l.q_rank);
      count.matrix("q_projection", fresh, l.q_rank, heads * q_dim);
    } else {
      count.matrix("q_projection", fresh, d, heads * q_dim);
    }
    count.matrix("k_projection", fresh, d, l.kv_rank + l.rope_dim);
    if (form == LatentForm::expanded) {
      count.matrix("k_projection", keys, l.kv_rank, heads * l.nope_dim);
      count.matrix("v_projection", keys, l.kv_rank, heads * layer.value_dim);
      score_width = q_dim;
    } else {
      for (std::int64_t h = 0; h < heads; ++h) {
        count.matrix("k_projection", fresh, l.nope_dim, l.kv_rank);
        count.matrix("v_projection", fresh, l.kv_rank, layer.value_dim);
      }
      score_width = l.kv_rank + l.rope_dim;
      value_width = l.kv_rank;
    }
  } else {
    count.matrix("q_projection", fresh, d, heads * layer.head_dim);
    count.matrix("k_projection", fresh, d, layer.kv_heads * layer.head_dim);
    count.matrix("v_projection", fresh, d, layer.kv_heads * layer.value_dim);
  }
  for (std::int64_t h = 0; h < heads; ++h) {
    for (std::int64_t query = 0; query < fresh; ++query) {
      for (std::int64_t key = 0; key < keys; ++key) {
        if (!computed(layer, counting, before + query, keys - 1, key)) continue;
        count.step("scores");
        count.dot(score_width);
        count.step("weighted_sum");
        count.dot(value_width);
      }
    }
  }
  count.matrix("output_projection", fresh, heads * layer.value_dim, d);
}

constexpr const char* kSteps[] = {"q_projection", "k_projection", "v_projection",
                                  "scores",       "weighted_sum", "output_projection"};

struct Tokens {
  std::int64_t batch, prompt, generated, chunk;
};

void expect_counted(const Layer& layer, const Tokens& run, Counting counting, LatentForm form) {
  Workload work;
  work.batch = run.batch;
  work.prompt = run.prompt;
  work.generated = run.generated;
  work.chunk = run.chunk;
  work.counting = counting;
  work.prefill_form = work.decode_form = form;
  for (const Phase phase : {Phase::prefill, Phase::decode_step, Phase::generation}) {
    if (layer.attends == Attends::all && phase != Phase::prefill) continue;
    Counter count;
    for (std::int64_t b = 0; b < run.batch; ++b) {
      if (phase == Phase::prefill) {
        const std::int64_t chunk =
            run.chunk > 0 && layer.attends == Attends::causal ? run.chunk : run.prompt;
        for (std::int64_t at = 0; at < run.prompt; at += chunk)
          run_call(count, layer, counting, form, at, std::min(chunk, run.prompt - at));
      } else if (phase == Phase::decode_step) {
        run_call(count, layer, counting, form, run.prompt + run.generated - 1, 1);
      } else {
        for (std::int64_t step = 1; step < run.generated; ++step)
          run_call(count, layer, counting, form, run.prompt + step - 1, 1);
      }
    }
    const Term made = attention_flops(layer, work, phase);
    for (const char* step : kSteps) {
      EXPECT_EQ(made.at(step).str(), count.flops(step).str())
          << step << ", phase " << static_cast<int>(phase) << ", prompt " << run.prompt
          << ", chunk " << run.chunk << ", window " << layer.window << ", counting "
          << static_cast<int>(counting);
    }
  }
}

Layer small(std::int64_t q_heads, std::int64_t kv_heads) {
  Layer layer;
  layer.model_dim = 10;
  layer.q_heads = q_heads;
  layer.kv_heads = kv_heads;
  layer.head_dim = 3;
  layer.value_dim = 2;
  return layer;
}

const Tokens kRuns[] = {{1, 7, 4, 0}, {2, 7, 1, 3},   {1, 8, 3, 4},
                        {1, 1, 2, 0}, {1, 9, 5, 100}, {2, 5, 0, 1}};

TEST(CostCounted, HeadsMasksWindowsChunksAndDecode) {
  for (const auto& [q_heads, kv_heads] : {std::pair{4, 4}, {4, 2}, {6, 1}, {1, 1}}) {
    for (const std::int64_t window : {0, 1, 2, 5, 8, 50}) {
      Layer layer = small(q_heads, kv_heads);
      layer.window = window;
      for (const Tokens& run : kRuns) {
        for (const Counting counting : {Counting::full, Counting::triangle})
          expect_counted(layer, run, counting, LatentForm::expanded);
      }
    }
  }
}

TEST(CostCounted, Encoders) {
  Layer layer = small(4, 4);
  layer.attends = Attends::all;
  for (const Tokens& run : kRuns) {
    for (const Counting counting : {Counting::full, Counting::triangle})
      expect_counted(layer, run, counting, LatentForm::expanded);
  }
}

// Cross attention: keys and values come from the source's tokens, once, in the first call; every
// query sees all of them.
TEST(CostCounted, CrossAttention) {
  for (const std::int64_t kv_heads : {4, 1}) {
    Layer layer = small(4, kv_heads);
    layer.attends = Attends::source;
    for (const Tokens& run : kRuns) {
      Workload work;
      work.batch = run.batch;
      work.prompt = run.prompt;
      work.generated = run.generated;
      work.chunk = run.chunk;
      for (const Phase phase : {Phase::prefill, Phase::decode_step, Phase::generation}) {
        Counter count;
        const bool first = phase == Phase::prefill;
        const std::int64_t steps = phase == Phase::decode_step ? 1
                                   : phase == Phase::generation
                                       ? std::max<std::int64_t>(run.generated - 1, 0)
                                       : run.prompt;
        for (std::int64_t b = 0; b < run.batch; ++b) {
          count.matrix("q_projection", steps, layer.model_dim, layer.q_heads * layer.head_dim);
          const std::int64_t made = first ? run.prompt : 0;
          count.matrix("k_projection", made, layer.model_dim, kv_heads * layer.head_dim);
          count.matrix("v_projection", made, layer.model_dim, kv_heads * layer.value_dim);
          for (std::int64_t pair = 0; pair < layer.q_heads * steps * run.prompt; ++pair) {
            count.step("scores");
            count.dot(layer.head_dim);
            count.step("weighted_sum");
            count.dot(layer.value_dim);
          }
          count.matrix("output_projection", steps, layer.q_heads * layer.value_dim,
                       layer.model_dim);
        }
        const Term made = attention_flops(layer, work, phase);
        for (const char* step : kSteps)
          EXPECT_EQ(made.at(step).str(), count.flops(step).str())
              << step << ", phase " << static_cast<int>(phase);
      }
    }
  }
}

/// Forward, then the two products of each matrix's backward pass: by its input and by itself.
void train_matrix(Counter& count, const char* name, std::int64_t rows, std::int64_t in,
                  std::int64_t out) {
  count.matrix(name, rows, in, out);
  count.matrix(name, rows, out, in);  // dx = dy W
  count.matrix(name, in, rows, out);  // dW = x^T dy
}

// Backward of a visible pair: dV from P and dO, dP from dO and V, dQ and dK from dS; P from the
// scores once more where it was not stored.
TEST(CostCounted, Training) {
  for (const auto& [q_heads, kv_heads] : {std::pair{4, 4}, {4, 2}, {6, 1}}) {
    for (const bool again : {false, true}) {
      for (const Counting counting : {Counting::full, Counting::triangle}) {
        Layer layer = small(q_heads, kv_heads);
        layer.value_dim = layer.head_dim;
        Workload work;
        work.prompt = 7;
        work.counting = counting;
        Counter count;
        const std::int64_t d = layer.model_dim, dim = layer.head_dim;
        train_matrix(count, "q_projection", work.prompt, d, q_heads * dim);
        train_matrix(count, "k_projection", work.prompt, d, kv_heads * dim);
        train_matrix(count, "v_projection", work.prompt, d, kv_heads * dim);
        train_matrix(count, "output_projection", work.prompt, q_heads * dim, d);
        for (std::int64_t h = 0; h < q_heads; ++h) {
          for (std::int64_t query = 0; query < work.prompt; ++query) {
            for (std::int64_t key = 0; key < work.prompt; ++key) {
              if (!computed(layer, counting, query, work.prompt - 1, key)) continue;
              count.step("products");
              count.dot(dim), count.dot(dim);  // forward
              if (again) count.dot(dim);       // scores
              count.dot(dim), count.dot(dim), count.dot(dim), count.dot(dim);
            }
          }
        }
        const Term made =
            attention_flops(layer, work, again ? Phase::training_recompute : Phase::training);
        for (const char* step :
             {"q_projection", "k_projection", "v_projection", "output_projection"})
          EXPECT_EQ(made.at(step).str(), count.flops(step).str()) << step;
        EXPECT_EQ((made.at("scores") + made.at("weighted_sum")).str(),
                  count.flops("products").str());
      }
    }
  }
}

// The rest of a model: feed-forward networks, dense and of experts, and the logits of one row a
// sequence.
TEST(CostCounted, FeedForwardAndLogits) {
  for (const bool gated : {false, true}) {
    for (const std::int64_t experts : {0, 6}) {
      ModelDescription model;
      Layer layer = small(2, 1);
      layer.count = 3;
      layer.ffn.ffn_dim = 5;
      layer.ffn.gated = gated;
      layer.ffn.experts = experts;
      layer.ffn.experts_used = experts > 0 ? 2 : 0;
      layer.ffn.shared_dim = experts > 0 ? 4 : 0;
      model.layers = {layer};
      model.vocab_size = 11;
      Workload work;
      work.batch = 2;
      work.prompt = 7;
      Counter count;
      const std::int64_t rows = work.batch * work.prompt, d = layer.model_dim;
      const auto network = [&](std::int64_t width) {
        for (int up = gated ? 2 : 1; up > 0; --up) count.matrix("ffn", rows, d, width);
        count.matrix("ffn", rows, width, d);
      };
      for (std::int64_t i = 0; i < layer.count; ++i) {
        if (experts == 0) network(layer.ffn.ffn_dim);
        if (experts > 0) count.matrix("ffn", rows, d, experts);
        for (std::int64_t used = 0; used < layer.ffn.experts_used; ++used)
          network(layer.ffn.ffn_dim);
        if (experts > 0) network(layer.ffn.shared_dim);
      }
      count.matrix("logits", work.batch, d, model.vocab_size);
      const Term made = model_flops(model, work, Phase::prefill);
      EXPECT_EQ(made.at("feed_forward").str(), count.flops("ffn").str())
          << gated << ", experts " << experts;
      EXPECT_EQ(made.at("logits").str(), count.flops("logits").str());
    }
  }
}

TEST(CostCounted, LatentBothForms) {
  for (const std::int64_t q_rank : {0, 5}) {
    Layer layer = small(3, 3);
    layer.latent = {q_rank, 4, 2, 1};
    for (const Tokens& run : kRuns) {
      for (const LatentForm form : {LatentForm::expanded, LatentForm::absorbed}) {
        for (const Counting counting : {Counting::full, Counting::triangle})
          expect_counted(layer, run, counting, form);
      }
    }
  }
}

TEST(CostCounted, TrafficReadsEachKeyOfEachCallOnce) {
  for (const std::int64_t window : {0, 1, 3, 6, 40}) {
    Layer layer = small(2, 1);
    layer.window = window;
    ModelDescription model;
    model.layers = {layer};
    for (const Tokens& run : kRuns) {
      Workload work;
      work.prompt = run.prompt;
      work.chunk = run.chunk;
      std::int64_t read = 0;
      const std::int64_t chunk = run.chunk > 0 ? run.chunk : run.prompt;
      for (std::int64_t at = 0; at < run.prompt; at += chunk) {
        const std::int64_t end = std::min(at + chunk, run.prompt);
        const std::int64_t first = window == 0 ? 0 : std::max<std::int64_t>(0, at + 1 - window);
        read += end - first;
      }
      const Count bytes = kv_bytes_per_token(layer, work.kv_type).value;
      EXPECT_EQ(traffic_bytes(model, work, Phase::prefill).at("kv_read").str(),
                (Count(read) * bytes).str())
          << "window " << window << ", prompt " << run.prompt << ", chunk " << run.chunk;
    }
  }
}

}  // namespace
}  // namespace polyhead::cost
