#include "layers/heads.hpp"

#include "base/ceil_div.hpp"

namespace polyhead::inline v0::layers {
namespace {

/// One worker's cosines and sines.
struct Turn {
  position::Rotation::Cursor cursor;
  float *cos, *sin;
};

void dress_row(const kernels::cpu::RowTable& rows, const Dressing& d, float* row,
               std::int64_t index, Turn& turn) {
  if (d.rotation != nullptr) d.rotation->at(d.positions[index], turn.cursor, turn.cos, turn.sin);
  for (const HeadColumns& part : d.parts) {
    const std::int64_t stride = part.stride > 0 ? part.stride : part.dim;
    const bool turns = part.turns && d.rotation != nullptr;
    for (std::int64_t head = 0; head < part.heads; ++head) {
      float* const x = row + part.first + head * stride;
      if (part.norm != nullptr) {
        rows.rms_norm({reinterpret_cast<std::byte*>(x), ElementType::float32}, x, part.norm,
                      d.norm_eps, part.dim);
      }
      if (turns) position::rotate(x, *d.rotation, turn.cos, turn.sin);
    }
  }
}

}  // namespace

void dress(const Engine& engine, const Dressing& d, Buffer& scratch) {
  const std::int64_t pairs = d.rotation != nullptr ? d.rotation->pairs() : 0;
  const std::int64_t doubles = base::round_up(2 * pairs * 8, base::kCacheLine);
  const std::int64_t worker_bytes = doubles + base::round_up(2 * pairs * 4, base::kCacheLine);
  const std::int64_t items = base::ceil_div(d.count, kRowsPerItem);
  const Crew crew = engine.crew.for_items(items);
  std::byte* const memory = scratch.need(worker_bytes * crew.workers);
  share_out(crew, items, [&](std::int64_t item, int worker) {
    std::byte* const mine = memory + worker * worker_bytes;
    auto* const floats = reinterpret_cast<float*>(mine + doubles);
    Turn turn{{reinterpret_cast<double*>(mine)}, floats, floats + pairs};
    const std::int64_t end = std::min(d.count, (item + 1) * kRowsPerItem);
    for (std::int64_t index = item * kRowsPerItem; index < end; ++index) {
      auto* const row =
          reinterpret_cast<float*>(reinterpret_cast<std::byte*>(d.rows) + index * d.pitch);
      dress_row(*engine.rows, d, row, index, turn);
      if (d.narrow == nullptr) continue;
      engine.gemm->narrow_row(d.narrow + index * d.narrow_pitch, row, ElementType::bfloat16, 2,
                              d.columns);
    }
  });
}

}  // namespace polyhead::inline v0::layers
