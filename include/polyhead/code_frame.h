// Frames in which keys and values lose least when a cache makes codes of them, the queries that go
// with such keys, and the way back of what attention makes of such values.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "polyhead/error.h"
#include "polyhead/options.h"
#include "polyhead/rope.h"
#include "polyhead/types.h"

#pragma GCC visibility push(default)
namespace polyhead::inline v0 {

/// How keys or values of one layer are centred, stretched and turned before they are stored, for
/// each KV head: x' = H ((x - c) / s), where H is the orthonormal Walsh-Hadamard transform of runs
/// of the largest power of two that divides dim (its own inverse; 1 for an odd dim, 64 for 192).
struct CodeFrame {
  std::vector<float> centre{}, stretch{};  ///< c and s, [kv_heads * dim]: finite, s positive
  /// How int4 rounds x': dim after dim, each with what those before it lost, so as to make
  /// e' L D L' e of the errors e small (not always the least there is). L [kv_heads * dim * dim]
  /// (rows of a head's unit lower triangle) and D [kv_heads * dim], finite, D not below 0. Both
  /// empty: the cache rounds to nearest.
  std::vector<float> carry{}, cost{};

  bool given() const {
    return !(centre.empty() && stretch.empty() && carry.empty() && cost.empty());
  }
};

/// The frames of one layer, fixed as long as its cache is: FrameCalibration finds them, and they
/// are plain numbers that may be kept and given again. Either may be empty: rows as they are.
struct LayerFrames {
  CodeFrame keys{}, values{};
};

/// Takes q, k and v of a chunk into `frames`, where they lie: after RoPE, before k and v are
/// appended to a cache of int8 or int4 by token (one without key_scales). For KV head h, with the
/// keys' frame c, s and H,
///   k' = H ((k - c) / s),   q' = H (s q) for each query head of h,   so that q'.k' = q.k - q.c:
/// all scores of a row move by scale * q.c, which the softmax does not see, and so does its LSE.
/// And v' = H ((v - c) / s) with the values' frame; leave_frames() takes what attention makes of
/// them back.
///
/// q  [tokens, q_heads, head_dim] or [batch, tokens, ..]   any strides, not broadcast
/// k  the same with kv_heads, which divides q_heads; tokens and batch may differ from q's
/// v  the same with value_dim
/// Each float32, float16 or bfloat16, and each may be not given (a context is entered once, its
/// queries later). Dims up to 768. KV heads are those that the frames are for.
///
/// Where a frame has `carry` and `cost`, k' and v' come out rounded to what an int4 cache holds:
/// dims from the last to the first, each after the errors of those before it were carried over,
/// with the best of 8 scales a block of 32. Its own rounding then changes nothing, whichever of the
/// float types they are (float16: of blocks whose largest number is within 2^-17 .. 65504). A row
/// with a NaN or an infinity is not rounded; H spreads it over its run.
///
/// Not for calls that notice a shift of all scores of a row, unless the keys' centre is 0: a
/// soft-cap, a sink, a score function of one's own that is not linear. Nor for attend_in_cache,
/// which rotates queries itself.
///
/// Accuracy: at most log2(dim) + 3 roundings of float32 an element, and one to the view's type
/// (docs/numerics.md). A row's result depends on that row alone and is the same bits in any chunk,
/// batch, strides, number of threads and instruction set.
/// Throws InvalidArgument naming the argument (sizes that do not fit, numbers it reads of a frame
/// that are not finite, views that overlap); nothing is written then. Thread-safe; allocates
/// nothing. Source: QuaRot (Ashkboos et al. 2024) for H; LDLQ of QuIP (Chee et al. 2023) for the
/// rounding.
void enter_frames(const LayerFrames& frames, View q, View k, View v, const Options& options = {});

/// Takes attention's output over values in their frame back, where it lies:
///   out = s (H out') + c,   as the weights of a row sum to 1.
/// So not after dropout, with a sink or for a row that sees no key, unless c is 0 (as
/// FrameCalibration has it).
///
/// out [tokens, q_heads, value_dim] or [batch, tokens, ..], as enter_frames takes it. Nothing
/// happens where the values have no frame. Accuracy, errors and threads as of enter_frames.
void leave_frames(const LayerFrames& frames, View out, const Options& options = {});

/// How errors e of a row of values count, e' M e, for what a layer adds to its output: for each KV
/// head the sum over its query heads of W'W, where W are the columns of the output projection that
/// the head's dims meet. [kv_heads * value_dim * value_dim], up to a factor.
///
/// w_o [out, q_heads * value_dim], as LayerWeights has it; float32, float16 or bfloat16, any
/// strides. Throws InvalidArgument.
std::vector<double> value_moments(ConstView w_o, std::int64_t kv_heads, std::int64_t value_dim,
                                  const Options& options = {});

struct FrameCalibrationConfig {
  std::int64_t q_heads = 1, kv_heads = 1;  ///< kv_heads divides q_heads
  std::int64_t head_dim = 64;              ///< up to 768
  std::int64_t value_dim = 0;              ///< 0: head_dim
  std::optional<RopeConfig> rope{};        ///< how q and k were rotated; none: not at all
  /// Whether keys may have a centre: false where scores are soft-capped, have a sink or go through
  /// a function that is not linear.
  bool centred = true;
};

/// Finds the frames of a layer on q, k and v of some text: a prompt, or a part of it. Some 700
/// tokens are enough, and fewer are trusted less. RoPE turns keys and queries with the position, so
/// what was seen is turned back to position 0 and averaged over all positions that the cache will
/// serve, not only those of the text.
///
/// With the keys' mean m and deviation, the values' magnitude, the queries' second moment S and the
/// weight w = sqrt(S's diagonal) of each dim:
///   int8   keys c = m, s = sqrt(deviation / w): errors of equal size cost the scores least
///   int4   keys c = m, s = deviation^(3/4) / w^(1/4), rounded by S in the frame (H s S s H)
///          values c = 0, s = magnitude, rounded by their moments
/// docs/numerics.md has what was measured, and why values have no centre.
///
/// Movable; not for concurrent use.
class FrameCalibration {
 public:
  /// Throws InvalidArgument for impossible sizes or RoPE.
  explicit FrameCalibration(const FrameCalibrationConfig& config);
  /// What was moved from may be assigned to or destroyed, no more.
  FrameCalibration(FrameCalibration&&) noexcept;
  FrameCalibration& operator=(FrameCalibration&&) noexcept;
  ~FrameCalibration();

  /// One chunk, as attention takes it and before any frame: q, k and v [tokens, heads, dim] or
  /// [batch, tokens, ..], float32, float16 or bfloat16, any strides. positions: int32/int64
  /// [tokens] or [batch, tokens], those that q and k were rotated by; not needed without RoPE.
  ///
  /// Sums are in double, in the order of sequences and tokens: the same bits however the tokens of
  /// one sequence are cut into chunks, and for any number of threads. Throws InvalidArgument, also
  /// for a NaN or an infinity; nothing is added then. Where the executor or memory fails within,
  /// the calibration has a part of the chunk and is of no more use.
  void add(ConstView q, ConstView k, ConstView v, ConstView positions = {},
           const Options& options = {});

  std::int64_t tokens() const;  ///< seen so far

  /// Frames for a cache of int8 or int4 that serves positions 0 .. length - 1. Of values (int4):
  /// `moments` as value_moments() gives them, symmetric [kv_heads * value_dim * value_dim]; empty:
  /// errors of all dims count alike. Throws InvalidArgument, also before any token was seen and for
  /// moments that no errors have.
  LayerFrames frames(ElementType type, std::int64_t length,
                     std::span<const double> moments = {}) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace polyhead::inline v0
#pragma GCC visibility pop
