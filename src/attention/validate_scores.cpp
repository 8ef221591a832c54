// The door's check of scores: which pairs are visible, and what becomes of their scores. What no
// call decides is checked in validate_settings.cpp.
#include <algorithm>
#include <cmath>
#include <utility>

#include "attention/validate.hpp"
#include "base/element.hpp"
#include "base/float_environment.hpp"
#include "base/refuse.hpp"

namespace polyhead::inline v0::door {

float default_scale(std::int64_t head_dim) {
  const base::FloatEnvironment environment;
  // Volatile, or the compiler might compute before the environment is set or after it has ended.
  const volatile auto dim = static_cast<double>(head_dim);
  const volatile auto scale = static_cast<float>(1.0 / std::sqrt(dim));
  return scale;
}

namespace {

using kernels::AttendCall;
using kernels::Integers;
using kernels::PairTable;

/// The half of the door behind sizes and lengths, in the order in which the pieces depend on each
/// other.
class ScoreDoor {
 public:
  ScoreDoor(const char* name, const AttentionArguments& arguments, std::int64_t q_tokens,
            std::int64_t kv_tokens, AttendCall& call, Inputs& inputs)
      : name_(name),
        from_(arguments),
        q_tokens_(q_tokens),
        kv_tokens_(kv_tokens),
        call_(call),
        inputs_(inputs),
        cached_(arguments.kv.given()),
        ragged_(call.q_offsets.given()),
        uneven_(ragged_ || cached_) {}

  void open() {
    check_settings(name_, from_.mask, from_.modifiers, call_.q_heads);
    take_mask();
    take_scores();
    take_sink_and_dropout();
    take_positions();
    check_held();
  }

 private:
  void take_mask();
  void take_scores();
  void take_alibi();
  void take_sink_and_dropout();
  void take_positions();
  void check_held() const;

  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    base::refuse(name_, parts...);
  }

  void remember(const char* name, const ConstView& view) {
    inputs_.add(footprint_of(name_, name, view));
  }

  PairTable pair_table(const char* name, const ConstView& view, Axis key_axis);
  void take_boolean(const char* name, const ConstView& view, bool hides);
  kernels::DocumentIds document_ids(const char* name, const ConstView& view, std::int64_t tokens,
                                    bool joined, Axis::Rule rule);
  bool lengths_may_differ() const;

  const char* name_;
  const AttentionArguments& from_;
  const std::int64_t q_tokens_, kv_tokens_;  // of the q and k views
  AttendCall& call_;
  Inputs& inputs_;
  const bool cached_, ragged_;
  const bool uneven_;  // keys of sequences differ in number: tables reach at least the longest
};

// Pairs [batch|1, q_heads|1, q_len|1, key axis]; when ragged at least as long as the longest
// sequence.
PairTable ScoreDoor::pair_table(const char* name, const ConstView& view, Axis key_axis) {
  const Axis::Rule query_rule = ragged_ ? Axis::at_least_or_one : Axis::or_one;
  check_axes(name_, name, view,
             {{"batch", call_.batch, Axis::or_one},
              {"q_heads", call_.q_heads, Axis::or_one},
              {"q_len", call_.q_len, query_rule},
              key_axis});
  if (view.type == ElementType::bit) {
    if (view.layout.extents[3] > 1 && view.layout.strides[3] != 1) {
      refuse(name, ": stride of the key axis is ", view.layout.strides[3], " bits, expected 1");
    }
    for (int axis = 0; axis < 3; ++axis) {
      if (view.layout.extents[axis] > 1 && view.layout.strides[axis] % 8 != 0) {
        refuse(name, ": stride of axis ", axis, " is ", view.layout.strides[axis],
               " bits, expected whole bytes");
      }
    }
  }
  remember(name, view);
  return {static_cast<const std::byte*>(view.data),
          view.type,
          kernel_stride(view, 0),
          kernel_stride(view, 1),
          kernel_stride(view, 2),
          kernel_stride(view, 3)};
}

void ScoreDoor::take_boolean(const char* name, const ConstView& view, bool hides) {
  if (!view.given()) return;
  // A packed row has its keys in whole bytes, which one bit for all of them is not.
  const Axis::Rule keys = view.type == ElementType::bit
                              ? (uneven_ ? Axis::at_least : Axis::exact)
                              : (uneven_ ? Axis::at_least_or_one : Axis::or_one);
  kernels::MaskSpec& spec = call_.mask;
  spec.boolean[spec.boolean_count++] = {pair_table(name, view, {"kv_len", call_.kv_len, keys}),
                                        hides};
}

// Ids [batch|1, tokens], also [tokens] when ragged.
kernels::DocumentIds ScoreDoor::document_ids(const char* name, const ConstView& view,
                                             std::int64_t tokens, bool joined, Axis::Rule rule) {
  const bool flat = joined && view.layout.axes == 1;
  if (flat)
    check_axes(name_, name, view, {{"tokens", tokens}});
  else
    check_axes(name_, name, view,
               {{"batch", joined ? 1 : call_.batch, Axis::or_one}, {"tokens", tokens, rule}});
  check_integer(name_, name, view);
  remember(name, view);
  return {static_cast<const std::byte*>(view.data), view.type, flat ? 0 : kernel_stride(view, 0),
          kernel_stride(view, flat ? 0 : 1)};
}

// A right side beyond any distance between positions, which are within 2^49: as good as unbounded,
// and sums with positions stay in 64 bits.
constexpr std::int64_t kFarthest = 4 * kMaxExtent;

void ScoreDoor::take_mask() {
  const Mask& mask = from_.mask;
  kernels::MaskSpec& spec = call_.mask;
  spec.causal = mask.causal;
  if (mask.windowed) {
    spec.left = mask.left;
    spec.right = std::min(mask.right, kFarthest);
    spec.kept = mask.left >= 0 ? mask.first_tokens : 0;
  }
  for (const auto& [part, given] : {std::pair{"mask.prefix_length", mask.prefix_length > 0},
                                    {"mask.prefix_lengths", mask.prefix_lengths.given()}}) {
    if (given && !mask.causal) refuse(part, " is given without mask.causal");
  }
  spec.prefix_length = mask.prefix_length;
  spec.prefix_lengths =
      sequence_integers(name_, "mask.prefix_lengths", mask.prefix_lengths, call_.batch, inputs_);
  for (std::int64_t b = 0; spec.prefix_lengths.given() && b < call_.batch; ++b) {
    if (spec.prefix_lengths[b] < 0)
      refuse("mask.prefix_lengths[", b, "] (", spec.prefix_lengths[b], ") is negative");
  }
  if (mask.q_documents.given() || mask.kv_documents.given()) {
    spec.q_documents =
        document_ids("mask.q_documents", mask.q_documents, q_tokens_, ragged_, Axis::exact);
    spec.kv_documents = document_ids("mask.kv_documents", mask.kv_documents, kv_tokens_,
                                     ragged_ && !cached_, cached_ ? Axis::at_least : Axis::exact);
  }
  take_boolean("mask.visible", mask.visible, false);
  take_boolean("mask.also_visible", mask.also_visible, false);
  take_boolean("mask.hidden", mask.hidden, true);
  take_boolean("mask.also_hidden", mask.also_hidden, true);
}

// Whether `end` and `start` may mean different positions for some sequence.
bool ScoreDoor::lengths_may_differ() const {
  if (!cached_ && call_.q_lengths.given() != call_.kv_lengths.given()) return true;
  for (std::int64_t b = 0; b < call_.batch; ++b) {
    const kernels::Sequence sequence = kernels::sequence_of(call_, b);
    if (sequence.q_len != sequence.kv_len) return true;
    if (!uneven_ && !call_.q_lengths.given()) break;  // all sequences are alike
  }
  return false;
}

void ScoreDoor::take_positions() {
  const Align align = from_.mask.align;
  const Alibi& alibi = from_.modifiers.alibi;
  call_.positions = align == Align::start ? kernels::Positions::start : kernels::Positions::end;
  if (from_.q_start.given()) {
    if (align != Align::unstated) refuse("q_start and mask.align are both given, expected one");
    const Integers starts =
        sequence_integers(name_, "q_start", from_.q_start, call_.batch, inputs_);
    for (std::int64_t b = 0; b < call_.batch; ++b) {
      if (starts[b] > kMaxExtent || starts[b] < -kMaxExtent) {
        refuse("q_start[", b, "] (", starts[b], ") is not within -2^48 .. 2^48");
      }
    }
    call_.q_start = starts;
    return;
  }
  const char* needs = call_.mask.causal                               ? "a causal mask"
                      : call_.mask.left >= 0 || call_.mask.right >= 0 ? "a window"
                      : alibi.given()                                 ? "alibi"
                      : from_.modifiers.dropout.probability > 0.0f    ? "dropout"
                                                                      : nullptr;
  if (needs != nullptr && align == Align::unstated && lengths_may_differ()) {
    refuse("mask.align is unstated, but ", needs, " depends on it where q_len (", call_.q_len,
           ") and kv_len (", call_.kv_len,
           ") or their valid lengths may differ; expected Align::end, Align::start or q_start");
  }
}

// No query may see what a ring has written over.
void ScoreDoor::check_held() const {
  const KvView& view = from_.kv;
  if (!view.oldest.given()) return;
  const Integers oldest = integers_of(view.oldest);
  for (std::int64_t b = 0; b < call_.batch; ++b) {
    if (oldest[b] <= view.first_tokens) continue;
    const kernels::Sequence sequence = kernels::sequence_of(call_, b);
    for (std::int64_t query = 0; query < sequence.q_len; ++query) {
      const kernels::KeyRange seen =
          kernels::structural_range(call_.mask, sequence, sequence.q_pos0 + query);
      const std::int64_t begin = call_.mask.kept > view.first_tokens ? 0 : seen.begin;
      const std::int64_t gone = std::max(begin, view.first_tokens);
      if (gone < std::min(seen.end, oldest[b])) {
        refuse("query ", query, " of sequence ", b, " sees key ", gone,
               ", but kv holds its keys from ", oldest[b], " on (kv.oldest) and the first ",
               view.first_tokens, " alone");
      }
    }
  }
}

// Null with no elements: one that is never read.
const float* float_data(const ConstView& view) { return static_cast<const float*>(view.data); }

std::int64_t element_stride(const ConstView& view) {
  return view.layout.extents[0] <= 1 ? 0 : view.layout.strides[0];
}

void ScoreDoor::take_scores() {
  const Modifiers& modifiers = from_.modifiers;
  kernels::ScoreSpec& spec = call_.score;
  if (modifiers.scale.has_value()) {
    spec.scale = *modifiers.scale;
  } else if (call_.head_dim > 0) {
    spec.scale = default_scale(call_.head_dim);
  }
  spec.soft_cap = modifiers.soft_cap;
  if (modifiers.bias.given()) {
    spec.bias =
        pair_table("modifiers.bias", modifiers.bias,
                   {"kv_len", call_.kv_len, uneven_ ? Axis::at_least_or_one : Axis::or_one});
  }
  take_alibi();
  for (const TileModifier* custom : modifiers.custom) {
    if (custom != nullptr) spec.custom[spec.custom_count++] = custom;
  }
}

void ScoreDoor::take_alibi() {
  const Alibi& alibi = from_.modifiers.alibi;
  kernels::ScoreSpec& spec = call_.score;
  spec.alibi = alibi.given();
  if (alibi.slopes.given()) {
    const ConstView& slopes = alibi.slopes;
    remember("modifiers.alibi.slopes", slopes);
    spec.alibi_slopes = float_data(slopes);
    spec.alibi_stride = element_stride(slopes);
    for (std::int64_t h = 0; h < call_.q_heads; ++h) {
      const float slope = spec.alibi_slopes[h * spec.alibi_stride];
      if (!std::isfinite(slope))
        refuse("modifiers.alibi.slopes[", h, "] (", slope, ") is not finite");
      spec.steep = spec.steep || std::fabs(slope) > kernels::kSteepSlope;
    }
  }
}

void ScoreDoor::take_sink_and_dropout() {
  const Modifiers& modifiers = from_.modifiers;
  kernels::ScoreSpec& spec = call_.score;
  if (modifiers.sink.given()) {
    remember("modifiers.sink", modifiers.sink);
    spec.sink = float_data(modifiers.sink);
    spec.sink_stride = element_stride(modifiers.sink);
    check_sinks(name_, "modifiers.sink", spec.sink, spec.sink_stride, call_.q_heads);
  }
  const Dropout& dropout = modifiers.dropout;
  spec.dropout = dropout.probability;
  spec.seed = dropout.seed;
  spec.sequence_ids = sequence_integers(name_, "modifiers.dropout.sequence_ids",
                                        dropout.sequence_ids, call_.batch, inputs_);
}

}  // namespace

void resolve_scores(const char* call_name, const AttentionArguments& arguments,
                    std::int64_t q_tokens, std::int64_t kv_tokens, AttendCall& call,
                    Inputs& inputs) {
  ScoreDoor(call_name, arguments, q_tokens, kv_tokens, call, inputs).open();
}

}  // namespace polyhead::inline v0::door
