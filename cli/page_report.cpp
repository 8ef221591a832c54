#include "cli/page_report.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <set>
#include <utility>

#include "base/element.hpp"
#include "cli/model_options.hpp"
#include "polyhead/version.h"

namespace polyhead::cli {
namespace {

constexpr std::int64_t kThumbBins = 48, kMapBins = 128;
constexpr std::int64_t kFewFloorTokens = 4096;  // above, one entry a row is floor enough
constexpr std::int64_t kStepHeadsARole = 3;
constexpr std::int64_t kFrameBytes = 600000;  // script, style, measures of a thousand heads
constexpr std::int64_t kTokenBytes = 24;      // of one token in meta, escaped

std::int64_t in_base64(std::int64_t bytes) { return (bytes + 2) / 3 * 4; }

float element(const ConstView& view, std::int64_t token, std::int64_t head, std::int64_t c) {
  const auto& strides = view.layout.strides;
  const std::int64_t at = token * strides[1] + head * strides[2] + c * strides[3];
  return base::load_float32(
      static_cast<const std::byte*>(view.data) + at * element_bytes(view.type), view.type);
}

/// Of a call that states none.
float default_scale(std::int64_t head_dim) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
}

void put_half(std::string& to, float value) {
  const std::uint16_t bits = base::float32_to_float16_bits(value);
  to.append(reinterpret_cast<const char*>(&bits), sizeof bits);
}

}  // namespace

/// One layer's rows, sizes of values, and steps.
class PageReport::Layer : public HeadRowVisitor {
 public:
  Layer(const models::LayerGeometry& geometry, std::int64_t tokens, bool causal,
        const std::vector<bool>& chosen, bool full, bool steps)
      : geometry_(geometry), chosen_(chosen), full_(full), steps_(steps) {
    sparse = !full;
    if (tokens > kFewFloorTokens) least = 1;
    const auto heads = static_cast<std::size_t>(geometry.q_heads);
    if (full) {
      full_rows.assign(heads, FullRows(tokens, tokens, causal));
    } else {
      sparse_rows.assign(heads, SparseRows(tokens, tokens));
    }
    norms.resize(static_cast<std::size_t>(geometry.kv_heads));
    if (steps) q.resize(heads), k.resize(norms.size()), v.resize(norms.size());
  }

  bool wants_full(std::int64_t head) const override {
    return full_ && chosen_[static_cast<std::size_t>(head)];
  }

  void visit(const HeadRowBlock& block) override {
    const auto head = static_cast<std::size_t>(block.head);
    if (!chosen_[head]) return;
    if (full_) {
      full_rows[head].take(block);
    } else {
      sparse_rows[head].take(block);
    }
  }

  /// Values, and where wanted queries and keys, of the rows of one chunk.
  void take(const AttentionArguments& call, std::int64_t first) {
    const std::int64_t rows = call.q.layout.extents[1];
    scale = static_cast<double>(call.modifiers.scale.value_or(default_scale(geometry_.head_dim)));
    soft_cap = static_cast<double>(call.modifiers.soft_cap);
    for (std::int64_t h = 0; h < geometry_.kv_heads; ++h) {
      take_keys(call, h, first, first + rows);
    }
    if (!steps_) return;
    for (std::int64_t h = 0; h < geometry_.q_heads; ++h) {
      std::string& to = q[static_cast<std::size_t>(h)];
      for (std::int64_t i = 0; i < rows; ++i) {
        for (std::int64_t c = 0; c < geometry_.head_dim; ++c)
          put_half(to, element(call.q, i, h, c));
      }
    }
  }

  void drop_steps() { q.clear(), k.clear(), v.clear(); }

  double scale = 1, soft_cap = 0;  ///< as attention was given them
  std::vector<FullRows> full_rows;
  std::vector<SparseRows> sparse_rows;
  std::vector<std::string> norms;    ///< [kv_heads], float16
  std::vector<std::string> q, k, v;  ///< a head each, float16 [tokens][dim]

 private:
  void take_keys(const AttentionArguments& call, std::int64_t h, std::int64_t from,
                 std::int64_t to) {
    const auto head = static_cast<std::size_t>(h);
    for (std::int64_t j = from; j < to; ++j) {
      double squares = 0;
      for (std::int64_t c = 0; c < geometry_.value_dim; ++c) {
        const float x = element(call.v, j, h, c);
        squares += static_cast<double>(x) * static_cast<double>(x);
        if (steps_) put_half(v[head], x);
      }
      put_half(norms[head], static_cast<float>(std::sqrt(squares)));
      for (std::int64_t c = 0; steps_ && c < geometry_.head_dim; ++c) {
        put_half(k[head], element(call.k, j, h, c));
      }
    }
  }

  models::LayerGeometry geometry_;
  std::vector<bool> chosen_;
  bool full_, steps_;
};

PageReport::PageReport(std::string path, const PageBudget& budget)
    : path_(std::move(path)), budget_(budget) {}

PageReport::~PageReport() = default;

namespace {

/// Bytes of q, k and v of all heads of all layers as float16.
std::int64_t all_steps_bytes(const models::ModelConfig& config, std::int64_t tokens) {
  std::int64_t bytes = 0;
  for (const models::LayerGeometry& layer : config.layers) {
    bytes += 2 * tokens *
             (layer.q_heads * layer.head_dim + layer.kv_heads * (layer.head_dim + layer.value_dim));
  }
  return bytes;
}

}  // namespace

bool PageReport::keeps_full() const {
  if (tokens_ > budget_.full_tokens) return false;
  std::int64_t bytes = 0;
  for (const models::LayerGeometry& layer : look_->config->layers) {
    bytes += layer.q_heads * FullRows::bytes(tokens_, tokens_, look_->config->causal);
  }
  return in_base64(bytes) <= budget_.full_bytes;
}

void PageReport::begin(const LookData& look) {
  look_ = &look;
  tokens_ = static_cast<std::int64_t>(look.ids.size());
  const models::ModelConfig& config = *look.config;
  const models::LayerGeometry& first = config.layers.front();
  for (const models::LayerGeometry& layer : config.layers) {
    if (layer.q_heads != first.q_heads || layer.kv_heads != first.kv_heads ||
        layer.head_dim != first.head_dim || layer.value_dim != first.value_dim) {
      throw InvalidArgument("page: layers with heads of different number or size");
    }
  }
  gathers_steps_ = all_steps_bytes(config, tokens_) <= budget_.gathered_steps_bytes;
  layers_.clear();
  for (std::size_t l = 0; l < config.layers.size(); ++l) {
    layers_.push_back(std::make_unique<Layer>(config.layers[l], tokens_, config.causal,
                                              look.chosen[l], keeps_full(), gathers_steps_));
  }
}

std::vector<HeadMapSpec> PageReport::maps() const {
  return {{kThumbBins, kThumbBins, HeadMapSpec::maximum},
          {kMapBins, kMapBins, HeadMapSpec::maximum}};
}

HeadRowVisitor* PageReport::rows_of(std::int64_t layer) {
  return layers_[static_cast<std::size_t>(layer)].get();
}

void PageReport::attended(const models::AttentionSeen& seen) {
  layers_[static_cast<std::size_t>(seen.layer)]->take(seen.call, seen.first_query);
}

namespace {

std::string precision_of(const LookData& look) {
  return look.file->weight_format() + ", run as " + look.weights;
}

void describe(const LookData& look, PageData& page) {
  const models::ModelConfig& config = *look.config;
  const models::LayerGeometry& first = config.layers.front();
  page.model = model_title(*look.file);
  page.precision = precision_of(look);
  page.program = "polyhead " POLYHEAD_VERSION;
  for (std::size_t i = 0; i < look.ids.size(); ++i) page.tokens.push_back(token_bytes(look, i));
  page.causal = config.causal;
  page.q_len = page.kv_len = static_cast<std::int64_t>(look.ids.size());
  page.q_heads = first.q_heads, page.kv_heads = first.kv_heads;
  page.head_dim = first.head_dim, page.value_dim = first.value_dim;
  page.thumb_q = page.thumb_k = std::min(kThumbBins, page.q_len);
  page.map_q = page.map_k = std::min(kMapBins, page.q_len);
}

/// Keys that each query of a layer may see.
std::vector<std::int64_t> seen_keys(const PageData& page, std::int64_t window) {
  std::vector<std::int64_t> seen(static_cast<std::size_t>(page.q_len), page.kv_len);
  for (std::int64_t i = 0; page.causal && i < page.q_len; ++i) {
    seen[static_cast<std::size_t>(i)] = window > 0 ? std::min(window, i + 1) : i + 1;
  }
  return seen;
}

/// What a head outside the chosen layers leaves in the thumbnails: nothing.
void add_measures(const LookData& look, PageData& page) {
  const auto thumb = static_cast<std::size_t>(page.thumb_q * page.thumb_k);
  for (std::size_t l = 0; l < look.config->layers.size(); ++l) {
    PageLayer layer;
    layer.window = look.config->layers[l].window;
    const HeadStatistics* const heads = look.heads->layer(static_cast<std::int64_t>(l));
    for (std::int64_t h = 0; h < page.q_heads; ++h) {
      PageHead head;
      head.known = heads != nullptr && look.chosen[l][static_cast<std::size_t>(h)];
      if (head.known) head.measures = heads->measures(h);
      page.thumbs += head.known ? encoded_roots(heads->map(h, 0)) : std::string(thumb, '\0');
      layer.heads.push_back(std::move(head));
    }
    page.layers.push_back(std::move(layer));
  }
}

/// How much a head stands out: its largest share of a target, or what makes it none.
double telling(const HeadMeasures& measures) {
  double best = 0;
  for (const TargetMass& target : measures.targets) {
    if (target.share > best) best = target.share;
  }
  return measures.role == HeadRole::mixed || measures.role == HeadRole::broad ? best - 1 : best;
}

/// Places of the known heads, the most telling first.
std::vector<std::pair<std::size_t, std::size_t>> by_telling(const PageData& page) {
  std::vector<std::pair<std::size_t, std::size_t>> order;
  for (std::size_t l = 0; l < page.layers.size(); ++l) {
    for (std::size_t h = 0; h < page.layers[l].heads.size(); ++h) {
      if (page.layers[l].heads[h].known) order.emplace_back(l, h);
    }
  }
  const auto value = [&](const auto& place) {
    return telling(page.layers[place.first].heads[place.second].measures);
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](const auto& a, const auto& b) { return value(a) > value(b); });
  return order;
}

}  // namespace

/// The finest of the steps of docs/page.md that fits; where none does, the most telling heads keep
/// their rows and the others' forms are map.
Keep PageReport::choose_keep(PageData& page) {
  const std::int64_t floor = tokens_ > kFewFloorTokens ? 1 : 4;
  const std::array<Keep, 4> steps{{{0.01, floor}, {0.02, floor}, {0.05, floor}, {0.1, floor}}};
  const auto order = by_telling(page);
  std::int64_t fixed = kFrameBytes + kTokenBytes * tokens_ +
                       in_base64(static_cast<std::int64_t>(page.thumbs.size())) +
                       static_cast<std::int64_t>(order.size()) *
                           in_base64(3 * tokens_ + page.map_q * (page.map_q + 1) / 2);
  for (const PageLayer& layer : page.layers) {
    fixed += in_base64(2 * page.kv_heads * page.kv_len) +
             in_base64(static_cast<std::int64_t>(layer.steps.size()));
  }
  const auto size = [&](const auto& place, const Keep& keep) {
    return in_base64(layers_[place.first]->sparse_rows[place.second].bytes(keep));
  };
  Keep keep;
  std::int64_t bytes = 0;
  for (const Keep& step : steps) {
    keep = step;
    bytes = fixed;
    for (const auto& place : order) bytes += size(place, keep);
    if (bytes <= budget_.page_bytes) break;
  }
  std::size_t kept = order.size();
  while (kept > 0 && bytes > budget_.page_bytes) bytes -= size(order[--kept], keep);
  for (std::size_t n = 0; n < kept; ++n) {
    page.layers[order[n].first].heads[order[n].second].form = PageHead::sparse;
  }
  if (kept < order.size()) {
    page.left_out.push_back("Rows of " + std::to_string(order.size() - kept) + " of " +
                            std::to_string(order.size()) +
                            " heads, the least telling, to keep the file small.");
  }
  return keep;
}

void PageReport::add_rows(const LookData& look, PageData& page) {
  const bool full = keeps_full();
  Keep keep;
  if (!full) {
    keep = choose_keep(page);
    page.tau = keep.tau, page.least = keep.least;
  }
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    PageLayer& layer = page.layers[l];
    layer.scale = layers_[l]->scale, layer.soft_cap = layers_[l]->soft_cap;
    for (const std::string& norms : layers_[l]->norms) layer.norms += norms;
    layer.norms.resize(static_cast<std::size_t>(2 * page.kv_heads * page.kv_len), '\0');
    const HeadStatistics* const heads = look.heads->layer(static_cast<std::int64_t>(l));
    const std::vector<std::int64_t> seen = seen_keys(page, layer.window);
    for (std::size_t h = 0; h < layer.heads.size(); ++h) {
      PageHead& head = layer.heads[h];
      if (!head.known) continue;
      const auto index = static_cast<std::int64_t>(h);
      if (full) {
        const FullRows& rows = layers_[l]->full_rows[h];
        head.form = PageHead::full;
        head.bytes = rows.encoded();
        page.weight_error = std::max(page.weight_error, rows.weight_error());
        page.row_sum_error = std::max(page.row_sum_error, rows.row_sum_error());
        continue;
      }
      SparseRows& rows = layers_[l]->sparse_rows[h];
      if (head.form == PageHead::sparse) head.bytes = rows.encoded(keep);
      rows.drop_all();
      head.bytes += encoded_statistics(heads->rows(index), seen) +
                    encoded_map(heads->map(index, 1), page.map_q, page.map_k, page.causal);
    }
  }
}

/// q, k and v: of every head where they fit, else of the heads that stand out in each role.
void PageReport::add_steps(const LookData& look, PageData& page) {
  if (!gathers_steps_) {
    page.left_out.emplace_back("Queries, keys and values: the text is too long to keep them.");
    return;
  }
  std::vector<std::set<std::int64_t>> chosen(layers_.size());
  const bool all = in_base64(all_steps_bytes(*look.config, tokens_)) <= budget_.steps_bytes;
  // Taken as if no two of them shared keys and values.
  const std::int64_t a_head = in_base64(2 * tokens_ * (2 * page.head_dim + page.value_dim));
  std::array<std::int64_t, kHeadRoles> taken{};
  std::int64_t bytes = 0, kept = 0;
  for (const auto& [l, h] : by_telling(page)) {
    auto& count = taken[static_cast<std::size_t>(page.layers[l].heads[h].measures.role)];
    const bool room = count < kStepHeadsARole && bytes + a_head <= budget_.few_steps_bytes;
    if (!all && !room) continue;
    ++count, ++kept, bytes += a_head;
    chosen[l].insert(static_cast<std::int64_t>(h));
  }
  if (!all) {
    page.left_out.push_back("Queries, keys and values are kept of the " + std::to_string(kept) +
                            " heads that stand out most, " + std::to_string(kStepHeadsARole) +
                            " of a role at most.");
  }
  const std::int64_t group = page.q_heads / page.kv_heads;
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    PageLayer& layer = page.layers[l];
    std::set<std::size_t> kv;
    for (const std::int64_t h : chosen[l]) {
      layer.steps_heads.push_back(h);
      layer.steps += layers_[l]->q[static_cast<std::size_t>(h)];
      kv.insert(static_cast<std::size_t>(h / group));
    }
    for (const std::size_t h : kv) layer.steps += layers_[l]->k[h];
    for (const std::size_t h : kv) layer.steps += layers_[l]->v[h];
    layers_[l]->drop_steps();
  }
}

PageData PageReport::page(const LookData& look) {
  PageData page;
  describe(look, page);
  add_measures(look, page);
  add_steps(look, page);
  add_rows(look, page);
  return page;
}

void PageReport::write(const LookData& look) { write_page(path_, page(look)); }

}  // namespace polyhead::cli
