#include "layers/linear.hpp"

#include "attention/footprint.hpp"
#include "base/element.hpp"

namespace polyhead::inline v0::layers {
namespace {

using kernels::cpu::GemmCall;
using kernels::cpu::GemmRange;

constexpr std::int64_t kFewRows = 64;        // up to here weights are streamed once, by all workers
constexpr std::int64_t kRowRun = 512;        // rows that reuse a group of panels from L2
constexpr std::int64_t kLeastRowRun = 32;    // below this panels are read too often
constexpr std::int64_t kPanelRun = 8;        // panels that share a pass over the rows
constexpr std::int64_t kItemsPerWorker = 4;  // enough to even out unequal workers

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// How a stage is cut; the cut changes no bit.
struct Cut {
  std::int64_t rows, panels;  ///< of one item

  Cut(std::int64_t row_count, std::int64_t panel_count, int workers)
      : rows(std::max<std::int64_t>(row_count, 1)), panels(std::max<std::int64_t>(panel_count, 1)) {
    if (workers <= 1 || row_count == 0) return;
    const std::int64_t wanted = workers * kItemsPerWorker;
    if (row_count <= kFewRows) {
      panels = std::max<std::int64_t>(panel_count / wanted, 1);
      return;
    }
    rows = std::min(row_count, kRowRun);
    panels = kPanelRun;
    const auto items = [&] { return ceil_div(row_count, rows) * ceil_div(panel_count, panels); };
    while (items() < wanted && rows > 4 * kLeastRowRun) rows /= 2;
    while (items() < wanted && panels > 1) panels /= 2;
    while (items() < wanted && rows > kLeastRowRun) rows /= 2;
  }
};

/// Element (row, column) of a checked view as float32.
float element(const ConstView& view, std::int64_t row, std::int64_t column) {
  const std::int64_t at = row * door::kernel_stride(view, 0) +
                          (view.layout.axes > 1 ? column * door::kernel_stride(view, 1) : 0);
  return base::load_float32(static_cast<const std::byte*>(view.data) + at, view.type);
}

}  // namespace

Linear::Linear(const kernels::cpu::GemmTable& table, ElementType type,
               std::initializer_list<ConstView> weights, std::initializer_list<ConstView> biases) {
  std::vector<float> dense;
  bool any_bias = false;
  for (const ConstView& bias : biases) any_bias = any_bias || bias.given();
  const ConstView* bias = biases.begin();
  for (const ConstView& part : weights) {
    const std::int64_t rows = part.layout.extents[0];
    packed_.out += rows;
    packed_.in = part.layout.extents[1];
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t i = 0; i < packed_.in; ++i) dense.push_back(element(part, row, i));
      if (any_bias) bias_.push_back(bias->given() ? element(*bias, row, 0) : 0.0f);
    }
    ++bias;
  }
  packed_.type = type;
  panels_ = base::AlignedBuffer<std::byte>(
      static_cast<std::size_t>(table.packed_bytes(type, packed_.in, packed_.out)));
  table.pack(panels_.data(), packed_, reinterpret_cast<const std::byte*>(dense.data()),
             ElementType::float32, packed_.in * 4, 4);
  packed_.panels = panels_.data();
}

Source source_of(const Engine& engine, const Linear& linear, const Rows& x, Buffer& buffer) {
  const auto& table = *engine.gemm;
  const auto& weights = linear.weights();
  if (x.even() && x.dense() && table.direct(weights, x.type)) return {x.data, x.step()};
  const std::int64_t pitch = row_pitch(table.prepared_bytes(weights));
  std::byte* const to = buffer.need(x.count(), pitch);
  share_out_rows(engine.crew, x.count(), [&](std::int64_t row, int) {
    table.prepare(to + row * pitch, weights, x.row(row), x.type,
                  x.columns <= 1 ? float_bytes(x.type) : x.column_stride);
  });
  return {to, pitch};
}

void multiply(const Engine& engine, std::span<const Product> products, Buffer& scratch) {
  const auto& table = *engine.gemm;
  const std::int64_t rows = products.begin()->y.count();
  if (rows == 0) return;
  std::int64_t panel_count = 0;
  for (const Product& product : products) {
    panel_count += ceil_div(product.linear->out(), table.panel);
  }
  const Cut cut(rows, panel_count, engine.crew.workers);
  const std::int64_t row_items = ceil_div(rows, cut.rows);
  std::int64_t items = 0;
  for (const Product& product : products) {
    items += ceil_div(ceil_div(product.linear->out(), table.panel), cut.panels) * row_items;
  }
  const std::int64_t worker_bytes = (table.scratch_bytes + 63) / 64 * 64;
  std::byte* const memory = scratch.need(worker_bytes * engine.crew.workers);

  share_out(engine.crew, items, [&](std::int64_t item, int worker) {
    for (const Product& product : products) {
      const std::int64_t panels = ceil_div(product.linear->out(), table.panel);
      const std::int64_t mine = ceil_div(panels, cut.panels) * row_items;
      if (item >= mine) {
        item -= mine;
        continue;
      }
      const std::int64_t row = item % row_items * cut.rows, panel = item / row_items * cut.panels;
      const GemmRange range{row, std::min(row + cut.rows, rows), panel,
                            std::min(panel + cut.panels, panels)};
      const Rows& y = product.y;
      const GemmCall call{product.x.data,
                          product.x.row_bytes,
                          product.linear->weights(),
                          product.linear->bias(),
                          y.data,
                          y.type,
                          y.step(),
                          y.columns <= 1 ? float_bytes(y.type) : y.column_stride};
      return table.multiply(call, range, memory + worker * worker_bytes);
    }
  });
}

}  // namespace polyhead::inline v0::layers
