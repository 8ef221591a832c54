// Large pages of the system under large arrays.
#pragma once

#include <cstddef>

namespace polyhead::inline v0::base {

/// Asks the system for pages of 2 MiB under memory that is read all over, such as a pool: with
/// pages of 4 KiB each scattered piece costs a walk through the page table. A hint; without effect
/// on what does not span several of them, or where the system has none.
void prefer_large_pages(void* data, std::size_t bytes);

}  // namespace polyhead::inline v0::base
