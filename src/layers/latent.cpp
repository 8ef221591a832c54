// LatentAttention: the latents, and attention over them in either form.
#include "polyhead/latent.h"

#include <cstring>
#include <optional>

#include "base/element.hpp"
#include "base/refuse.hpp"
#include "layers/calls.hpp"
#include "layers/latent_held.hpp"
#include "layers/latent_pages.hpp"
#include "layers/latent_state.hpp"

namespace polyhead::inline v0 {
namespace {

using layers::Buffer;
using layers::Dressing;
using layers::Input;
using layers::Linear;
using layers::Product;
using layers::Rows;
using layers::RowStage;
using layers::Scratch;
using layers::Slab;
using layers::Source;
using State = layers::Latent;

constexpr const char* kCall = "LatentAttention::forward";

/// What every step of one call needs.
struct Step {
  const State& layer;
  const Input& input;
  const std::int64_t* positions;
  Scratch& scratch;

  const LatentConfig& config() const { return layer.config; }
  const layers::Engine& engine() const { return layer.core.engine; }
  std::int64_t bytes() const { return layers::float_bytes(layer.core.activation); }
  std::int64_t query_dim() const { return config().nope_dim + config().rope_dim; }
  std::int64_t latent_dim() const { return config().kv_rank + config().rope_dim; }
};

/// Rows of the activation type in a slab.
Rows rows_in(const Step& step, const Slab& slab, const Rows& like, std::int64_t columns) {
  return layers::dense_rows(slab.data, step.layer.core.activation, like, columns, slab.pitch);
}

/// x times one matrix, dressed.
Slab product(const Step& step, const Linear& linear, const Rows& x, const Dressing& dressing,
             Buffer& out) {
  Scratch& scratch = step.scratch;
  const RowStage stage =
      layers::open_rows(step.layer.core, x, linear.out(), true, out, scratch.wide);
  if (x.count() == 0) return stage.slab;
  const Source source = layers::source_of(step.engine(), linear, x, scratch.prepared);
  layers::multiply(step.engine(), {{&linear, source, stage.to}}, scratch.products);
  layers::dress_rows(step.layer.core, stage, dressing, scratch.dressing);
  return stage.slab;
}

/// q of every head, [q_nope, rope(q_rope)].
Slab queries(const Step& step) {
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

/// [norm(c), rope(r)] of every token of x: what a cache holds.
Rows latents_of(const Step& step) {
  const LatentConfig& c = step.config();
  Dressing dressing;
  dressing.positions = step.positions;
  dressing.parts[0] = {0, 1, c.kv_rank, step.layer.kv_norm.data(), 0, false};
  dressing.parts[1] = {c.kv_rank, 1, c.rope_dim, nullptr, 0, true};
  const Rows& x = step.input.rows;
  return rows_in(step, product(step, step.layer.kv_down, x, dressing, step.scratch.packed_context),
                 x, step.latent_dim());
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
void multiply_heads(const Step& step, const std::vector<Linear>& linears, const HeadSlices& x,
                    const HeadSlices& y) {
  if (y.rows.count() == 0) return;
  std::vector<Product> products;
  products.reserve(linears.size());
  const auto heads = static_cast<std::int64_t>(linears.size());
  if (x.stride == 0) {  // all heads read the same rows
    const Source source =
        layers::source_of(step.engine(), linears[0], x.rows, step.scratch.prepared_heads);
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
    const Source source =
        layers::source_of(step.engine(), linears[0], split, step.scratch.prepared_heads);
    for (std::int64_t h = 0; h < heads; ++h) {
      products.push_back({&linears[static_cast<std::size_t>(h)],
                          {source.data + h * source.row_bytes, heads * source.row_bytes},
                          y.head(h)});
    }
  }
  layers::multiply(step.engine(), products, step.scratch.products);
}

/// Copies `count` columns from each row to each head's place in the rows of `to`.
void copy_to_heads(const Step& step, const HeadSlices& from, const HeadSlices& to,
                   std::int64_t count) {
  const auto bytes = static_cast<std::size_t>(count * step.bytes());
  if (bytes == 0) return;
  layers::share_out_rows(step.engine().crew, to.rows.count(), [&](std::int64_t row, int) {
    for (std::int64_t h = 0; h < step.config().heads; ++h) {
      std::memcpy(to.rows.row(row) + h * to.stride, from.rows.row(row) + h * from.stride, bytes);
    }
  });
}

HeadSlices slices(const Step& step, const Rows& rows, std::int64_t first, std::int64_t count,
                  std::int64_t stride) {
  Rows part = rows;
  part.data += first * step.bytes();
  part.columns = count;
  return {part, stride * step.bytes()};
}

View by_heads(const Rows& rows, std::int64_t heads, std::int64_t dim, bool ragged) {
  return layers::heads_view(rows.data, rows.type, rows, rows.step(), heads, dim, ragged);
}

/// The latents that attention reads: this call's, or a cache's.
struct Held {
  Rows rows;  ///< [batch, kv_len] of kv_rank + rope_dim columns, of the activation type
  bool ragged = false;
  /// A cache's: what the absorbed form reads, of any type and without `rows`; in the expanded form
  /// the table and lengths of what is made of `rows`.
  std::optional<KvView> view{};
};

ConstView latent_keys(const Held& held, std::int64_t columns) {
  const std::int64_t bytes = layers::float_bytes(held.rows.type);
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

/// Rows of `columns` for every token of x, in `buffer`.
Rows rows_for(const Step& step, const Rows& like, std::int64_t columns, Buffer& buffer) {
  const std::int64_t pitch = layers::row_pitch(columns * step.bytes());
  return layers::dense_rows(buffer.need(like.count(), pitch), step.layer.core.activation, like,
                            columns, pitch);
}

/// Rows after the last sequence of a ragged call belong to none: their heads are zeros.
void clear_rest(const Step& step, const Rows& heads) {
  if (!step.input.ragged) return;
  const std::int64_t end = step.input.offsets[step.input.sequences] * heads.step();
  const std::int64_t rest = heads.count() * heads.step() - end;
  if (rest > 0) std::memset(heads.data + end, 0, static_cast<std::size_t>(rest));
}

/// Attention of kv_rank + rope_dim over the latents as they lie, into the heads' values.
void attend_absorbed(const Step& step, const Slab& q, const Held& held,
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
  layers::attend(step.layer.core, kCall, arguments, step.scratch);
  clear_rest(step, sums);
  multiply_heads(step, step.layer.to_value, slices(step, sums, 0, c.kv_rank, c.kv_rank),
                 slices(step, heads, 0, c.value_dim, c.value_dim));
}

/// Attention of nope_dim + rope_dim over keys and values made from the latents.
void attend_expanded(const Step& step, const Slab& q, const Held& held,
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
  layers::attend(step.layer.core, kCall, arguments, step.scratch);
  clear_rest(step, heads);
}

/// Steps 3 to 5.
void finish(const Step& step, LatentForm form, const Slab& q, const Held& held,
            AttentionArguments& arguments, const Rows& y) {
  const LatentConfig& c = step.config();
  const Rows heads = rows_for(step, step.input.rows, c.heads * c.value_dim, step.scratch.heads);
  if (form == LatentForm::absorbed) {
    attend_absorbed(step, q, held, arguments, heads);
  } else {
    attend_expanded(step, q, held, arguments, heads);
  }
  layers::project_out(step.layer.core, heads, y, step.scratch);
}

Held held_in(const KvCache& cache, LatentForm form) {
  if (form == LatentForm::absorbed) return {{}, false, cache.view()};
  const ConstView keys = cache.keys();
  const std::int64_t bytes = layers::float_bytes(keys.type);
  Held held;
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

/// What attention reads of a resolved view in a form.
Held held_in(const Step& step, const KvView& kv, const kernels::AttendCall& resolved,
             LatentForm form) {
  if (form == LatentForm::absorbed) return {{}, false, kv};
  const layers::LatentPages pages = layers::gather_latents(step.engine(), resolved, step.scratch);
  KvView view;
  view.page_table = pages.page_table;
  view.lengths = kv.lengths;
  view.oldest = kv.oldest;
  view.first_tokens = kv.first_tokens;
  return {pages.rows, false, view};
}

/// Copies rows of the activation type to rows of any.
void copy_latents(const Step& step, const Rows& from, const Rows& to) {
  const std::int64_t bytes = step.bytes();
  layers::share_out_rows(step.engine().crew, from.count(), [&](std::int64_t row, int) {
    for (std::int64_t i = 0; i < from.columns; ++i) {
      base::store_float32(to.row(row) + i * to.column_stride, to.type,
                          base::load_float32(from.row(row) + i * bytes, from.type));
    }
  });
}

}  // namespace

LatentAttention::LatentAttention(LatentAttention&&) noexcept = default;
LatentAttention& LatentAttention::operator=(LatentAttention&&) noexcept = default;
LatentAttention::~LatentAttention() = default;

const LatentConfig& LatentAttention::config() const { return state_->config; }
ElementType LatentAttention::activation_type() const { return state_->core.activation; }

KvCacheConfig LatentAttention::cache_config(std::int64_t batch, std::int64_t capacity,
                                            bool growing) const {
  const LatentConfig& c = state_->config;
  return {batch,   1,   c.kv_rank + c.rope_dim, c.kv_rank, state_->core.activation, capacity,
          growing, true};
}

void LatentAttention::forward(ConstView x, View y, const LayerCall& call) const {
  forward(x, y, LatentForm::configured, call);
}

void LatentAttention::forward(ConstView x, View y, LatentForm form, const LayerCall& call) const {
  const State& layer = *state_;
  form = layers::form_of(layer, form);
  layers::require_self(layer.core, kCall, call);
  const Input input = layers::input_of(layer.core, kCall, x, call);
  layers::check_positions(layer.core, input, call.positions, x.layout.axes == 2);
  const Rows to = layers::output_of(layer.core, input, y, call);
  std::optional<Scratch> own;
  Scratch& scratch =
      layers::scratch_of(call.workspace ? call.workspace->state_.get() : nullptr, own);
  AttentionArguments arguments = layers::arguments_of(layer.core, kCall, call);
  arguments.mask = arguments.mask & layers::padding(call.lengths, call.lengths);
  arguments.q_offsets = arguments.kv_offsets = call.offsets;
  const Step step{
      layer, input,
      layers::positions_of(layer.core, input, call.positions, nullptr, scratch.positions), scratch};
  const Slab q = queries(step);
  const Held held{latents_of(step), input.ragged};
  finish(step, form, q, held, arguments, to);
}

void LatentAttention::forward(ConstView x, KvCache& cache, View y, const LayerCall& call) const {
  forward(x, cache, y, LatentForm::configured, call);
}

void LatentAttention::forward(ConstView x, KvCache& cache, View y, LatentForm form,
                              const LayerCall& call) const {
  const State& layer = *state_;
  form = layers::form_of(layer, form);
  layers::require_self(layer.core, kCall, call);
  const Input input = layers::input_of(layer.core, kCall, x, call);
  layers::check_cache(layer, input, cache, form);
  layers::check_positions(layer.core, input, call.positions, x.layout.axes == 2);
  const Rows to = layers::output_of(layer.core, input, y, call);
  std::optional<Scratch> own;
  Scratch& scratch =
      layers::scratch_of(call.workspace ? call.workspace->state_.get() : nullptr, own);
  AttentionArguments arguments = layers::arguments_of(layer.core, kCall, call);
  layers::refuse_key_lengths(kCall, arguments.mask, "the cache");
  const layers::Growth growth = layers::growth_after(
      input, call.lengths, scratch.starts, [&](std::int64_t b) { return cache.length(b); });
  layers::check_room(input, cache, growth);
  const Step step{
      layer, input,
      layers::positions_of(layer.core, input, call.positions, growth.starts, scratch.positions),
      scratch};
  const Slab q = queries(step);
  const Held fresh{latents_of(step), input.ragged};

  layers::Appended appended(cache, growth.starts);
  layers::append_rows(cache, call, latent_keys(fresh, step.latent_dim()), {});
  arguments.mask = arguments.mask & layers::padding({}, call.lengths);
  arguments.mask.align = Align::unstated;  // positions are the cache's
  arguments.q_offsets = call.offsets;
  arguments.q_start = ConstView(growth.starts, {input.sequences});
  finish(step, form, q, held_in(cache, form), arguments, to);
  appended.keep();
}

void LatentAttention::latents(ConstView x, View rows, ConstView positions,
                              LayerWorkspace* workspace) const {
  constexpr const char* kName = "LatentAttention::latents";
  const State& layer = *state_;
  const Input input = layers::input_of(layer.core, kName, x, {});
  if (layer.core.rotation && !positions.given()) {
    base::refuse(kName,
                 "positions are not given, expected those of x in its sequences: the layer "
                 "has rope");
  }
  layers::check_positions(layer.core, input, positions, x.layout.axes == 2);
  const Rows to =
      layers::rows_of(kName, "rows", rows, layer.config.kv_rank + layer.config.rope_dim);
  if (to.batch != input.rows.batch || to.tokens != input.rows.tokens) {
    base::refuse(kName, "rows has batch ", to.batch, " and tokens ", to.tokens,
                 ", expected those of x, ", input.rows.batch, " and ", input.rows.tokens);
  }
  door::check_writable(kName, door::footprint_of(kName, "rows", rows), nullptr, 0);
  std::optional<Scratch> own;
  Scratch& scratch = layers::scratch_of(workspace ? workspace->state_.get() : nullptr, own);
  const Step step{layer, input,
                  layers::positions_of(layer.core, input, positions, nullptr, scratch.positions),
                  scratch};
  copy_latents(step, latents_of(step), to);
}

void LatentAttention::forward(ConstView x, const KvView& kv, View y, const LayerCall& call) const {
  forward(x, kv, y, LatentForm::configured, call);
}

void LatentAttention::forward(ConstView x, const KvView& kv, View y, LatentForm form,
                              const LayerCall& call) const {
  const State& layer = *state_;
  form = layers::form_of(layer, form);
  const Input input = layers::input_of(layer.core, kCall, x, call);
  if (call.context_lengths.given())
    base::refuse(kCall, "context_lengths are given, but kv has lengths of its own");
  door::Inputs read;
  const kernels::AttendCall resolved = layers::resolve_latents(layer, input, kv, form, read);
  layers::check_positions(layer.core, input, call.positions, x.layout.axes == 2);
  const Rows to = layers::output_of(layer.core, input, y, call);
  layers::check_outputs(kCall, "y", y, call, read);
  std::optional<Scratch> own;
  Scratch& scratch =
      layers::scratch_of(call.workspace ? call.workspace->state_.get() : nullptr, own);
  AttentionArguments arguments = layers::arguments_of(layer.core, kCall, call);
  layers::refuse_key_lengths(kCall, arguments.mask, "kv");
  const std::int64_t* const starts =
      layers::starts_in(input, resolved, call.lengths, scratch.starts);
  arguments.mask = arguments.mask & layers::padding({}, call.lengths);
  arguments.mask.align = Align::unstated;  // positions are the view's
  arguments.q_offsets = call.offsets;
  arguments.q_start = ConstView(starts, {input.sequences});
  const Step step{
      layer, input,
      layers::positions_of(layer.core, input, call.positions, starts, scratch.positions), scratch};
  const Slab q = queries(step);
  finish(step, form, q, held_in(step, kv, resolved, form), arguments, to);
}

}  // namespace polyhead::inline v0
