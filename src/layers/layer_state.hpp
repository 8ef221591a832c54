// What a layer and its workspace hold, and the stages every call is made of.
#pragma once

#include <optional>
#include <vector>

#include "attention/validate.hpp"
#include "layers/heads.hpp"
#include "layers/in_cache_rooms.hpp"
#include "layers/linear.hpp"
#include "layers/rows.hpp"
#include "polyhead/layer.h"
#include "position/rotation.hpp"

namespace polyhead::inline v0 {

namespace layers {

/// A layer, checked and packed.
struct Layer {
  LayerConfig config;  ///< zeros filled in
  ElementType activation = ElementType::float32;
  Engine engine;
  Linear q, kv, o;  ///< without out() where the layer has none
  std::vector<float> q_norm, k_norm;
  std::optional<position::Rotation> rotation;

  std::int64_t q_columns() const { return config.q_heads * config.head_dim; }
  std::int64_t k_columns() const { return config.kv_heads * config.head_dim; }
  std::int64_t v_columns() const { return config.kv_heads * config.value_dim; }
  std::int64_t packed_columns() const { return q_columns() + k_columns() + v_columns(); }
  std::int64_t concat_columns() const { return config.q_heads * config.value_dim; }
  std::int64_t output_columns() const { return o.out() > 0 ? o.out() : concat_columns(); }
  bool dresses() const { return config.qk_norm || rotation.has_value(); }
};

/// The buffers of one call in flight.
struct Scratch {
  Buffer prepared, prepared_context, packed, packed_context, wide, wide_context, heads,
      prepared_heads, result, products, dressing, attention, positions, context_positions, starts,
      latents, keys, values, held, pages, page_table, turns, apart;
  InCacheRooms in_cache;
  PagedBatch batch;
  std::vector<PagedCache::Extension> extensions;

  std::size_t bytes() const {
    std::size_t sum = in_cache.bytes() + batch.table.capacity() * sizeof(std::int32_t) +
                      batch.lengths.capacity() * sizeof(std::int64_t) +
                      extensions.capacity() * sizeof(PagedCache::Extension);
    for (const Buffer* buffer : {&prepared,   &prepared_context,
                                 &packed,     &packed_context,
                                 &wide,       &wide_context,
                                 &heads,      &prepared_heads,
                                 &result,     &products,
                                 &dressing,   &attention,
                                 &positions,  &context_positions,
                                 &starts,     &latents,
                                 &keys,       &values,
                                 &held,       &pages,
                                 &page_table, &turns,
                                 &apart}) {
      sum += buffer->bytes();
    }
    return sum;
  }
};

/// Throws unless config and weights fit together; gives the config with its zeros filled in.
LayerConfig check_layer(const LayerConfig& config, const LayerWeights& weights);

/// A checked array of rows: [batch, tokens, columns], or [tokens, columns] for a batch of one.
Rows rows_of(const char* call, const char* name, const ConstView& view, std::int64_t columns);

/// An output has a row for each of its input's.
void check_same_rows(const char* call, const char* name, const Rows& rows, const char* of_name,
                     const Rows& of);

/// Which heads a run of projected rows holds; with packed_still the q of packed is not turned.
enum class Columns { q, kv, packed, packed_still };

/// Projected rows, of the activation type.
struct Slab {
  std::byte* data = nullptr;
  std::int64_t pitch = 0;                 ///< bytes
  std::int64_t first_k = 0, first_v = 0;  ///< columns
  std::byte* wide = nullptr;              ///< the rows before rounding, float32, where it was done
  std::int64_t wide_pitch = 0;            ///< bytes
};

/// The first `rows` of `from`, `copies` of each side by side, as the type of `to`.
void copy_rows(const Engine& engine, const Rows& from, const Rows& to, std::int64_t rows,
               std::int64_t copies = 1);

/// Dense rows of a buffer, as many as `like` has.
Rows dense_rows(std::byte* data, ElementType type, const Rows& like, std::int64_t columns,
                std::int64_t pitch);

/// Rows of the activation type, and where their products go before they are dressed.
struct RowStage {
  Slab slab;
  Rows to;  ///< the slab's rows, or wide ones that dress_rows rounds into it
};

/// As many rows as `like` has, in `out`; products that will be dressed go into float32 rows.
RowStage open_rows(const Layer& layer, const Rows& like, std::int64_t columns, bool dresses,
                   Buffer& out, Buffer& wide);

/// Normalises and turns the heads of a stage; the parts and positions of `dressing` are set.
void dress_rows(const Layer& layer, const RowStage& stage, Dressing dressing, Buffer& tables);

/// Step 1: products, biases, normalisation and RoPE, into the scratch of x (or of the context).
/// `positions` holds one a row where the layer has RoPE.
Slab project(const Layer& layer, const Rows& x, Columns columns, const std::int64_t* positions,
             Scratch& scratch, bool context = false);

/// Step 5 into y, of any strides. `heads` are rows of the activation type or what the caller gave.
void project_out(const Layer& layer, const Rows& heads, const Rows& y, Scratch& scratch);

/// Step 3 by the layer's engine.
void attend(const Layer& layer, door::CallName name, const AttentionArguments& arguments,
            Scratch& scratch);

/// The layer's mask and modifiers, and what the call adds to them.
AttentionArguments arguments_of(const Layer& layer, const char* name, const LayerCall& call);

/// A view of heads in projected rows: [batch, tokens, heads, dim], or without batch when ragged.
View heads_view(std::byte* data, ElementType type, const Rows& like, std::int64_t pitch,
                std::int64_t heads, std::int64_t dim, bool ragged);

}  // namespace layers

struct LayerWorkspace::State : layers::Scratch {};
struct MultiHeadAttention::State : layers::Layer {};

/// Scratch of a call: the caller's workspace, or one for this call.
struct layers::CallScratch {
  explicit CallScratch(LayerWorkspace* given)
      : scratch(given != nullptr && given->state_ ? *given->state_ : own.emplace()) {}

  std::optional<Scratch> own;
  Scratch& scratch;
};

}  // namespace polyhead::inline v0
