// The door: scaled dot-product attention over any shape, mask and modifier.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "polyhead/error.h"
#include "polyhead/executor.h"
#include "polyhead/isa.h"
#include "polyhead/kv_view.h"
#include "polyhead/mask.h"
#include "polyhead/modifiers.h"
#include "polyhead/options.h"
#include "polyhead/types.h"

#pragma GCC visibility push(default)
namespace polyhead::inline v0 {

/// Statistics of each softmax row, computed in the same pass. Each view is optional,
/// [batch, q_len, q_heads] ([tokens, q_heads] when ragged). Rows without a visible key give 0, 0
/// and -1, rows that see a NaN give NaN, NaN and any key.
struct RowStatistics {
  View entropy{};     ///< float32, nats: -sum w ln w over the keys (a sink's share is not a key)
  View max_weight{};  ///< float32: the largest weight
  View max_key{};     ///< int64: its key index, the first on ties; kv_len at most 2^31
};

/// One call of attention: what is computed. How it is computed is in Options.
struct AttentionArguments {
  ConstView q{};  ///< [batch, q_len, q_heads, head_dim]; ragged: [q_tokens, q_heads, head_dim]
  ConstView k{};  ///< [batch, kv_len, kv_heads, head_dim]; ragged: [kv_tokens, kv_heads, head_dim]
  ConstView v{};  ///< [batch, kv_len, kv_heads, value_dim]
  /// What a cache holds, instead of k, v, kv_offsets and mask.kv_lengths.
  KvView kv{};
  View out{};  ///< [batch, q_len, q_heads, value_dim]
  Mask mask{};
  Modifiers modifiers{};
  /// Ragged batch: int32/int64 [batch + 1], ascending from 0; both or neither, q_offsets alone with
  /// kv. Tokens past the last offset belong to no sequence: their rows of out and lse are left
  /// alone.
  ConstView q_offsets{}, kv_offsets{};
  /// int32/int64 [batch]: position of each sequence's first query, instead of an alignment;
  /// within -2^48 .. 2^48.
  ConstView q_start{};
  /// Optional float32 [batch, q_len, q_heads], ragged [q_tokens, q_heads]: the natural logarithm of
  /// a row's sum of exponentials, its sink's among them; -inf where it sees no key, sink or not.
  View lse{};
  RowStatistics statistics{};
};

/// Scaled dot-product attention: out = softmax(modify(scale * q k^T)) v, for every head.
///
/// Query head h reads KV head h / group, group = q_heads / kv_heads. Element types float32, float16
/// and bfloat16, each of q, k, v and out its own. Any strides. head_dim and value_dim up to 768,
/// each its own; 0 is allowed for any size.
///
/// A query that sees no key gets zeros and an LSE of -inf. What is masked is not read into the
/// result: NaN or Inf in a masked slot of k or v changes no bit. NaN in q or in a visible slot
/// reaches exactly the rows that see it (in int8 and int4 values under bfloat16 queries those whose
/// weight for it is not 0).
///
/// Same bits for any batching, chunking, strides and thread count (finite inputs, one instruction
/// set, one set of element types).
///
/// Accuracy: scores and sums in float32; error bound in docs/numerics.md.
///
/// Throws InvalidArgument naming the argument; out is untouched then. An exception of a custom
/// modifier or of the executor comes out of the call, and out is then unspecified.
///
/// Thread-safe. Takes at most 128 KiB of the calling thread's stack. Scratch: at most 1 MiB a
/// thread for dims up to 256, 512 KiB a call that decodes over pages, and 128 bytes for each
/// sequence of an uneven batch of more than 512; never O(q_len * kv_len).
///
/// Source: Vaswani et al. 2017, eq. 1; tiling after Dao et al. 2022, alg. 1.
void attention(const AttentionArguments& arguments, const Options& options = {});

/// The largest batch, lengths and numbers of heads that a Plan will serve, and the dims and element
/// types that it is for: kv_type is any that KvView has, v_type is that of values that are not of
/// kv_type (both are then floating-point types).
struct Limits {
  std::int64_t batch = 1, q_len = 1, kv_len = 1, q_heads = 1, kv_heads = 1, head_dim = 64,
               value_dim = 64;
  ElementType q_type = ElementType::float32, kv_type = ElementType::float32;
  std::optional<ElementType> v_type{};  ///< not given: kv_type
};

class Plan;

/// Scratch of one caller of a Plan. Movable; used by one run at a time.
class Workspace {
 public:
  Workspace(Workspace&&) noexcept;
  Workspace& operator=(Workspace&&) noexcept;
  ~Workspace();
  std::size_t bytes() const;  ///< 0 once moved from

 private:
  friend class Plan;
  struct State;
  explicit Workspace(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// Attention prepared once and run often: immutable, shared by any number of threads, each with its
/// own workspace. A plan serves every batch, length and number of heads up to its limits, so
/// decoding needs one plan, not one a token.
class Plan {
 public:
  /// Throws InvalidArgument for impossible limits or an instruction set this machine lacks.
  Plan(const Limits& limits, const Options& options = {});
  ~Plan();
  /// What was moved from may be assigned to or destroyed, no more.
  Plan(Plan&&) noexcept;
  Plan& operator=(Plan&&) noexcept;

  Workspace make_workspace() const;  ///< of the size that any run within the limits needs

  /// Validates as attention() does, and that batch, lengths and heads are within the limits, dims
  /// and types those of the limits. Never allocates (unless it throws): the plan has started its
  /// threads. An executor that is given starts its own in its first run, as a ThreadPool does.
  void run(const AttentionArguments& arguments, Workspace& workspace) const;

  /// One paragraph: kernels, instruction set, tiles, splits, workers and scratch.
  std::string describe() const;

  /// describe() and how one call would be cut: kernel, work items and workers.
  std::string describe(const AttentionArguments& arguments) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Results over parts of the keys, and where the whole goes: outs [parts, batch, tokens, heads,
/// dim], lses float32 [parts, batch, tokens, heads]; out [batch, tokens, heads, dim], lse float32
/// [batch, tokens, heads] optional; outs and out float32, float16 or bfloat16, each its own, any
/// strides; sink float32 [heads], optional.
struct MergeArguments {
  ConstView outs{}, lses{};
  View out{}, lse{};
  ConstView sink{};
};

/// Joins `parts` results over disjoint key sets of the same queries into one:
///   lse = ln sum_p exp(lse_p) (+ exp(sink)),   out = sum_p exp(lse_p - lse) out_p.
///
/// Partial results exclude the sink; given here it is counted once. Empty parts (LSE -inf) add
/// nothing, whatever their out holds; all empty gives 0 and -inf. A row with an LSE of NaN or +inf
/// becomes NaN.
///
/// Accuracy: parts are added in order, in double, and rounded once; same bits for any batch and
/// threads. Thread-safe. Throws InvalidArgument, with nothing written. Source: Dao 2023
/// (FlashAttention-2), section 3.1.
void merge_partials(const MergeArguments& arguments, const Options& options = {});

}  // namespace polyhead::inline v0
#pragma GCC visibility pop
