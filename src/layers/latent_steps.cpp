#include "layers/latent_steps.hpp"

#include <cstring>

#include "layers/latent_pages.hpp"

namespace polyhead::inline v0::layers {
namespace {

constexpr const char* kCall = "LatentAttention::forward";

/// Rows of the activation type in a slab.
Rows rows_in(const LatentStep& step, const Slab& slab, const Rows& like, std::int64_t columns) {
  return dense_rows(slab.data, step.layer.core.activation, like, columns, slab.pitch);
}

/// x times one matrix, dressed.
Slab product(const LatentStep& step, const Linear& linear, const Rows& x, const Dressing& dressing,
             Buffer& out) {
  Scratch& scratch = step.scratch;
  const RowStage stage = open_rows(step.layer.core, x, linear.out(), true, out, scratch.wide);
  if (x.count() == 0) return stage.slab;
  const Source source = source_of(step.engine(), linear, x, scratch.prepared);
  multiply(step.engine(), {{&linear, source, stage.to}}, scratch.products);
  dress_rows(step.layer.core, stage, dressing, scratch.dressing);
  return stage.slab;
}

/// Columns of rows that one product of each head takes or gives: head h's are `stride` apart.
struct HeadSlices {
  Rows rows;  ///< head 0's
  std::int64_t stride = 0;
  Rows head(std::int64_t h) const {
    Rows at = rows;
    at.data += h * stride;
    return at;
  }
};

/// One product a head, all shared out together.
void multiply_heads(const LatentStep& step, const std::vector<Linear>& linears, const HeadSlices& x,
                    const HeadSlices& y) {
  if (y.rows.count() == 0) return;
  std::vector<Product> products;
  products.reserve(linears.size());
  const auto heads = static_cast<std::int64_t>(linears.size());
  if (x.stride == 0) {  // all heads read the same rows
    const Source source = source_of(step.engine(), linears[0], x.rows, step.scratch.prepared_heads);
    for (std::int64_t h = 0; h < heads; ++h) {
      products.push_back({&linears[static_cast<std::size_t>(h)], source, y.head(h)});
    }
  } else if (lie_ready(step.engine(), linears[0], x.rows, x.stride)) {
    for (std::int64_t h = 0; h < heads; ++h) {
      products.push_back(
          {&linears[static_cast<std::size_t>(h)], {x.head(h).data, x.rows.step()}, y.head(h)});
    }
  } else {  // prepared as rows of (token, head)
    Rows split = x.rows;
    split.batch = x.rows.count();
    split.batch_stride = x.rows.step();
    split.tokens = heads;
    split.token_stride = x.stride;
    const Source source = source_of(step.engine(), linears[0], split, step.scratch.prepared_heads);
    for (std::int64_t h = 0; h < heads; ++h) {
      products.push_back({&linears[static_cast<std::size_t>(h)],
                          {source.data + h * source.row_bytes, heads * source.row_bytes},
                          y.head(h)});
    }
  }
  multiply(step.engine(), products, step.scratch.products);
}

/// Copies `count` columns from each row to each head's place in the rows of `to`.
void copy_to_heads(const LatentStep& step, const HeadSlices& from, const HeadSlices& to,
                   std::int64_t count) {
  const auto bytes = static_cast<std::size_t>(count * step.bytes());
  if (bytes == 0) return;
  share_out_rows(step.engine().crew, to.rows.count(), [&](std::int64_t row, int) {
    for (std::int64_t h = 0; h < step.config().heads; ++h) {
      std::memcpy(to.rows.row(row) + h * to.stride, from.rows.row(row) + h * from.stride, bytes);
    }
  });
}

HeadSlices slices(const LatentStep& step, const Rows& rows, std::int64_t first, std::int64_t count,
                  std::int64_t stride) {
  Rows part = rows;
  part.data += first * step.bytes();
  part.columns = count;
  return {part, stride * step.bytes()};
}

View by_heads(const Rows& rows, std::int64_t heads, std::int64_t dim, bool ragged) {
  return heads_view(rows.data, rows.type, rows, rows.step(), heads, dim, ragged);
}

/// Rows of `columns` for every token of x, in `buffer`.
Rows rows_for(const LatentStep& step, const Rows& like, std::int64_t columns, Buffer& buffer) {
  const std::int64_t pitch = row_pitch(columns * step.bytes());
  return dense_rows(buffer.need(like.count(), pitch), step.layer.core.activation, like, columns,
                    pitch);
}

/// Rows after the last sequence of a ragged call belong to none: their heads are zeros.
void clear_rest(const LatentStep& step, const Rows& heads) {
  if (!step.input.ragged) return;
  const std::int64_t end = step.input.offsets[step.input.sequences] * heads.step();
  const std::int64_t rest = heads.count() * heads.step() - end;
  if (rest > 0) std::memset(heads.data + end, 0, static_cast<std::size_t>(rest));
}

/// Attention of kv_rank + rope_dim over the latents as they lie, into the heads' values.
void attend_absorbed(const LatentStep& step, const Slab& q, const LatentHeld& held,
                     AttentionArguments& arguments, const Rows& heads) {
  const LatentConfig& c = step.config();
  const Rows& like = step.input.rows;
  const Rows from = rows_in(step, q, like, c.heads * step.query_dim());
  const Rows to = rows_for(step, like, c.heads * step.latent_dim(), step.scratch.keys);
  multiply_heads(step, step.layer.absorb_key, slices(step, from, 0, c.nope_dim, step.query_dim()),
                 slices(step, to, 0, c.kv_rank, step.latent_dim()));
  copy_to_heads(step, slices(step, from, c.nope_dim, c.rope_dim, step.query_dim()),
                slices(step, to, c.kv_rank, c.rope_dim, step.latent_dim()), c.rope_dim);

  const Rows sums = rows_for(step, like, c.heads * c.kv_rank, step.scratch.values);
  arguments.q = by_heads(to, c.heads, step.latent_dim(), step.input.ragged);
  if (held.view) {
    arguments.kv = *held.view;
  } else {
    arguments.k = latent_keys(held, step.latent_dim());
    arguments.v = latent_keys(held, c.kv_rank);
  }
  arguments.out = by_heads(sums, c.heads, c.kv_rank, step.input.ragged);
  attend(step.layer.core, kCall, arguments, step.scratch);
  clear_rest(step, sums);
  multiply_heads(step, step.layer.to_value, slices(step, sums, 0, c.kv_rank, c.kv_rank),
                 slices(step, heads, 0, c.value_dim, c.value_dim));
}

/// Attention of nope_dim + rope_dim over keys and values made from the latents.
void attend_expanded(const LatentStep& step, const Slab& q, const LatentHeld& held,
                     AttentionArguments& arguments, const Rows& heads) {
  const LatentConfig& c = step.config();
  const Rows keys = rows_for(step, held.rows, c.heads * step.query_dim(), step.scratch.keys);
  const Rows values = rows_for(step, held.rows, c.heads * c.value_dim, step.scratch.values);
  const HeadSlices latent = slices(step, held.rows, 0, c.kv_rank, 0);
  multiply_heads(step, step.layer.to_key, latent,
                 slices(step, keys, 0, c.nope_dim, step.query_dim()));
  copy_to_heads(step, slices(step, held.rows, c.kv_rank, c.rope_dim, 0),
                slices(step, keys, c.nope_dim, c.rope_dim, step.query_dim()), c.rope_dim);
  multiply_heads(step, step.layer.to_value, latent,
                 slices(step, values, 0, c.value_dim, c.value_dim));

  arguments.q = by_heads(rows_in(step, q, step.input.rows, c.heads * step.query_dim()), c.heads,
                         step.query_dim(), step.input.ragged);
  const View k = by_heads(keys, c.heads, step.query_dim(), held.ragged);
  const View v = by_heads(values, c.heads, c.value_dim, held.ragged);
  if (held.view) {
    arguments.kv = *held.view;
    arguments.kv.k = k;
    arguments.kv.v = v;
  } else {
    arguments.k = k;
    arguments.v = v;
  }
  arguments.out = by_heads(heads, c.heads, c.value_dim, step.input.ragged);
  attend(step.layer.core, kCall, arguments, step.scratch);
  clear_rest(step, heads);
}

}  // namespace

Slab queries_of(const LatentStep& step) {
  const LatentConfig& c = step.config();
  Dressing turned;
  turned.positions = step.positions;
  turned.parts[0] = {c.nope_dim, c.heads, c.rope_dim, nullptr, step.query_dim(), true};
  const Rows& x = step.input.rows;
  if (c.q_rank == 0) return product(step, step.layer.q, x, turned, step.scratch.packed);
  Dressing normed;
  normed.positions = step.positions;
  normed.parts[0] = {0, 1, c.q_rank, step.layer.q_norm.data(), 0, false};
  const Slab low = product(step, step.layer.q_down, x, normed, step.scratch.latents);
  return product(step, step.layer.q, rows_in(step, low, x, c.q_rank), turned, step.scratch.packed);
}

Rows latents_of(const LatentStep& step) {
  const LatentConfig& c = step.config();
  Dressing dressing;
  dressing.positions = step.positions;
  dressing.parts[0] = {0, 1, c.kv_rank, step.layer.kv_norm.data(), 0, false};
  dressing.parts[1] = {c.kv_rank, 1, c.rope_dim, nullptr, 0, true};
  const Rows& x = step.input.rows;
  return rows_in(step, product(step, step.layer.kv_down, x, dressing, step.scratch.packed_context),
                 x, step.latent_dim());
}

ConstView latent_keys(const LatentHeld& held, std::int64_t columns) {
  const std::int64_t bytes = float_bytes(held.rows.type);
  const std::int64_t token = held.rows.token_stride / bytes;
  if (held.ragged) {
    return {held.rows.data,
            held.rows.type,
            {{held.rows.tokens, std::int64_t{1}, columns}, {token, columns, std::int64_t{1}}}};
  }
  return {held.rows.data,
          held.rows.type,
          {{held.rows.batch, held.rows.tokens, std::int64_t{1}, columns},
           {held.rows.batch_stride / bytes, token, columns, std::int64_t{1}}}};
}

LatentHeld held_in(const KvCache& cache, LatentForm form) {
  if (form == LatentForm::absorbed) return {{}, false, cache.view()};
  const ConstView keys = cache.keys();
  const std::int64_t bytes = float_bytes(keys.type);
  LatentHeld held;
  held.view.emplace().lengths = cache.lengths();
  held.rows.data = const_cast<std::byte*>(static_cast<const std::byte*>(keys.data));  // only read
  held.rows.type = keys.type;
  held.rows.batch = keys.layout.extents[0];
  held.rows.tokens = keys.layout.extents[1];
  held.rows.columns = keys.layout.extents[3];
  held.rows.batch_stride = keys.layout.strides[0] * bytes;
  held.rows.token_stride = keys.layout.strides[1] * bytes;
  held.rows.column_stride = bytes;
  return held;
}

LatentHeld held_in(const LatentStep& step, const KvView& kv, const kernels::AttendCall& resolved,
                   LatentForm form) {
  if (form == LatentForm::absorbed) return {{}, false, kv};
  const LatentPages pages =
      gather_latents(step.engine(), resolved, step.layer.core.activation, step.scratch);
  KvView view;
  view.page_table = pages.page_table;
  view.lengths = kv.lengths;
  view.oldest = kv.oldest;
  view.first_tokens = kv.first_tokens;
  return {pages.rows, false, view};
}

void foresee_latent(const LatentStep& step, const Slab& q, AttentionArguments arguments,
                    const std::int64_t* ends) {
  const LatentConfig& c = step.config();
  const Rows& x = step.input.rows;
  const Rows from = rows_in(step, q, x, c.heads * step.query_dim());
  const Rows heads = rows_for(step, x, c.heads * c.value_dim, step.scratch.heads);
  arguments.q = by_heads(from, c.heads, step.query_dim(), step.input.ragged);
  arguments.out = by_heads(heads, c.heads, c.value_dim, step.input.ragged);
  foresee(step.layer.core, step.input, arguments, ends);
}

void finish_latent(const LatentStep& step, LatentForm form, const Slab& q, const LatentHeld& held,
                   AttentionArguments& arguments, const Rows& y) {
  const LatentConfig& c = step.config();
  const Rows heads = rows_for(step, step.input.rows, c.heads * c.value_dim, step.scratch.heads);
  if (form == LatentForm::absorbed) {
    attend_absorbed(step, q, held, arguments, heads);
  } else {
    attend_expanded(step, q, held, arguments, heads);
  }
  project_out(step.layer.core, heads, y, step.scratch);
}

}  // namespace polyhead::inline v0::layers
