#include "cases/numbers.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/large_pages.hpp"

namespace polyhead::bench {
namespace {

constexpr std::size_t kLarge = std::size_t{4} << 20;  // bytes; smaller arrays lie as any program's
constexpr std::size_t kPeriod = 65521;                // a prime: rows of powers of two all differ

}  // namespace

Numbers::Numbers(ElementType type, std::int64_t count, std::uint32_t seed)
    : bytes_(static_cast<std::size_t>(count * element_bytes(type))) {
  if (bytes_.bytes() >= kLarge) base::prefer_large_pages(bytes_.data(), bytes_.bytes());
  const auto size = static_cast<std::size_t>(element_bytes(type));
  std::vector<std::byte> pattern(kPeriod * size);
  std::uint32_t state = seed * 2654435761u + 1u;
  for (std::size_t i = 0; i < kPeriod; ++i) {
    state = state * 1664525u + 1013904223u;
    const float value = static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-31f;
    const std::uint16_t half =
        type == ElementType::float16 ? to_float16(value).bits : to_bfloat16(value).bits;
    std::memcpy(pattern.data() + i * size,
                type == ElementType::float32 ? static_cast<const void*>(&value) : &half, size);
  }
  for (std::size_t at = 0; at < bytes_.size(); at += pattern.size()) {
    std::memcpy(bytes_.data() + at, pattern.data(), std::min(pattern.size(), bytes_.size() - at));
  }
}

namespace {

double visible_pairs(const Case& c) {
  const double q = static_cast<double>(c.q_len), kv = static_cast<double>(c.kv_len);
  if (c.pattern == Pattern::causal) return q * (q + 1) / 2;
  if (c.pattern == Pattern::window) {
    const double w = static_cast<double>(std::min<std::int64_t>(512, c.q_len));
    return w * (w + 1) / 2 + (q - w) * w;
  }
  return q * kv;
}

}  // namespace

double attention_work(const Case& c) {
  const std::int64_t value_dim = c.latent_dim > 0 ? c.latent_dim : c.head_dim;
  return 2.0 * static_cast<double>((c.head_dim + value_dim) * c.batch * c.q_heads) *
         visible_pairs(c);
}

Options options_of(Isa isa, Executor& executor) {
  Options options;
  options.isa = isa;
  options.executor = &executor;
  return options;
}

}  // namespace polyhead::bench
