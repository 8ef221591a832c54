#include "layers/linear.hpp"

#include "base/ceil_div.hpp"
#include "base/element.hpp"
#include "base/float_environment.hpp"
#include "base/footprint.hpp"
#include "base/memory.hpp"

namespace polyhead::inline v0::layers {
namespace {

using base::ceil_div;
using kernels::cpu::GemmCall;
using kernels::cpu::GemmRange;

constexpr std::int64_t kFewRows = 64;        // up to here weights are streamed once, by all workers
constexpr std::int64_t kRowRun = 512;        // rows that reuse a group of panels from L2
constexpr std::int64_t kLeastRowRun = 32;    // below this panels are read too often
constexpr std::int64_t kPanelRun = 8;        // panels that share a pass over the rows
constexpr std::int64_t kItemsPerWorker = 4;  // enough to even out unequal workers
constexpr std::int64_t kPackRows = 16;       // of blocks, packed as one item

/// How a stage is cut; the cut changes no bit.
struct Cut {
  std::int64_t rows, panels;  ///< of one item

  Cut(std::int64_t row_count, std::int64_t panel_count, int workers)
      : rows(std::max<std::int64_t>(row_count, 1)), panels(std::max<std::int64_t>(panel_count, 1)) {
    if (workers <= 1 || row_count == 0) return;
    const std::int64_t wanted = workers * kItemsPerWorker;
    if (row_count <= kFewRows) {
      panels = std::max<std::int64_t>(panel_count / wanted, 2);  // one row takes two at a time
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

const std::byte* row_of(const ConstView& view, std::int64_t row) {
  return static_cast<const std::byte*>(view.data) + row * base::kernel_stride(view, 0);
}

}  // namespace

base::BlockForm form_of(std::span<const BlockRows> parts) {
  if (parts.empty()) return {};
  base::BlockForm form = base::block_form(parts.front().type);
  for (const BlockRows& part : parts) form = base::common_form(form, base::block_form(part.type));
  return form;
}

std::size_t packed_bytes(const kernels::cpu::GemmTable& table,
                         const kernels::cpu::GemmWeights& shape) {
  constexpr std::int64_t kLine = base::kCacheLine;
  return static_cast<std::size_t>(ceil_div(table.packed_bytes(shape), kLine) * kLine);
}

std::size_t packed_bytes(const kernels::cpu::GemmTable& table, ElementType type,
                         std::span<const ConstView> weights) {
  std::size_t sum = 0;
  for (const ConstView& view : weights) {
    if (!view.given()) continue;
    kernels::cpu::GemmWeights shape;
    shape.type = type;
    shape.out = view.layout.extents[0];
    shape.in = view.layout.extents[1];
    sum += packed_bytes(table, shape);
  }
  return sum;
}

Linear::Linear(const kernels::cpu::GemmTable& table, base::LargePages& pages, ElementType type,
               std::initializer_list<ConstView> weights, std::initializer_list<ConstView> biases) {
  bool any_bias = false;
  for (const ConstView& bias : biases) any_bias = any_bias || bias.given();
  const ConstView* bias = biases.begin();
  for (const ConstView& part : weights) {
    const std::int64_t rows = part.layout.extents[0];
    packed_.out += rows;
    packed_.in = part.layout.extents[1];
    for (std::int64_t row = 0; any_bias && row < rows; ++row) {
      bias_.push_back(bias->given() ? base::load_float32(row_of(*bias, row), bias->type) : 0.0f);
    }
    ++bias;
  }
  packed_.type = type;
  reserve(table, pages);
  const auto read = [&](std::int64_t first, std::int64_t count, float* to) {
    std::int64_t begin = 0;  // of the part
    for (const ConstView& part : weights) {
      const std::int64_t end = begin + part.layout.extents[0];
      const std::int64_t stride =
          packed_.in > 1 ? base::kernel_stride(part, 1) : element_bytes(part.type);
      for (std::int64_t row = std::max(first, begin); row < std::min(first + count, end); ++row) {
        table.widen_row(to + (row - first) * packed_.in, row_of(part, row - begin), part.type,
                        stride, packed_.in);
      }
      begin = end;
    }
  };
  pack(table, Crew{}, {packed_.in, packed_.out, read});
}

Linear::Linear(const Engine& engine, base::LargePages& pages, ElementType type,
               const MatrixSource& source, std::vector<float> bias)
    : bias_(std::move(bias)) {
  packed_.type = type;
  packed_.in = source.in;
  packed_.out = source.out;
  reserve(*engine.gemm, pages);
  pack(*engine.gemm, engine.crew, source);
}

Linear::Linear(const Engine& engine, base::LargePages& pages, std::int64_t in,
               std::span<const BlockRows> parts, std::vector<float> bias)
    : bias_(std::move(bias)) {
  packed_.in = in;
  packed_.blocks = form_of(parts);
  for (const BlockRows& part : parts) packed_.out += part.count;
  reserve(*engine.gemm, pages);
  std::int64_t begin = 0;
  for (const BlockRows& part : parts) {
    share_out(engine.crew, ceil_div(part.count, kPackRows), [&](std::int64_t item, int) {
      const std::int64_t row = item * kPackRows;
      engine.gemm->pack_blocks(panels_.get(), packed_, begin + row,
                               std::min(kPackRows, part.count - row), part.type,
                               part.data + row * part.row_bytes, part.row_bytes);
    });
    begin += part.count;
  }
}

void Linear::reserve(const kernels::cpu::GemmTable& table, base::LargePages& pages) {
  panel_bytes_ = static_cast<std::size_t>(table.packed_bytes(packed_));
  panels_ = pages.take(panel_bytes_);
  packed_.panels = panels_.get();
}

void Linear::pack(const kernels::cpu::GemmTable& table, const Crew& crew,
                  const MatrixSource& source) {
  if (source.in == 0) return;
  const std::int64_t panels = ceil_div(source.out, table.panel);
  const int workers = crew.for_items(panels).workers;
  // Rows of one panel a worker; packing reads whole vectors, up to 16 floats past the last.
  const std::int64_t floats = table.panel * source.in + 16;
  base::AlignedBuffer<float> rows(static_cast<std::size_t>(workers * floats));
  std::fill(rows.begin(), rows.end(), 0.0f);
  const auto pack_one = [&](std::int64_t panel, int worker) {
    const std::int64_t first = panel * table.panel;
    const std::int64_t count = std::min<std::int64_t>(table.panel, source.out - first);
    float* const mine = rows.data() + worker * floats;
    source.rows(first, count, mine);
    table.pack_panel(panels_.get(), packed_, panel, count, mine, source.in);
  };
  if (crew.executor != nullptr) return share_out(crew, panels, pack_one);
  const base::FloatEnvironment environment;  // as share_out's
  for (std::int64_t panel = 0; panel < panels; ++panel) pack_one(panel, 0);
}

bool lie_ready(const Engine& engine, const Linear& linear, const Rows& x, std::int64_t apart) {
  const auto begins =
      static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(x.data)) | x.step() | apart;
  return x.even() && x.dense() && begins % engine.gemm->direct_alignment == 0 &&
         engine.gemm->direct(linear.weights(), x.type);
}

Source source_of(const Engine& engine, const Linear& linear, const Rows& x, Buffer& buffer) {
  if (lie_ready(engine, linear, x)) return {x.data, x.step()};
  const auto& table = *engine.gemm;
  const auto& weights = linear.weights();
  const std::int64_t pitch = row_pitch(table.prepared_bytes(weights));
  std::byte* const to = buffer.need(x.count(), pitch);
  share_out_rows(engine.crew, x.count(), [&](std::int64_t row, int) {
    table.prepare(to + row * pitch, weights, x.row(row), x.type, x.column_step());
  });
  return {to, pitch};
}

void multiply(const Engine& engine, std::span<const Product> products, Buffer& scratch) {
  const auto& table = *engine.gemm;
  const std::int64_t rows = products.begin()->y.count();
  if (rows == 0) return;
  std::int64_t panel_count = 0;
  bool quantised = false;
  for (const Product& product : products) {
    panel_count += ceil_div(product.linear->out(), table.panel);
    quantised = quantised || product.linear->weights().blocks.bits != 0;
  }
  const Cut cut(rows, panel_count, engine.crew.workers);
  const std::int64_t row_items = ceil_div(rows, cut.rows);
  std::int64_t items = 0;
  for (const Product& product : products) {
    items += ceil_div(ceil_div(product.linear->out(), table.panel), cut.panels) * row_items;
  }
  const std::int64_t bytes = table.scratch_bytes + (quantised ? table.unpack_bytes : 0);
  const std::int64_t worker_bytes = base::round_up(bytes, base::kCacheLine);
  const Crew crew = engine.crew.for_items(items);
  std::byte* const memory = scratch.need(worker_bytes * crew.workers);

  share_out(crew, items, [&](std::int64_t item, int worker) {
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
                          y.column_step()};
      return table.multiply(call, range, memory + worker * worker_bytes);
    }
  });
}

}  // namespace polyhead::inline v0::layers
