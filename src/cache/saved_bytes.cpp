#include "cache/saved_bytes.hpp"

namespace polyhead::inline v0::cache {

// Not inline: where g++ 12 sees the vector's beginnings, it warns falsely that it does not grow.
void put(std::vector<std::byte>& to, const void* data, std::size_t bytes) {
  const auto* const from = static_cast<const std::byte*>(data);
  to.insert(to.end(), from, from + bytes);
}

}  // namespace polyhead::inline v0::cache
