// What each head of an attention layer did over a text: measures, roles, maps and rows, from the
// fast path, in memory that grows with the text and not with its square.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "polyhead/attention.h"

#pragma GCC visibility push(default)
namespace polyhead::inline v0 {

/// What a head's weight may fall on. For the query at position i, with token(j) the id of key j:
///   induction  keys p + 1 < i with token(p) = token(i): what followed an earlier copy
///   duplicate  keys p < i with token(p) = token(i): the earlier copies
///   previous   key i - 1
///   self       key i
///   local      keys i - 8 .. i - 1
///   delimiter  keys that are flagged as delimiters
/// Only keys the mask lets the query see count.
enum class HeadTarget : std::uint8_t { induction, duplicate, previous, self, local, delimiter };
inline constexpr int kHeadTargets = 6;
inline constexpr std::int64_t kLocalKeys = 8;
const char* head_target_name(HeadTarget target);

/// A head's role in one text, by the first rule that holds (docs/heads.md):
///   resting    first >= 0.99
///   induction, duplicate, previous, self, local, delimiter   share of that target >= 0.4
///   broad      spread >= 0.75
///   mixed      none of these
enum class HeadRole : std::uint8_t {
  resting,
  induction,
  duplicate,
  previous,
  self,
  local,
  delimiter,
  broad,
  mixed
};
inline constexpr int kHeadRoles = 9;
inline constexpr double kRestingFirst = 0.99, kRoleShare = 0.4, kBroadSpread = 0.75;
const char* head_role_name(HeadRole role);

/// One target's figures. A row is counted where it sees at least one such key and one other.
struct TargetMass {
  double mean = 0;         ///< mean over those rows of the weight on the target; NaN without any
  double mean_chance = 0;  ///< what equal weights on all visible keys would give
  std::int64_t rows = 0;
  /// The same outside the first key: sum of the weight on target keys but key 0, over the sum of
  /// the weight on all keys but key 0, over the rows that see at least one such key and, of the
  /// keys but key 0, one other. NaN where there is no such row or no such weight.
  double share = 0;
  double share_chance = 0;  ///< of equal weights on all visible keys but key 0
};

/// One head over all rows seen so far. What no row makes measurable is NaN.
struct HeadMeasures {
  /// Nats, mean over all query rows (a row that sees nothing counts 0): -sum w ln w over its keys.
  double mean_entropy = 0;
  /// Mean weight on key 0 of the rows that see it and another key.
  double first = 0;
  /// sum_i R_i H_i / sum_i R_i ln n_i over rows with n_i >= 2 visible keys but key 0, R_i their
  /// weight and H_i the entropy of their weights rescaled to sum to 1: 1 is evenly spread.
  double spread = 0;
  double mean_distance = 0;  ///< tokens: sum w |i - j| / sum w over pairs with j > 0
  double mean_largest = 0;   ///< mean over rows that see a key of the largest weight
  std::array<TargetMass, kHeadTargets> targets;
  HeadRole role = HeadRole::mixed;

  const TargetMass& operator[](HeadTarget target) const {
    return targets[static_cast<std::size_t>(target)];
  }
};

/// The rules above applied to measures (whatever their `role` says).
HeadRole head_role(const HeadMeasures& measures);

/// A pooled map: [q_bins, kv_bins]; bin (r, c) pools the weights of queries [r q_len / q_bins,
/// (r+1) q_len / q_bins) on keys [c kv_len / kv_bins, (c+1) kv_len / kv_bins) of the whole run.
/// More bins than tokens become as many as tokens.
struct HeadMapSpec {
  std::int64_t q_bins = 0, kv_bins = 0;
  enum Pool : std::uint8_t { maximum, sum } pool = maximum;
};
inline constexpr int kMaxHeadMaps = 4;

/// What to gather of one layer. Sizes are those of the whole run, all chunks together, up to 2^24
/// tokens; kv_len counts the tokens that k has room for, valid or not.
struct HeadStudy {
  std::int64_t q_heads = 0, q_len = 0, kv_len = 0;
  /// Id of each key's token, [kv_len], any integers: equal ids are copies. Empty: induction and
  /// duplicate are not measurable.
  std::span<const std::int32_t> tokens{};
  /// Not 0 where a key is a delimiter, [kv_len]. Empty: not measurable.
  std::span<const std::uint8_t> delimiters{};
  /// Queries are tokens of another text (cross attention): distance and all targets but delimiters
  /// are not measurable. Otherwise the query at position i is the token of key i.
  bool cross = false;
  bool rows = true;                 ///< keep HeadRowStatistics: 16 bytes a row and head
  bool received = true;             ///< keep the mass received by each key: 4 bytes a key and head
  std::vector<HeadMapSpec> maps{};  ///< at most kMaxHeadMaps
};

/// One head's rows, [q_len] each. A row that sees nothing has 0, 0, 0 and -1, one that sees a NaN
/// NaN, NaN, NaN and any key.
struct HeadRowStatistics {
  std::span<const float> entropy{};             ///< nats
  std::span<const float> first{};               ///< weight on key 0
  std::span<const float> largest{};             ///< largest weight
  std::span<const std::int32_t> largest_key{};  ///< its key, the first on ties
};

/// A few rows of one head as they become known; pointers live until the visit returns.
struct HeadRowBlock {
  std::int64_t head = 0, first_query = 0, rows = 0;

  /// Sparse rows, where wanted: row r has entries [offsets[r], offsets[r + 1]) in ascending order
  /// of keys; `rest` is what its other keys have together.
  const std::int64_t* offsets = nullptr;  ///< [rows + 1], from 0
  const std::int32_t* keys = nullptr;
  const float* weights = nullptr;
  const float* rest = nullptr;  ///< [rows]

  /// Full rows, where wanted: full[r * full_keys + key], 0 for hidden keys.
  const float* full = nullptr;
  std::int64_t full_keys = 0;  ///< keys of the chunk's call
};

/// Takes rows. Calls for different heads come at the same time from different threads; those of
/// one head come in the order of its queries.
class HeadRowVisitor {
 public:
  virtual ~HeadRowVisitor() = default;
  virtual void visit(const HeadRowBlock& block) = 0;

  /// Whether and how sparse rows are wanted: every weight >= threshold (at least 1e-4), and of each
  /// row at least its `least` largest (0 .. 64) that are not 0. A threshold above 1 gives the
  /// top-k.
  bool sparse = false;
  float threshold = 0.01f;
  int least = 4;
  /// Heads whose full rows are wanted.
  virtual bool wants_full(std::int64_t head) const;
};

/// Statistics of all heads of one attention layer, fed one call of attention() at a time.
///
/// Everything is exact: from the same q, k, mask, modifiers and LSE as the call's output, by one
/// sweep over the tiles that rebuilds each weight once (inspect.h). Row sums are float32 in key
/// order, a head's sums double in query order: the same bits for any chunking of the queries, any
/// thread count and batching. Accuracy: docs/heads.md.
///
/// Memory: what HeadStudy asks to keep, and scratch of O(kv_len) a thread.
class HeadStatistics {
 public:
  /// Copies the tokens. Throws InvalidArgument for sizes that contradict each other.
  explicit HeadStatistics(const HeadStudy& study);
  /// What was moved from may be assigned to or destroyed, no more.
  HeadStatistics(HeadStatistics&&) noexcept;
  HeadStatistics& operator=(HeadStatistics&&) noexcept;
  ~HeadStatistics();

  /// Takes the next q_len rows. `call` is what attention() was given, with the LSE it wrote; one
  /// sequence (batch 1, not ragged), without dropout; out is not needed, nor v but for its type
  /// where that is not k's. Its keys are keys 0 .. of the run; its queries follow those of earlier
  /// calls, and their positions are the call's (mask.h): a chunk without a mask states them by
  /// q_start. Throws InvalidArgument, and what the visitor throws; the statistics are of no use
  /// after the latter, nor after std::bad_alloc.
  void add(const AttentionArguments& call, const Options& options = {},
           HeadRowVisitor* visitor = nullptr);

  std::int64_t heads() const;
  std::int64_t rows_seen() const;

  /// Throws InvalidArgument where there is no such head; an empty span where not kept.
  HeadMeasures measures(std::int64_t head) const;
  HeadRowStatistics rows(std::int64_t head) const;
  std::span<const float> received(std::int64_t head) const;  ///< [kv_len]
  /// The map of study.maps[index], [q_bins][kv_bins] with the bins of map_spec(index).
  std::span<const float> map(std::int64_t head, int index) const;
  HeadMapSpec map_spec(int index) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace polyhead::inline v0
#pragma GCC visibility pop
