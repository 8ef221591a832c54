#include "cli/plan_kernels.hpp"

#include <algorithm>
#include <cctype>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/ceil_div.hpp"
#include "base/weight_blocks.hpp"
#include "bench/cases/cases.hpp"
#include "cli/measure.hpp"
#include "cli/stopwatch.hpp"
#include "kernels/cpu/gemm_table.hpp"
#include "models/rows.hpp"
#include "polyhead/executor.h"

namespace polyhead::cli {
namespace {

using base::ceil_div;
using bench::Case;
using cost::Layer;
using cost::ModelDescription;

constexpr std::int64_t kMostElements = 32 << 20;    // of one array here; larger ones are cut to it
constexpr std::int64_t kStackBytes = 192 << 20;     // of a stack of layers: more than caches hold
constexpr std::int64_t kMostLayers = 32;            // of a stack
constexpr int kRepeats = 7;                         // the median of which counts
constexpr std::int64_t kShort = 128, kLong = 1024;  // keys of one query's attention

double median_seconds(const auto& run) {
  run();
  std::vector<double> times;
  times.reserve(kRepeats);
  for (int i = 0; i < kRepeats; ++i) times.push_back(seconds_of(run));
  return median(times);
}

/// The type of that name that kernels know; float32 where there is none.
WeightType weight_type_named(std::string name) {
  if (name == "int8") name = "q8_0";
  if (name == "int4") name = "q4_0";
  for (int i = 0; i < kWeightTypes; ++i) {
    const auto type = static_cast<WeightType>(i);
    std::string known = weight_type_name(type);
    for (char& c : known) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (known == name) return type;
  }
  return WeightType::float32;
}

/// Bytes of a packed block of weights, and how many weights it has.
cost::StorageType packed_type(const std::string& name, const kernels::cpu::GemmTable& table) {
  const WeightType type = weight_type_named(name);
  if (block_weights(type) == 1) return {"f32", 1, 4};
  kernels::cpu::GemmWeights one_block;
  one_block.blocks = base::block_form(type);
  one_block.in = one_block.blocks.block();
  one_block.out = table.panel;
  return {name, one_block.in, ceil_div(table.packed_bytes(one_block), table.panel)};
}

/// The commonest layer: attention of a model with several kinds is measured as that one's.
const Layer& commonest(const ModelDescription& model) {
  return *std::max_element(model.layers.begin(), model.layers.end(),
                           [](const Layer& a, const Layer& b) { return a.count < b.count; });
}

struct Matrix {
  std::int64_t inputs, outputs;
  std::string part;  ///< of cost::parameters()
};

/// The matrices that one row meets in a layer; those that are multiplied together as one.
std::vector<Matrix> matrices_of(const Layer& layer) {
  const std::int64_t d = layer.model_dim, q = layer.q_heads * layer.head_dim;
  std::vector<Matrix> all;
  if (layer.latent.given()) {
    all.push_back(
        {d, layer.latent.q_rank + layer.latent.kv_rank + layer.latent.rope_dim, "attention"});
    all.push_back({std::max(layer.latent.q_rank, layer.latent.kv_rank), q, "attention"});
  } else {
    all.push_back({d, q + layer.kv_heads * (layer.head_dim + layer.value_dim), "attention"});
  }
  all.push_back({layer.q_heads * layer.value_dim, d, "attention"});
  const cost::FeedForward& f = layer.ffn;
  const std::int64_t width = f.ffn_dim * std::max<std::int64_t>(f.experts_used, 1) + f.shared_dim;
  if (width > 0) {
    all.push_back({d, (f.gated ? 2 : 1) * width, "feed_forward"});
    all.push_back({width, d, "feed_forward"});
  }
  return all;
}

/// Kernels of one model, made ready and timed.
class Kernels {
 public:
  Kernels(const ModelDescription& model, const cost::Workload& work, cost::Compute compute,
          int threads)
      : model_(model),
        layer_(commonest(model)),
        work_(work),
        type_(compute == cost::Compute::f32 ? ElementType::float32 : ElementType::bfloat16) {
    if (threads > 1) pool_.emplace(threads);
    options_.executor = pool_ ? &*pool_ : threads == 1 ? &Executor::serial() : &Executor::shared();
  }

  std::int64_t prefill_rows() const {
    const std::int64_t chunk = work_.chunk > 0 ? work_.chunk : kHereChunk;
    return std::max<std::int64_t>(1, std::min(work_.prompt, std::min(chunk, kHereChunk)));
  }

  /// FLOPs a second of the layer's products with many rows.
  double many_rows() {
    double flops = 0, seconds = 0;
    for (const Matrix& matrix : matrices_of(layer_)) {
      const auto product = make(matrix, prefill_rows());
      seconds += median_seconds([&] { product->run(); });
      flops += product->work();
    }
    return flops / seconds;
  }

  /// Bytes of weights a second of a decode step's products: as many layers as fit a stack, and the
  /// output matrix in the same proportion, one after the other as a step reads them.
  double one_row() {
    const std::int64_t layers = stack_height(bytes_of_layer());
    std::vector<std::unique_ptr<bench::Workload>> stack;
    bytes_ = 0;
    for (std::int64_t i = 0; i < layers; ++i) {
      for (const Matrix& matrix : matrices_of(layer_))
        stack.push_back(make(matrix, rows_of_step()));
    }
    if (model_.output_matrix && model_.vocab_size > 0) {
      const std::int64_t outputs = ceil_div(model_.vocab_size * layers, all_layers());
      stack.push_back(make({layer_.model_dim, outputs, model_.tied_output ? "embedding" : "output"},
                           rows_of_step()));
    }
    return bytes_ / run_all(stack);
  }

  /// FLOPs a second of causal attention over as many keys as queries; of attention to keys that
  /// all queries see.
  double attention(bool causal) {
    Case c = attention_case(prefill_rows(), prefill_rows());
    if (causal)
      c.pattern = bench::Pattern::causal;
    else if (c.q_len == kHereChunk)
      c.kv_len = 2 * c.q_len;
    const auto workload = bench::make_workload(c, resolve_isa(Isa::automatic), *options_.executor);
    return workload->work() / median_seconds([&] { workload->run(); });
  }

  /// Seconds of one query's attention in a layer over `keys` keys.
  double query(std::int64_t keys) {
    Case c = attention_case(1, keys);
    if (layer_.latent.given()) {
      c.kv_heads = 1;
      c.head_dim = layer_.latent.kv_rank + layer_.latent.rope_dim;
      c.latent_dim = layer_.latent.kv_rank;
    }
    c.batch = rows_of_step();
    const std::int64_t height = stack_height(static_cast<double>(c.batch * keys) * token_bytes());
    std::vector<std::unique_ptr<bench::Workload>> stack;
    for (std::int64_t i = 0; i < height; ++i)
      stack.push_back(bench::make_workload(c, resolve_isa(Isa::automatic), *options_.executor));
    return run_all(stack) / static_cast<double>(height);
  }

  double token_bytes() const {
    const std::int64_t elements = layer_.latent.given()
                                      ? layer_.latent.kv_rank + layer_.latent.rope_dim
                                      : layer_.kv_heads * (layer_.head_dim + layer_.value_dim);
    return static_cast<double>(elements * element_bytes(type_));
  }

  /// Sequences of a decode step: of more than these the rates are the same.
  std::int64_t rows_of_step() const {
    const auto fit = static_cast<std::int64_t>(static_cast<double>(kStackBytes) /
                                               (token_bytes() * static_cast<double>(kLong)));
    return std::clamp<std::int64_t>(std::min<std::int64_t>(work_.batch, 64), 1,
                                    std::max<std::int64_t>(fit, 1));
  }

  /// Elements a second of two norms, two sums and an activation of `rows` rows.
  double row_wise(std::int64_t rows) {
    const layers::Engine engine = layers::engine_of("plan", options_);
    const std::int64_t d = std::min(layer_.model_dim, kMostElements / rows);
    const cost::FeedForward& f = layer_.ffn;
    const std::int64_t wanted =
        f.ffn_dim * std::max<std::int64_t>(f.experts_used, 1) + f.shared_dim;
    const std::int64_t ffn = std::clamp<std::int64_t>(wanted, 1, kMostElements / rows / 2);
    layers::Buffer a, b, c, e;
    const models::Matrix x = filled(a, ElementType::float32, rows, d);
    const models::Matrix term = filled(b, ElementType::float32, rows, d);
    const models::Matrix normed = filled(e, type_, rows, std::max(d, ffn));
    const models::Matrix hidden = filled(c, ElementType::float32, rows, 2 * ffn);
    const models::NormWeights norm{std::vector<float>(static_cast<std::size_t>(d), 1.0f), {}};
    const double seconds = median_seconds([&] {
      for (int i = 0; i < 2; ++i) {
        models::normalise(engine, {}, norm, x, normed.from_column(0, d));
        models::add(engine, x, term);
      }
      models::activate(engine, models::Activation::silu, hidden.from_column(0, ffn),
                       hidden.from_column(ffn, ffn), normed.from_column(0, ffn));
    });
    return static_cast<double>(rows * (4 * d + ffn)) / seconds;
  }

 private:
  static models::Matrix filled(layers::Buffer& memory, ElementType type, std::int64_t rows,
                               std::int64_t columns) {
    const models::Matrix made = models::matrix_in(memory, type, rows, columns);
    std::fill_n(made.data, rows * made.pitch, std::byte{});
    return made;
  }

  std::int64_t all_layers() const {
    std::int64_t count = 0;
    for (const Layer& layer : model_.layers) count += layer.count;
    return count;
  }

  std::int64_t stack_height(double bytes) const {
    const auto fit =
        static_cast<std::int64_t>(static_cast<double>(kStackBytes) / std::max(bytes, 1.0));
    return std::clamp<std::int64_t>(fit, 1, std::min(kMostLayers, all_layers()));
  }

  /// What most weights of a part are stored in.
  std::string type_of(const std::string& part) const {
    if (work_.weight_type) return work_.weight_type->name;
    std::string type = model_.weight_type;
    std::int64_t most = 0;
    for (const cost::StoredWeights& entry : model_.stored) {
      if (entry.part != part || entry.weights <= most) continue;
      type = entry.type.name;
      most = entry.weights;
    }
    return type;
  }

  double bytes_of(const Matrix& matrix) const {
    const double elements =
        static_cast<double>(matrix.inputs) * static_cast<double>(matrix.outputs);
    if (type_ == ElementType::bfloat16) return 2 * elements;
    const cost::StorageType held =
        packed_type(type_of(matrix.part), kernels::cpu::gemm(resolve_isa(Isa::automatic)));
    return elements / static_cast<double>(held.block_elements) *
           static_cast<double>(held.block_bytes);
  }

  double bytes_of_layer() const {
    double bytes = 0;
    for (const Matrix& matrix : matrices_of(layer_)) bytes += bytes_of(matrix);
    return bytes;
  }

  /// A product with random weights of the matrix's type, the matrix cut where it is very large.
  std::unique_ptr<bench::Workload> make(Matrix matrix, std::int64_t rows) {
    const WeightType type = weight_type_named(type_of(matrix.part));
    const std::int64_t block = type_ == ElementType::float32 ? block_weights(type) : 1;
    matrix.inputs = std::min(ceil_div(matrix.inputs, block) * block, kMostElements / 256);
    matrix.outputs = std::min(matrix.outputs, kMostElements / matrix.inputs);
    bytes_ += bytes_of(matrix);
    Case c;
    c.work = bench::Work::product;
    c.q_len = rows;
    c.inputs = matrix.inputs;
    c.outputs = matrix.outputs;
    c.type = type_;
    c.weights = block > 1 ? type : WeightType::float32;
    return bench::make_workload(c, resolve_isa(Isa::automatic), *options_.executor);
  }

  static double run_all(const std::vector<std::unique_ptr<bench::Workload>>& stack) {
    return median_seconds([&] {
      for (const auto& workload : stack) workload->run();
    });
  }

  Case attention_case(std::int64_t queries, std::int64_t keys) const {
    Case c;
    c.q_len = queries;
    c.kv_len = keys;
    // Heads beyond these change no rate: groups stay as they are.
    const std::int64_t group = layer_.latent.given() ? 1 : layer_.q_heads / layer_.kv_heads;
    c.head_dim = std::min<std::int64_t>(layer_.head_dim, 1024);
    c.kv_heads =
        std::clamp<std::int64_t>(layer_.q_heads / group, 1, std::max<std::int64_t>(64 / group, 1));
    c.q_heads = c.kv_heads * group;
    c.order = bench::Order::tokens_first;
    c.type = type_;
    return c;
  }

  const ModelDescription& model_;
  const Layer& layer_;
  const cost::Workload& work_;
  ElementType type_;
  std::optional<ThreadPool> pool_;
  Options options_;
  double bytes_ = 0;  ///< of the matrices made for a stack
};

}  // namespace

KernelRates measure_kernels(const ModelDescription& model, const cost::Workload& work,
                            const cost::Machine& here, cost::Compute compute, int threads) {
  Kernels kernels(model, work, compute, threads);
  KernelRates rates;
  rates.compute = compute;
  rates.peak = cost::peak_flops(here, compute);
  rates.bandwidth = here.memory_bandwidth;
  rates.one_row = kernels.one_row();
  rates.many_rows = kernels.many_rows();
  rates.diagonal = kernels.attention(true);
  rates.beside = kernels.attention(false);
  const double few = kernels.query(kShort), many = kernels.query(kLong);
  const double bytes = kernels.token_bytes() * static_cast<double>(kernels.rows_of_step());
  const double each =
      std::max((many - few) / static_cast<double>(kLong - kShort), many / 4 / kLong);
  rates.cache = bytes / each;
  rates.query_seconds = std::max(0.0, few - each * static_cast<double>(kShort));
  rates.rows_many = kernels.row_wise(kernels.prefill_rows());
  rates.rows_one = kernels.row_wise(kernels.rows_of_step());
  return rates;
}

cost::Utilisation KernelRates::prefill(const cost::Workload& work) const {
  // Of a prompt's visible pairs, those of a call with its own tokens lie on the diagonal.
  const auto prompt = static_cast<double>(std::max<std::int64_t>(work.prompt, 1));
  const double chunk =
      std::min(static_cast<double>(work.chunk > 0 ? work.chunk : kHereChunk), prompt);
  const double own = std::min(1.0, (chunk + 1) / (prompt + 1));
  cost::Utilisation share;
  share.gemm = many_rows / peak;
  share.attention = 1 / (own / diagonal + (1 - own) / beside) / peak;
  share.bandwidth = one_row / bandwidth;
  share.cache_bandwidth = cache / bandwidth;
  share.row_wise = rows_many;
  return share;
}

cost::Utilisation KernelRates::decode(const ModelDescription& model,
                                      const cost::Workload& work) const {
  cost::Utilisation share;
  share.bandwidth = one_row / bandwidth;
  share.row_wise = rows_one;
  double layers = 0;
  for (const Layer& layer : model.layers) layers += static_cast<double>(layer.count);
  const cost::Term read = cost::traffic_bytes(model, work, cost::Phase::decode_step);
  const cost::Term* const cached = read.find("attention");
  const double bytes = cached != nullptr ? cached->value.to_double() : 0;
  if (bytes == 0 || cache == 0) return share;  // an encoder: it has no cache
  const double seconds = layers * query_seconds + bytes / cache;
  share.cache_bandwidth = bytes / seconds / bandwidth;
  return share;
}

ModelDescription as_held(ModelDescription model) {
  const auto& table = kernels::cpu::gemm(resolve_isa(Isa::automatic));
  for (cost::StoredWeights& entry : model.stored) entry.type = packed_type(entry.type.name, table);
  return model;
}

}  // namespace polyhead::cli
