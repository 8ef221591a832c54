#include "models/model.hpp"

#include <algorithm>
#include <limits>

#include "base/codes.hpp"
#include "base/refuse.hpp"
#include "models/model_state.hpp"

namespace polyhead::inline v0::models {
namespace {

constexpr std::int64_t kChunk = 512;  // tokens: rows that share a pass over the weights, and whose
                                      // activations stay in the caches

/// One chunk of a call: where it stands in the ids.
struct Chunk {
  std::int64_t first, count;
};

/// Forgets what a call appended, unless it is told that the call succeeded.
template <class State>
class Appended {
 public:
  explicit Appended(State& session) : session_(session), before_(session.length) {}
  Appended(const Appended&) = delete;
  Appended& operator=(const Appended&) = delete;
  ~Appended() {
    if (!kept_) session_.truncate(before_);
  }
  void keep() { kept_ = true; }

 private:
  State& session_;
  std::int64_t before_;
  bool kept_ = false;
};

/// Empties inputs that a run was to fill, unless it did: half of them would be taken for all.
struct FilledInputs {
  explicit FilledInputs(LayerInputs* of) : inputs(of) {}
  FilledInputs(const FilledInputs&) = delete;
  FilledInputs& operator=(const FilledInputs&) = delete;
  ~FilledInputs() {
    if (fills) inputs->of_layer.clear();
  }

  LayerInputs* const inputs;
  bool fills = false;
};

/// Runs ids after what the session holds, a chunk at a time; after_chunk(pass, chunk) sees the
/// residual stream behind the last layer.
template <class Model, class Session, class Body>
void run_chunks(const Model& model, Session& session, const char* call,
                std::span<const std::int32_t> ids, const RunOptions& options, std::int64_t chunk,
                const Body& after_chunk, LayerInputs* inputs = nullptr) {
  const auto count = static_cast<std::int64_t>(ids.size());
  if (chunk < 0) base::refuse(call, "chunk (", chunk, ") is negative");
  if (!model.config.causal) base::refuse(call, "the model is an encoder; embed() runs it");
  if (count > session.capacity - session.length) {
    base::refuse(call, count, " tokens after ", session.length, " exceed the session's capacity, ",
                 session.capacity);
  }
  model.check_ids(call, ids);
  model.check_heads(call, options);
  const ElementType held = session.caches.front().config().type;
  if (options.observer != nullptr && base::is_code(held)) {
    base::refuse(call, "the session's cache holds ", element_name(held),
                 ", but an observer reads float32, float16 or bfloat16");
  }
  FilledInputs filled(inputs);
  if (inputs != nullptr) filled.fills = model.prepare_inputs(call, *inputs, count, options);
  const std::int64_t step = chunk > 0 ? chunk : kChunk;
  Appended appended(session);
  for (std::int64_t first = 0; first < count; first += step) {
    const Chunk part{first, std::min(step, count - first)};
    const Tokens tokens{
        ids.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(part.count)),
        session.length,
        &session.caches,
        {},
        {},
        session.frames};
    Pass pass(model.config, model.engine, model.activations, tokens, session.memory, options);
    if (inputs != nullptr) {
      model.run_from(*inputs, first, options, pass);
    } else {
      model.embed(pass);
      model.run_blocks(pass);
    }
    after_chunk(pass, part);
    session.length += part.count;
  }
  appended.keep();
  filled.fills = false;
}

}  // namespace

Model::State::State(const ModelFile& from, const ModelOptions& options)
    : file(from),
      config(from.config()),
      engine(layers::engine_of("Model", options.run)),
      activations(activation_type(options)) {
  const Loader loader(file, engine, activations);
  const Rules& rules = rules_of(config.architecture);
  for (std::size_t layer = 0; layer < config.layers.size(); ++layer) {
    blocks.push_back(rules.load(loader, static_cast<std::int64_t>(layer)));
  }
  if (file.has("position_embd.weight")) edges.positions = loader.floats("position_embd.weight");
  if (file.has("token_types.weight")) {
    edges.token_types = loader.floats("token_types.weight");
    edges.token_types.resize(static_cast<std::size_t>(config.model_dim));  // texts alone: type 0
  }
  if (file.has("token_embd_norm.weight")) edges.embedding_norm = loader.norm("token_embd_norm");
  if (!config.causal) return;
  edges.output_norm = loader.norm("output_norm");
  output = loader.linear(config.tied_output ? "token_embd" : "output");
}

void Model::State::check_ids(const char* call, std::span<const std::int32_t> ids) const {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= config.vocab_size) {
      base::refuse(call, "ids[", i, "] (", ids[i], ") is not within 0 .. ", config.vocab_size - 1);
    }
  }
}

void Model::State::check_heads(const char* call, const RunOptions& options) const {
  if (options.heads == nullptr || options.heads->off.empty()) return;
  const auto& off = options.heads->off;
  if (off.size() != config.layers.size()) {
    base::refuse(call, "heads.off has ", off.size(), " layers, expected ", config.layers.size());
  }
  for (std::size_t layer = 0; layer < off.size(); ++layer) {
    const std::int64_t heads = config.layers[layer].q_heads;
    if (static_cast<std::int64_t>(off[layer].size()) != heads) {
      base::refuse(call, "heads.off[", layer, "] has ", off[layer].size(), " heads, expected ",
                   heads);
    }
  }
}

void Model::State::embed(Pass& pass) const {
  const WeightTensor& table = file.tensor("token_embd.weight");
  const Matrix& x = pass.residual();
  layers::share_out_rows(engine.crew, x.rows, [&](std::int64_t row, int) {
    const auto token = static_cast<std::size_t>(row);
    float* const to = x.floats(row);
    dequantise_rows(table, pass.tokens().ids[token], 1, to);
    const auto add_row = [&](const std::vector<float>& rows, std::int64_t index) {
      if (rows.empty()) return;
      const float* const from = rows.data() + index * config.model_dim;
      for (std::int64_t i = 0; i < config.model_dim; ++i) to[i] += from[i];
    };
    if (config.embedding_scale != 1.0f) {
      for (std::int64_t i = 0; i < config.model_dim; ++i) to[i] *= config.embedding_scale;
    }
    add_row(edges.token_types, 0);
    add_row(edges.positions, pass.positions()[token]);
  });
  if (edges.embedding_norm.given()) pass.normalise_residual(edges.embedding_norm);
}

void Model::State::run_block(std::int64_t layer, Pass& pass) const {
  rules_of(config.architecture).run(blocks[static_cast<std::size_t>(layer)], layer, pass);
}

void Model::State::run_blocks(Pass& pass) const {
  const auto layers = static_cast<std::int64_t>(blocks.size());
  for (std::int64_t layer = 0; layer < layers; ++layer) run_block(layer, pass);
}

void Model::State::logits(Pass& pass, std::int64_t first, std::int64_t count,
                          const Matrix& to) const {
  pass.multiply(pass.normalised_rows(edges.output_norm, first, count), output, to);
  const float cap = config.logit_soft_cap;
  if (cap == 0.0f) return;
  layers::share_out_rows(engine.crew, count, [&](std::int64_t row, int) {
    engine.rows->soft_cap(to.floats(row), cap, to.columns);
  });
}

Model::Model(const ModelFile& file, const ModelOptions& options)
    : state_(std::make_unique<const State>(file, options)) {}
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

const ModelConfig& Model::config() const { return state_->config; }

std::size_t Model::weight_bytes() const {
  std::size_t sum = state_->output.bytes();
  for (const Block& block : state_->blocks) {
    const layers::Layer& attention = block.attention;
    for (const layers::Linear* linear :
         {&attention.q, &attention.kv, &attention.o, &block.feed_forward.gate,
          &block.feed_forward.up, &block.feed_forward.down}) {
      sum += linear->bytes();
    }
  }
  return sum;
}

void Model::forward(Session& session, std::span<const std::int32_t> ids, Wanted wanted,
                    float* logits, const RunOptions& options, std::int64_t chunk) const {
  const State& model = *state_;
  const std::int64_t vocabulary = model.config.vocab_size;
  const auto count = static_cast<std::int64_t>(ids.size());
  const auto rows_at = [&](std::int64_t row, std::int64_t rows) {
    return Matrix{reinterpret_cast<std::byte*>(logits + row * vocabulary), ElementType::float32,
                  rows, vocabulary, vocabulary * 4};
  };
  run_chunks(model, *session.state_, "Model::forward", ids, options, chunk,
             [&](Pass& pass, const Chunk& part) {
               if (wanted == Wanted::every) {
                 model.logits(pass, 0, part.count, rows_at(part.first, part.count));
               } else if (wanted == Wanted::last && part.first + part.count == count) {
                 model.logits(pass, part.count - 1, 1, rows_at(0, 1));
               }
             });
}

namespace {

/// Model::losses(), with layer inputs where they are kept.
template <class State, class Session>
void losses_of(const State& model, Session& session, std::span<const std::int32_t> ids,
               std::span<const std::int32_t> targets, double* nats, const RunOptions& options,
               std::int64_t chunk, LayerInputs* inputs) {
  constexpr const char* kCall = "Model::losses";
  // Rows of logits in memory at once: enough that the output's weights are read from L2 mostly.
  constexpr std::int64_t kLogitBytes = std::int64_t{64} << 20;
  const std::int64_t rows_at_once =
      std::clamp<std::int64_t>(kLogitBytes / (4 * model.config.vocab_size), 16, kChunk);
  const auto wanted = static_cast<std::int64_t>(targets.size());
  if (targets.size() > ids.size() || targets.size() + 1 < ids.size()) {
    base::refuse(kCall, targets.size(), " targets for ", ids.size(), " ids");
  }
  model.check_ids(kCall, targets);
  const auto after_chunk = [&](Pass& pass, const Chunk& part) {
    const std::int64_t end = std::min(part.count, wanted - part.first);
    for (std::int64_t first = 0; first < end; first += rows_at_once) {
      const std::int64_t count = std::min(rows_at_once, end - first);
      const Matrix rows =
          matrix_in(session.memory.logits, ElementType::float32, count, model.config.vocab_size);
      model.logits(pass, first, count, rows);
      layers::share_out(model.engine.crew, count, [&](std::int64_t row, int) {
        const std::int64_t at = part.first + first + row;
        const float* const logits = rows.floats(row);
        nats[at] = model.engine.rows->log_sum_exp(logits, rows.columns) -
                   static_cast<double>(logits[targets[static_cast<std::size_t>(at)]]);
      });
    }
  };
  run_chunks(model, session, kCall, ids, options, chunk, after_chunk, inputs);
}

}  // namespace

void Model::losses(Session& session, std::span<const std::int32_t> ids,
                   std::span<const std::int32_t> targets, double* nats, const RunOptions& options,
                   std::int64_t chunk) const {
  losses_of(*state_, *session.state_, ids, targets, nats, options, chunk, nullptr);
}

double Model::negative_log_likelihood(std::span<const std::int32_t> ids, const RunOptions& options,
                                      LayerInputs* inputs) const {
  if (ids.size() < 2) return std::numeric_limits<double>::quiet_NaN();
  const std::size_t count = ids.size() - 1;
  Session session = make_session(static_cast<std::int64_t>(count));
  std::vector<double> nats(count);
  losses_of(*state_, *session.state_, ids.first(count), ids.subspan(1), nats.data(), options, 0,
            inputs);
  double sum = 0.0;
  for (const double loss : nats) sum += loss;
  return sum / static_cast<double>(count);
}

}  // namespace polyhead::inline v0::models
