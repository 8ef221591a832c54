#include "layers/finish.hpp"

#include <algorithm>

namespace polyhead::inline v0::layers {
namespace {

/// y by heads, for a layer without an output projection: attention writes it where it lies.
View by_heads(const Layer& layer, const Rows& y, bool ragged) {
  const LayerConfig& c = layer.config;
  const std::int64_t bytes = float_bytes(y.type);
  const std::int64_t step = y.column_step() / bytes;
  const std::int64_t token = y.token_stride / bytes;
  if (ragged) {
    return {
        y.data, y.type, {{y.tokens, c.q_heads, c.value_dim}, {token, c.value_dim * step, step}}};
  }
  return {y.data,
          y.type,
          {{y.batch, y.tokens, c.q_heads, c.value_dim},
           {y.batch_stride / bytes, token, c.value_dim * step, step}}};
}

/// Whether attention writes y itself: without an output projection, unless the concatenated heads
/// are rounded on the way there.
bool writes_y(const Layer& layer, const Rows& y) {
  return layer.o.out() == 0 &&
         (layer.activation == ElementType::float32 || y.type == layer.activation);
}

}  // namespace

Rows open_heads(const Layer& layer, const Input& input, AttentionArguments& arguments,
                const Rows& y, Scratch& scratch) {
  if (writes_y(layer, y)) {
    arguments.out = by_heads(layer, y, input.ragged);
    return y;
  }
  const std::int64_t pitch = row_pitch(layer.concat_columns() * float_bytes(layer.activation));
  const Rows heads = dense_rows(scratch.heads.need(y.count(), pitch), layer.activation, y,
                                layer.concat_columns(), pitch);
  arguments.out = heads_view(heads.data, heads.type, heads, pitch, layer.config.q_heads,
                             layer.config.value_dim, input.ragged);
  return heads;
}

void close_heads(const Layer& layer, const Input& input, const Rows& heads, const Rows& y,
                 Scratch& scratch) {
  if (writes_y(layer, y)) return;
  const std::int64_t rows = input.ragged ? input.offsets[input.sequences] : y.count();
  if (layer.o.out() == 0) return copy_rows(layer.engine, heads, y, rows);
  if (input.ragged) {
    const std::int64_t pitch = heads.token_stride;
    std::fill(heads.data + rows * pitch, heads.data + y.count() * pitch, std::byte{0});
  }
  project_out(layer, heads, y, scratch);
}

void finish(const Layer& layer, const Input& input, AttentionArguments& arguments, const Rows& y,
            Scratch& scratch) {
  const Rows heads = open_heads(layer, input, arguments, y, scratch);
  attend(layer, {input.name, "y"}, arguments, scratch);
  close_heads(layer, input, heads, y, scratch);
}

}  // namespace polyhead::inline v0::layers
