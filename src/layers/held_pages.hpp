// Sequences of a pool that a layer goes on with.
#pragma once

#include "layers/held.hpp"
#include "polyhead/paged_cache.h"

namespace polyhead::inline v0::layers {

/// Throws unless `pages` names one sequence of the pool for each of the input's, each once, and the
/// pool holds rows of these sizes. Works in `memory`.
void check_pages(const Input& input, const PagedSequences& pages, const HeldSizes& sizes,
                 Buffer& memory);

/// All rows of the layer's in the pool.
inline KvView room_of(const PagedSequences& pages) { return pages.cache->view(pages.layer, {}); }

/// Where the tokens of x begin and will end.
Growth growth_in(const Input& input, const PagedSequences& pages, const ConstView& lengths,
                 Buffer& memory);

/// The rows of x in a pool: room made for them, written, and taken back unless the call succeeds.
class PagedRows {
 public:
  PagedRows(const Input& input, const PagedSequences& pages, const Growth& growth, Scratch& scratch)
      : input_(input), pages_(pages), growth_(growth), scratch_(scratch) {}
  PagedRows(const PagedRows&) = delete;
  PagedRows& operator=(const PagedRows&) = delete;
  ~PagedRows();

  /// Exhausted, with nothing changed, where the pool has too few pages.
  PagedCache::Status make_room();
  /// k and v [batch, tokens, kv_heads, dim] or ragged. After make_room().
  void write(const ConstView& k, const ConstView& v);
  /// Where the sequences lie, once they are written.
  const PagedBatch& batch();
  void keep() { extended_ = false; }

 private:
  bool room_to_write();

  const Input& input_;
  const PagedSequences& pages_;
  const Growth& growth_;
  Scratch& scratch_;
  bool extended_ = false;
  bool batch_is_good_ = false;  // scratch has it, and writing changes no table
};

}  // namespace polyhead::inline v0::layers
