#include "layers/latent_pages.hpp"

#include <algorithm>
#include <cstring>
#include <span>

#include "base/ceil_div.hpp"
#include "base/codes.hpp"
#include "base/element.hpp"

namespace polyhead::inline v0::layers {
namespace {

using base::ceil_div;
using kernels::AttendCall;

/// A page, or a sequence of a view without pages, and how many tokens lie on it.
struct Used {
  std::int64_t page, tokens;
};

/// Calls visit(sequence, index, page, tokens) for every entry of the page table that is in use.
template <class Visit>
void visit_entries(const AttendCall& held, const Visit& visit) {
  const std::int64_t size = held.pages.page_tokens();
  for (std::int64_t b = 0; b < held.batch; ++b) {
    const std::int64_t tokens = tokens_held(held, b);
    for (std::int64_t i = 0; i * size < tokens; ++i) {
      visit(b, i, std::int64_t{held.pages.data[b * held.pages.stride + i]},
            std::min(size, tokens - i * size));
    }
  }
}

/// The pages in use, in ascending order, each once with the most tokens that a sequence has there.
std::span<Used> list_pages(const AttendCall& held, Buffer& memory) {
  std::int64_t entries = 0;
  visit_entries(held, [&](auto, auto, auto, auto) { ++entries; });
  auto* const list = reinterpret_cast<Used*>(memory.need(entries, sizeof(Used)));
  Used* at = list;
  visit_entries(held, [&](auto, auto, std::int64_t page, std::int64_t tokens) {
    *at++ = {page, tokens};
  });
  std::sort(list, at, [](const Used& a, const Used& b) {
    return a.page != b.page ? a.page < b.page : a.tokens > b.tokens;
  });
  Used* const end =
      std::unique(list, at, [](const Used& a, const Used& b) { return a.page == b.page; });
  return {list, end};
}

std::span<Used> list_sequences(const AttendCall& held, Buffer& memory) {
  auto* const list = reinterpret_cast<Used*>(memory.need(held.batch, sizeof(Used)));
  for (std::int64_t b = 0; b < held.batch; ++b) list[b] = {b, tokens_held(held, b)};
  return {list, static_cast<std::size_t>(held.batch)};
}

/// The page table over places in `pages` instead of the pool.
ConstView table_over(const AttendCall& held, std::span<const Used> pages, Buffer& memory) {
  const std::int64_t most = ceil_div(held.kv_len, held.pages.page_tokens());
  auto* const table = reinterpret_cast<std::int32_t*>(memory.need(held.batch, most * 4));
  std::fill(table, table + held.batch * most, 0);
  visit_entries(held, [&](std::int64_t b, std::int64_t i, std::int64_t page, auto) {
    table[b * most + i] = static_cast<std::int32_t>(
        std::ranges::lower_bound(pages, page, {}, &Used::page) - pages.begin());
  });
  return {table, {held.batch, most}};
}

/// A token's latent of a type that is not the layer's: what its codes mean, or the numbers
/// themselves, rounded to that of `to`.
void convert_row(const AttendCall& held, std::int64_t page, std::int64_t token, const Rows& to,
                 std::byte* row) {
  const kernels::Operand& k = held.k;
  const std::byte* const from = k.data + page * k.batch + token * k.token;
  const kernels::Scales& scales = k.scales;
  const std::int64_t first_scale = page * scales.batch + token * scales.token;
  for (std::int64_t d = 0; d < held.head_dim; ++d) {
    const float scale =
        scales.data ? scales.data[first_scale + (d >> scales.shift) * scales.block] : 1.0f;
    const float value = base::is_code(k.type) ? base::code_to_float32(from, k.type, d, scale)
                                              : base::load_float32(from + d * k.dim, k.type);
    base::store_float32(row + d * to.column_stride, to.type, value);
  }
}

void copy_row(const AttendCall& held, const std::byte* from, std::byte* to) {
  const std::int64_t bytes = float_bytes(held.k.type);
  if (held.head_dim <= 1 || held.k.dim == bytes) {
    std::memcpy(to, from, static_cast<std::size_t>(held.head_dim * bytes));
    return;
  }
  for (std::int64_t d = 0; d < held.head_dim; ++d)
    std::memcpy(to + d * bytes, from + d * held.k.dim, static_cast<std::size_t>(bytes));
}

}  // namespace

LatentPages gather_latents(const Engine& engine, const AttendCall& held, ElementType type,
                           Scratch& scratch) {
  const bool paged = held.pages.given();
  const std::span<const Used> pages =
      paged ? list_pages(held, scratch.pages) : list_sequences(held, scratch.pages);
  LatentPages gathered;
  if (paged) gathered.page_table = table_over(held, pages, scratch.page_table);
  Rows like;
  like.batch = std::ssize(pages);
  like.tokens = paged ? held.pages.page_tokens() : held.kv_len;
  const std::int64_t pitch = row_pitch(held.head_dim * float_bytes(type));
  gathered.rows =
      dense_rows(scratch.held.need(like.count(), pitch), type, like, held.head_dim, pitch);
  share_out_rows(engine.crew, like.count(), [&](std::int64_t row, int) {
    const Used& page = pages[static_cast<std::size_t>(row / like.tokens)];
    const std::int64_t token = row % like.tokens;
    std::byte* const to = gathered.rows.row(row);
    if (token < page.tokens && held.k.type == type)
      copy_row(held, held.k.data + page.page * held.k.batch + token * held.k.token, to);
    else if (token < page.tokens)
      convert_row(held, page.page, token, gathered.rows, to);
    else
      std::memset(to, 0, static_cast<std::size_t>(pitch));
  });
  return gathered;
}

}  // namespace polyhead::inline v0::layers
