#include "cache/saved_bytes.hpp"

#include "base/refuse.hpp"

namespace polyhead::inline v0::cache {

Sink at_end_of(std::vector<std::byte>& to) {
  return
      [&to](std::span<const std::byte> piece) { to.insert(to.end(), piece.begin(), piece.end()); };
}

void check_sink(const char* call, const Sink& to) {
  if (!to) base::refuse(call, "to is no function, expected one that takes the bytes");
}

}  // namespace polyhead::inline v0::cache
