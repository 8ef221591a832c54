// What an item of prefill or of a second pass fetches ahead. Included inside an ISA namespace after
// tile.hpp and fetcher.hpp.

struct ItemFetcher : Fetcher {
  const AttendCall& call;
  const WorkItem& item;
  const Sequence& sequence;

  ItemFetcher(const AttendCall& c, const WorkItem& i, const Sequence& s)
      : call(c), item(i), sequence(s) {}

  /// Its own output rows, then the queries and first keys of the next item.
  void plan() {
    const std::int64_t group = call.group();
    const auto add_rows = [&](const Operand& x, const std::byte* base, std::int64_t kv_head,
                              std::int64_t first_row, std::int64_t rows, std::int64_t dim) {
      const std::int64_t token = first_row / group;
      const std::int64_t tokens = (first_row + rows - 1) / group - token + 1;
      add(base + token * x.token + kv_head * group * x.head, x.token, tokens, x.head, group,
          dim * element_bytes(x.type));
    };
    add_rows(call.out, sequence.out, item.kv_head, item.first_row, item.rows, call.value_dim);
    if (item.next_rows == 0) return;
    const bool same = item.next_batch == item.batch;
    const Sequence next = same ? sequence : sequence_of(call, item.next_batch);
    add_rows(call.q, next.q, item.next_kv_head, item.next_first_row, item.next_rows, call.head_dim);
    if (same && item.next_kv_head == item.kv_head) return;
    if (next.kv_len == 0) return;
    const std::int64_t keys = std::min({kKeyBlock, next.kv_len, run_of(call, next, 0)});
    const auto rows = [&](const Operand& x, const std::byte* first) {
      return key_rows(call, next, x, first, item.next_kv_head, 0).data;
    };
    add(rows(call.k, next.k), call.k.token, keys, 0, 1, row_bytes(call.k, call.head_dim));
    add(rows(call.v, next.v), call.v.token, keys, 0, 1, row_bytes(call.v, call.value_dim));
  }

  /// While the first tile works on a block, the next one comes closer.
  void plan_block(std::int64_t block) {
    if (block >= sequence.kv_len) return;
    drop_block();
    plan_rows(call.k, sequence.k, call.head_dim, block);
    plan_rows(call.v, sequence.v, call.value_dim, block);
  }

  /// Rows of a block of k or v, of which `first` is the sequence's first.
  void plan_rows(const Operand& x, const std::byte* first, std::int64_t dim, std::int64_t block) {
    const std::int64_t end = std::min(block + kKeyBlock, sequence.kv_len);
    for (std::int64_t key = block; key < end;) {
      const std::int64_t keys = std::min(run_of(call, sequence, key), end - key);
      const std::byte* rows = key_rows(call, sequence, x, first, item.kv_head, key).data;
      const std::int64_t bytes = row_bytes(x, dim);
      if (x.token == bytes)  // in the order of memory
        add_to_block({rows, kLine}, kLine, (keys * bytes + kLine - 1) / kLine);
      else
        add_to_block({rows, x.token}, bytes, keys);
      key += keys;
    }
  }

  /// Rows of dense tables that a tile looks at.
  void plan_tables(const Lanes& tile, std::int64_t block) {
    const PairTable& bias = call.score.bias;
    if ((!bias.data || call.bias_rows) && call.mask.boolean_count == 0) return;
    if (block >= sequence.kv_len) return;
    drop_tables();
    const auto add_table = [&](const PairTable& table, int bits) {
      const std::int64_t unit = table.type == ElementType::bit ? 8 : 1;  // of its strides
      const std::int64_t tokens = tile.query[tile.count - 1] - tile.query[0] + 1;
      const std::int64_t at = sequence.batch * table.batch + tile.head[0] * table.head +
                              tile.query[0] * table.query + block * table.key;
      add_tables({table.data + at / unit, table.query / unit}, tokens, (kKeyBlock * bits + 7) / 8);
    };
    if (bias.data) add_table(bias, 8 * element_bytes(bias.type));
    for (const BooleanTable& mask : call.mask.booleans())
      add_table(mask, mask.type == ElementType::bit ? 1 : 8);
  }
};
