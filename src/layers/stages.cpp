// The stages that every call of a layer is made of, on checked arrays.

#include "attention/schedule.hpp"
#include "attention/validate.hpp"
#include "base/refuse.hpp"
#include "layers/layer_state.hpp"

namespace polyhead::inline v0::layers {
namespace {

/// Columns [first, first + count) of rows, as rows.
Rows columns_of(const Rows& rows, std::int64_t first, std::int64_t count) {
  Rows part = rows;
  part.data += first * rows.column_stride;
  part.columns = count;
  return part;
}

/// The heads among `columns` that are normalised or turned.
void place_heads(const Layer& layer, Columns columns, Dressing& dressing) {
  const LayerConfig& c = layer.config;
  const float* const q_norm = c.qk_norm ? layer.q_norm.data() : nullptr;
  const float* const k_norm = c.qk_norm ? layer.k_norm.data() : nullptr;
  if (columns != Columns::kv) {
    dressing.parts[0] = {0, c.q_heads, c.head_dim, q_norm, 0, columns != Columns::packed_still};
  }
  if (columns != Columns::q) {
    const std::int64_t first = columns == Columns::kv ? 0 : layer.q_columns();
    dressing.parts[1] = {first, c.kv_heads, c.head_dim, k_norm};
  }
}

std::int64_t count_of(const Layer& layer, Columns columns) {
  switch (columns) {
    case Columns::q:
      return layer.q_columns();
    case Columns::kv:
      return layer.k_columns() + layer.v_columns();
    default:
      return layer.packed_columns();
  }
}

/// The products, or the copies that stand for them, into float32 or activation rows.
void fill(const Layer& layer, const Rows& x, Columns columns, const Rows& to, Scratch& scratch,
          Buffer& prepared) {
  if (!layer.config.use_projections) {
    // q is x itself, and k and v are x or the context: textbooks begin so.
    return copy_rows(layer.engine, x, to, x.count(),
                     columns == Columns::q ? 1 : (columns == Columns::kv ? 2 : 3));
  }
  const Linear& first = columns == Columns::kv ? layer.kv : layer.q;
  const Source source = source_of(layer.engine, first, x, prepared);
  if (columns == Columns::q || columns == Columns::kv) {
    return multiply(layer.engine, {{&first, source, to}}, scratch.products);
  }
  // Both matrices take the same source: their inputs and types are equal.
  const std::int64_t q = layer.q_columns();
  multiply(layer.engine,
           {{&layer.q, source, columns_of(to, 0, q)},
            {&layer.kv, source, columns_of(to, q, to.columns - q)}},
           scratch.products);
}

}  // namespace

void copy_rows(const Engine& engine, const Rows& from, const Rows& to, std::int64_t rows,
               std::int64_t copies) {
  const std::int64_t step = from.column_step();
  const std::int64_t to_step = to.column_step();
  share_out_rows(engine.crew, rows, [&](std::int64_t row, int) {
    constexpr std::int64_t kPiece = 256;
    float wide[kPiece];
    for (std::int64_t i = 0; i < from.columns; i += kPiece) {
      const std::int64_t n = std::min(kPiece, from.columns - i);
      engine.gemm->widen_row(wide, from.row(row) + i * step, from.type, step, n);
      for (std::int64_t copy = 0; copy < copies; ++copy) {
        engine.gemm->narrow_row(to.row(row) + (copy * from.columns + i) * to_step, wide, to.type,
                                to_step, n);
      }
    }
  });
}

Rows dense_rows(std::byte* data, ElementType type, const Rows& like, std::int64_t columns,
                std::int64_t pitch) {
  return {
      data, type, like.batch, like.tokens, columns, like.tokens * pitch, pitch, float_bytes(type)};
}

RowStage open_rows(const Layer& layer, const Rows& like, std::int64_t columns, bool dresses,
                   Buffer& out, Buffer& wide) {
  RowStage stage;
  stage.slab.pitch = row_pitch(columns * float_bytes(layer.activation));
  stage.slab.data = out.need(like.count(), stage.slab.pitch);
  stage.to = dense_rows(stage.slab.data, layer.activation, like, columns, stage.slab.pitch);
  // Heads are normalised and turned in float32, before any rounding.
  if (dresses && layer.activation != ElementType::float32) {
    const std::int64_t pitch = row_pitch(columns * 4);
    stage.to =
        dense_rows(wide.need(like.count(), pitch), ElementType::float32, like, columns, pitch);
    stage.slab.wide = stage.to.data;
    stage.slab.wide_pitch = pitch;
  }
  return stage;
}

void dress_rows(const Layer& layer, const RowStage& stage, Dressing dressing, Buffer& tables) {
  dressing.rows = reinterpret_cast<float*>(stage.to.data);
  dressing.pitch = stage.to.token_stride;
  dressing.count = stage.to.count();
  dressing.columns = stage.to.columns;
  dressing.norm_eps = layer.config.norm_eps;
  dressing.rotation = layer.rotation ? &*layer.rotation : nullptr;
  dressing.narrow = stage.to.data != stage.slab.data ? stage.slab.data : nullptr;
  dressing.narrow_pitch = stage.slab.pitch;
  dress(layer.engine, dressing, tables);
}

Slab project(const Layer& layer, const Rows& x, Columns columns, const std::int64_t* positions,
             Scratch& scratch, bool context) {
  RowStage stage = open_rows(layer, x, count_of(layer, columns), layer.dresses(),
                             context ? scratch.packed_context : scratch.packed,
                             context ? scratch.wide_context : scratch.wide);
  stage.slab.first_k = columns == Columns::kv ? 0 : layer.q_columns();
  stage.slab.first_v = stage.slab.first_k + layer.k_columns();
  if (x.count() == 0) return stage.slab;
  fill(layer, x, columns, stage.to, scratch, context ? scratch.prepared_context : scratch.prepared);
  if (!layer.dresses()) return stage.slab;
  Dressing dressing;
  dressing.positions = positions;
  place_heads(layer, columns, dressing);
  dress_rows(layer, stage, dressing, scratch.dressing);
  return stage.slab;
}

void project_out(const Layer& layer, const Rows& heads, const Rows& y, Scratch& scratch) {
  if (y.count() == 0) return;
  const Source source = source_of(layer.engine, layer.o, heads, scratch.prepared_heads);
  if (y.even()) return multiply(layer.engine, {{&layer.o, source, y}}, scratch.products);
  // Rows at two distances: through rows at one.
  const std::int64_t pitch = row_pitch(y.columns * 4);
  const Rows even =
      dense_rows(scratch.result.need(y.count(), pitch), ElementType::float32, y, y.columns, pitch);
  multiply(layer.engine, {{&layer.o, source, even}}, scratch.products);
  const std::int64_t step = y.column_step();
  share_out_rows(layer.engine.crew, y.count(), [&](std::int64_t row, int) {
    layer.engine.gemm->narrow_row(y.row(row), reinterpret_cast<const float*>(even.row(row)), y.type,
                                  step, y.columns);
  });
}

AttentionArguments arguments_of(const Layer& layer, const char* name, const LayerCall& call) {
  AttentionArguments arguments;
  arguments.mask = layer.config.mask & call.mask;
  arguments.modifiers = layer.config.modifiers;
  if (call.bias.given()) {
    if (arguments.modifiers.bias.given()) {
      base::refuse(name, "bias is given, but the layer's modifiers have one already");
    }
    arguments.modifiers.bias = call.bias;
  }
  arguments.lse = call.lse;
  arguments.statistics = call.statistics;
  return arguments;
}

void attend(const Layer& layer, door::CallName name, const AttentionArguments& arguments,
            Scratch& scratch) {
  const kernels::AttendCall call = door::resolve(arguments, name);
  const Engine& engine = layer.engine;
  const auto turns_bytes = static_cast<std::int64_t>(Turns::room_bytes(call));
  const Schedule schedule =
      make_schedule(call, *engine.backend, engine.crew.workers, scratch.turns.need(turns_bytes));
  const std::size_t bytes = scratch_bytes(call, *engine.backend, schedule.workers,
                                          schedule.turns.share(), schedule.split_major);
  run_schedule(call, schedule, *engine.crew.executor,
               scratch.attention.need(static_cast<std::int64_t>(bytes)));
}

View heads_view(std::byte* data, ElementType type, const Rows& like, std::int64_t pitch,
                std::int64_t heads, std::int64_t dim, bool ragged) {
  const std::int64_t row = pitch / float_bytes(type);
  if (ragged) return {data, type, {{like.tokens, heads, dim}, {row, dim, std::int64_t{1}}}};
  return {data,
          type,
          {{like.batch, like.tokens, heads, dim}, {like.tokens * row, row, dim, std::int64_t{1}}}};
}

}  // namespace polyhead::inline v0::layers
