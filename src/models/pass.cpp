#include "models/pass.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "base/codes.hpp"
#include "layers/held.hpp"

namespace polyhead::inline v0::models {

using layers::Layer;

namespace {

constexpr const char* kCall = "Model::forward";

std::vector<std::int64_t> positions_of(const Tokens& tokens) {
  std::vector<std::int64_t> positions(tokens.ids.size());
  std::size_t sequence = 0;
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    if (tokens.caches != nullptr) {
      positions[i] = tokens.first + at;
      continue;
    }
    while (at >= tokens.offsets[sequence + 1]) ++sequence;
    positions[i] = at - tokens.offsets[sequence];
    if (tokens.pooled.cache != nullptr) positions[i] += tokens.pooled.starts[sequence];
  }
  return positions;
}

/// Rows of the pass's own memory, which its steps give out to be read.
View own(const ConstView& rows) { return {const_cast<void*>(rows.data), rows.type, rows.layout}; }

}  // namespace

Pass::Pass(const ModelConfig& config, const layers::Engine& engine, ElementType activations,
           const Tokens& tokens, PassMemory& memory, const RunOptions& options)
    : config_(config),
      engine_(engine),
      activations_(activations),
      tokens_(tokens),
      memory_(memory),
      options_(options),
      norm_{config.norm, config.norm_eps},
      positions_(positions_of(tokens)) {
  const auto count = static_cast<std::int64_t>(tokens.ids.size());
  residual_ = matrix_in(memory.residual, ElementType::float32, count, config.model_dim);
  input_ = matrix_in(memory.normed, activations, count, config.model_dim);
  result_ = matrix_in(memory.result, ElementType::float32, count, config.model_dim);
}

void Pass::normalise(const NormWeights& weights) {
  models::normalise(engine_, norm_, weights, residual_, input_);
}

void Pass::normalise_residual(const NormWeights& weights) {
  models::normalise(engine_, norm_, weights, residual_, residual_);
  layers::share_out_rows(engine_.crew, residual_.rows, [&](std::int64_t row, int) {
    engine_.gemm->narrow_row(input_.row(row), residual_.floats(row), activations_,
                             layers::float_bytes(activations_), input_.columns);
  });
}

void Pass::normalise_result(const NormWeights& weights) {
  models::normalise(engine_, norm_, weights, result_, result_);
}

void Pass::add_result() { add(engine_, residual_, result_); }

void Pass::keep_rows(std::span<const std::int64_t> rows) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto to = static_cast<std::int64_t>(i);
    if (rows[i] == to) continue;
    std::copy_n(residual_.floats(rows[i]), residual_.columns, residual_.floats(to));
  }
}

Matrix Pass::normalised_rows(const NormWeights& weights, std::int64_t first, std::int64_t count) {
  const Matrix to = input_.from_row(first, count);
  models::normalise(engine_, norm_, weights, residual_.from_row(first, count), to);
  return to;
}

void Pass::multiply(const Matrix& input, const layers::Linear& linear, const Matrix& to) {
  const layers::Source source =
      layers::source_of(engine_, linear, input.as_rows(), memory_.attention.prepared);
  layers::multiply(engine_, {{&linear, source, to.as_rows()}}, memory_.attention.products);
}

AttentionArguments Pass::prepare(const Block& block, std::int64_t index) {
  const Layer& layer = block.attention;
  layers::Scratch& scratch = memory_.attention;
  AttentionArguments arguments;
  arguments.mask = layer.config.mask;
  arguments.modifiers = layer.config.modifiers;
  const layers::Slab slab =
      layers::project(layer, input_.as_rows(), layers::Columns::packed, positions_.data(), scratch);
  layers::Input input{kCall, input_.as_rows(), false, {}, 1};
  const auto sequences = static_cast<std::int64_t>(tokens_.offsets.size()) - 1;
  const bool pooled = tokens_.pooled.cache != nullptr;
  const bool ragged = tokens_.caches == nullptr && (sequences > 1 || pooled);
  if (ragged) {
    const ConstView offsets(tokens_.offsets.data(), {sequences + 1});
    arguments.q_offsets = arguments.kv_offsets = offsets;
    input.ragged = true;
    input.offsets = door::integers_of(offsets);
    input.sequences = sequences;
  }
  layers::place_q(layer, slab, input, arguments);
  layers::place_kv(layer, slab, input, arguments);
  if (!tokens_.frames.empty()) {
    enter_frames(tokens_.frames[static_cast<std::size_t>(index)], own(arguments.q),
                 own(arguments.k), own(arguments.v), options_of(engine_));
  }
  if (pooled) read_pool(block, index, arguments);
  if (tokens_.caches != nullptr) {
    KvCache& cache = (*tokens_.caches)[static_cast<std::size_t>(index)];
    cache.append(arguments.k, arguments.v);
    arguments.k = arguments.v = {};
    if (base::is_code(cache.config().type)) {
      arguments.kv = cache.view();
    } else {  // as observers read them
      arguments.k = cache.keys();
      arguments.v = cache.values();
    }
    arguments.mask.align = Align::unstated;  // positions are the cache's
    arguments.q_start = ConstView(&tokens_.first, {1});
  }
  return arguments;
}

/// Writes the rows of each sequence into its pages, and reads all of them from there.
void Pass::read_pool(const Block& block, std::int64_t index, AttentionArguments& arguments) const {
  const PooledSequences& pool = tokens_.pooled;
  const LayerConfig& c = block.attention.config;
  for (std::size_t s = 0; s < pool.sequences.size(); ++s) {
    const std::int64_t first = tokens_.offsets[s], count = tokens_.offsets[s + 1] - first;
    [[maybe_unused]] const auto status = pool.cache->write(
        pool.sequences[s], index, pool.starts[s], layers::token_rows(arguments.k, first, count),
        layers::token_rows(arguments.v, first, count));
    POLYHEAD_DCHECK(status == PagedCache::Status::ok);  // the room was just made: no copies
  }
  arguments.k = arguments.v = arguments.kv_offsets = {};
  arguments.kv = pool.cache->view(index, *pool.batch);
  arguments.mask = c.mask;
  arguments.mask.align = Align::unstated;  // positions are the cache's
  arguments.q_start =
      ConstView(pool.starts.data(), {static_cast<std::int64_t>(pool.starts.size())});
}

void Pass::attend(const Block& block, std::int64_t index) {
  const Layer& layer = block.attention;
  layers::Scratch& scratch = memory_.attention;
  AttentionArguments arguments = prepare(block, index);
  const std::int64_t q_heads = layer.config.q_heads;
  const Matrix heads =
      matrix_in(scratch.heads, layer.activation, input_.rows, layer.concat_columns());
  const bool ragged = arguments.q_offsets.given();
  arguments.out = layers::heads_view(heads.data, heads.type, heads.as_rows(), heads.pitch, q_heads,
                                     layer.config.value_dim, ragged);
  if (options_.observer != nullptr) {
    auto* const lse = reinterpret_cast<float*>(memory_.lse.need(heads.rows * q_heads, 4));
    arguments.lse = ragged ? View(lse, {heads.rows, q_heads})
                           : View(lse, {std::int64_t{1}, heads.rows, q_heads});
    options_.observer->attending(index, tokens_.first, arguments);
  }
  layers::attend(layer, kCall, arguments, scratch);
  if (!tokens_.frames.empty()) {
    leave_frames(tokens_.frames[static_cast<std::size_t>(index)], arguments.out,
                 options_of(engine_));
  }
  if (options_.observer != nullptr) {
    options_.observer->attended({index, tokens_.first, arguments});
  }
  switch_off(index, heads, layer.config.value_dim);
  layers::project_out(layer, heads.as_rows(), result_.as_rows(), scratch);
}

void Pass::switch_off(std::int64_t layer, const Matrix& heads, std::int64_t value_dim) const {
  if (options_.heads == nullptr || options_.heads->off.empty()) return;
  const std::vector<bool>& off = options_.heads->off[static_cast<std::size_t>(layer)];
  const std::int64_t bytes = value_dim * layers::float_bytes(heads.type);
  for (std::size_t head = 0; head < off.size(); ++head) {
    if (!off[head]) continue;
    for (std::int64_t row = 0; row < heads.rows; ++row) {
      std::fill_n(heads.row(row) + static_cast<std::int64_t>(head) * bytes, bytes, std::byte{0});
    }
  }
}

void Pass::feed_forward(const FeedForward& network) {
  const std::int64_t width = network.up.out();
  const std::int64_t gate_columns = network.gate.out();
  const Matrix hidden =
      matrix_in(memory_.hidden, ElementType::float32, input_.rows, gate_columns + width);
  const Matrix first = hidden.from_column(0, gate_columns > 0 ? gate_columns : width);
  const Matrix up = hidden.from_column(gate_columns, width);
  const layers::Source source =
      layers::source_of(engine_, network.up, input_.as_rows(), memory_.attention.prepared);
  if (gate_columns > 0) {
    layers::multiply(
        engine_, {{&network.gate, source, first.as_rows()}, {&network.up, source, up.as_rows()}},
        memory_.attention.products);
  } else {
    layers::multiply(engine_, {{&network.up, source, up.as_rows()}}, memory_.attention.products);
  }
  const Matrix activated = matrix_in(memory_.activated, activations_, input_.rows, width);
  activate(engine_, config_.activation, first, gate_columns > 0 ? up : Matrix{}, activated);
  multiply(activated, network.down, result_);
}

}  // namespace polyhead::inline v0::models
