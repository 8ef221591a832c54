#include "attention/validate.hpp"

#include <algorithm>

#include "base/element.hpp"
#include "base/float_environment.hpp"
#include "base/refuse.hpp"

namespace polyhead::inline v0::door {
namespace {

using kernels::AttendCall;
using kernels::Integers;
using kernels::Operand;

std::byte* bytes_of(const ConstView& view) {
  return const_cast<std::byte*>(
      static_cast<const std::byte*>(view.data));  // inputs are never written
}

/// One passage through the door, in the order in which the pieces depend on each other.
class Door {
 public:
  Door(const AttentionArguments& arguments, CallName name, Purpose purpose, Inputs& inputs)
      : from_(arguments),
        name_(name.call),
        out_name_(name.out),
        inputs_(inputs),
        forward_(purpose == Purpose::forward),
        with_values_(purpose != Purpose::second_pass),
        cached_(arguments.kv.given()),
        ragged_(arguments.q_offsets.given() || arguments.kv_offsets.given()) {}

  AttendCall open() {
    take_offsets();
    take_tensors();
    take_lengths();
    resolve_scores(name_, from_, q_tokens_, kv_tokens_, call_, inputs_);
    take_outputs();
    return call_;
  }

 private:
  void take_offsets();
  void take_tensors();
  void refuse_parts_of_a_view() const;
  void take_view();
  void check_sizes();
  void take_lengths();
  void take_outputs();

  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    base::refuse(name_, parts...);
  }

  /// Measures an input and remembers it, so that no output may touch it.
  void remember(const char* name, const ConstView& view) {
    inputs_.add(footprint_of(name_, name, view));
  }

  std::int64_t check_offsets(const char* name, const ConstView& offsets);
  void check_token_axes(const char* name, const ConstView& view, bool query_side, Axis heads,
                        Axis dim);
  Operand operand_of(const ConstView& view, bool has_dim) const;
  void check_lengths(const char* name, const Integers& lengths, const Integers& offsets,
                     std::int64_t extent) const;
  Operand row_output(const char* name, const View& view, ElementType type, Footprint* prints,
                     int& count);

  const AttentionArguments& from_;
  const char *name_, *out_name_;
  Inputs& inputs_;
  const bool forward_, with_values_, cached_, ragged_;
  std::int64_t q_tokens_ = 0, kv_tokens_ = 0;  // of the q and k views
  AttendCall call_;
};

// Checks one offsets array and returns its longest sequence.
std::int64_t Door::check_offsets(const char* name, const ConstView& offsets) {
  check_integer(name_, name, offsets);
  if (offsets.layout.too_many_axes || offsets.layout.axes != 1)
    refuse(name, " has ", base::Axes(offsets.layout), ", expected one of batch + 1 entries");
  if (offsets.layout.extents[0] < 1)
    refuse(name, " has ", offsets.layout.extents[0], " entries, expected batch + 1");
  remember(name, offsets);
  return check_ascending(name_, name, integers_of(offsets), offsets.layout.extents[0] - 1);
}

void Door::take_offsets() {
  if (!ragged_) return;
  if (cached_) {
    if (from_.kv_offsets.given()) refuse("kv_offsets and kv are both given, expected one");
    call_.q_len = check_offsets("q_offsets", from_.q_offsets);
    call_.batch = from_.q_offsets.layout.extents[0] - 1;
    call_.q_offsets = integers_of(from_.q_offsets);
    return;
  }
  if (!from_.kv_offsets.given())
    refuse("q_offsets is given without kv_offsets, expected both or neither");
  if (!from_.q_offsets.given())
    refuse("kv_offsets is given without q_offsets, expected both or neither");
  call_.q_len = check_offsets("q_offsets", from_.q_offsets);
  call_.kv_len = check_offsets("kv_offsets", from_.kv_offsets);
  call_.batch = from_.q_offsets.layout.extents[0] - 1;
  const std::int64_t kv_batch = from_.kv_offsets.layout.extents[0] - 1;
  if (kv_batch != call_.batch) {
    refuse("kv_offsets has ", kv_batch + 1, " entries, expected ", call_.batch + 1,
           " as q_offsets");
  }
  call_.q_offsets = integers_of(from_.q_offsets);
  call_.kv_offsets = integers_of(from_.kv_offsets);
}

// Axes [batch, tokens, heads, dim], or [tokens, heads, dim] when ragged.
void Door::check_token_axes(const char* name, const ConstView& view, bool query_side, Axis heads,
                            Axis dim) {
  const std::int64_t tokens = query_side ? q_tokens_ : kv_tokens_;
  if (ragged_) {
    check_axes(name_, name, view, {{query_side ? "q_tokens" : "kv_tokens", tokens}, heads, dim});
  } else {
    check_axes(name_, name, view,
               {{"batch", call_.batch}, {query_side ? "q_len" : "kv_len", tokens}, heads, dim});
  }
  check_floating(name_, name, view);
}

Operand Door::operand_of(const ConstView& view, bool has_dim) const {
  if (view.data == nullptr)
    return {nullptr, view.type};  // no elements: offsets from null would be undefined
  const int token = ragged_ ? 0 : 1;
  Operand operand{
      bytes_of(view), view.type, 0, kernel_stride(view, token), kernel_stride(view, token + 1), 0};
  if (!ragged_) operand.batch = kernel_stride(view, 0);
  if (has_dim) operand.dim = kernel_stride(view, token + 2);
  return operand;
}

void Door::take_tensors() {
  // q gives batch, q_len, q_heads and head_dim, k gives kv_len and kv_heads, v gives value_dim.
  // Missing axes read as extents of 0 here and are refused just below.
  const int token = ragged_ ? 0 : 1;
  const auto extent = [](const ConstView& view, int axis) { return view.layout.extents[axis]; };
  if (!ragged_) call_.batch = extent(from_.q, 0), call_.q_len = extent(from_.q, 1);
  q_tokens_ = extent(from_.q, token);
  call_.q_heads = extent(from_.q, token + 1);
  call_.head_dim = extent(from_.q, token + 2);
  check_token_axes("q", from_.q, true, {"q_heads", call_.q_heads}, {"head_dim", call_.head_dim});
  remember("q", from_.q);
  call_.q = operand_of(from_.q, true);
  if (cached_) {
    take_view();
  } else {
    refuse_parts_of_a_view();
    kv_tokens_ = extent(from_.k, token);
    if (!ragged_) call_.kv_len = kv_tokens_;
    call_.kv_heads = extent(from_.k, token + 1);
    check_token_axes("k", from_.k, false, {"kv_heads", call_.kv_heads},
                     {"head_dim", call_.head_dim});
    remember("k", from_.k);
    call_.k = operand_of(from_.k, true);
    if (with_values_) {
      call_.value_dim = extent(from_.v, token + 2);
      check_token_axes("v", from_.v, false, {"kv_heads", call_.kv_heads},
                       {"value_dim", call_.value_dim});
      remember("v", from_.v);
      call_.v = operand_of(from_.v, true);
    }
  }
  // Its type alone decides how scores are computed, in a second pass as before.
  if (!with_values_) {
    const ConstView& v = cached_ ? from_.kv.v : from_.v;
    call_.v.type = v.given() ? v.type : call_.k.type;
  }
  if (forward_) {
    check_token_axes(out_name_, from_.out, true, {"q_heads", call_.q_heads},
                     {"value_dim", call_.value_dim});
  }
  check_sizes();
}

// Beside k and v they would not be read.
void Door::refuse_parts_of_a_view() const {
  const KvView& view = from_.kv;
  for (const auto& [part, given] : {std::pair{"k_scales", view.k_scales.given()},
                                    {"v_scales", view.v_scales.given()},
                                    {"lengths", view.lengths.given()},
                                    {"oldest", view.oldest.given()},
                                    {"first_tokens", view.first_tokens != 0}}) {
    if (given) refuse("kv.", part, " is given without kv.k and kv.v");
  }
}

void Door::take_view() {
  if (from_.k.given()) refuse("k and kv are both given, expected one");
  if (from_.v.given()) refuse("v and kv are both given, expected one");
  if (from_.mask.kv_lengths.given()) {
    refuse("mask.kv_lengths and kv are both given, expected kv.lengths alone");
  }
  resolve_view(name_, from_.kv, with_values_, call_, inputs_);
  kv_tokens_ = call_.kv_len;
}

void Door::check_sizes() {
  if (call_.head_dim > kMaxDim) refuse("head_dim (", call_.head_dim, ") is more than ", kMaxDim);
  if (call_.value_dim > kMaxDim) refuse("value_dim (", call_.value_dim, ") is more than ", kMaxDim);
  if (call_.q_heads > 0 && (call_.kv_heads == 0 || call_.q_heads % call_.kv_heads != 0)) {
    refuse("q_heads (", call_.q_heads, ") is not a multiple of kv_heads (", call_.kv_heads, ")");
  }
  const std::int64_t most_tokens = std::max({q_tokens_, kv_tokens_, std::int64_t{1}});
  std::int64_t rows = 0;
  if (__builtin_mul_overflow(call_.batch, most_tokens, &rows) ||
      __builtin_mul_overflow(rows, std::max(call_.q_heads, call_.kv_heads), &rows) ||
      rows > INT64_MAX / kMaxDim) {
    refuse("batch (", call_.batch, ") times tokens (", most_tokens,
           ") times heads overflow 64 bits");
  }
  if (call_.q_heads == 0) call_.kv_heads = 0;  // nothing to compute; group() stays defined
  if (!ragged_) return;
  check_end(name_, "q_offsets", call_.q_offsets, call_.batch, q_tokens_, "q");
  if (!cached_) check_end(name_, "kv_offsets", call_.kv_offsets, call_.batch, kv_tokens_, "k");
}

void Door::check_lengths(const char* name, const Integers& lengths, const Integers& offsets,
                         std::int64_t extent) const {
  if (!lengths.given()) return;
  for (std::int64_t b = 0; b < call_.batch; ++b) {
    const std::int64_t tokens = offsets.given() ? offsets[b + 1] - offsets[b] : extent;
    if (lengths[b] < 0 || lengths[b] > tokens)
      refuse(name, "[", b, "] (", lengths[b], ") is not within 0 .. ", tokens);
  }
}

void Door::take_lengths() {
  if (!cached_)
    call_.kv_lengths =
        sequence_integers(name_, "mask.kv_lengths", from_.mask.kv_lengths, call_.batch, inputs_);
  call_.q_lengths =
      sequence_integers(name_, "mask.q_lengths", from_.mask.q_lengths, call_.batch, inputs_);
  if (!cached_) check_lengths("mask.kv_lengths", call_.kv_lengths, call_.kv_offsets, call_.kv_len);
  check_lengths("mask.q_lengths", call_.q_lengths, call_.q_offsets, call_.q_len);
}

// A value a row: [batch, q_len, q_heads], or [q_tokens, q_heads] when ragged.
Operand Door::row_output(const char* name, const View& view, ElementType type, Footprint* prints,
                         int& count) {
  if (!view.given()) return {};
  if (ragged_)
    check_axes(name_, name, view, {{"q_tokens", q_tokens_}, {"q_heads", call_.q_heads}});
  else
    check_axes(name_, name, view,
               {{"batch", call_.batch}, {"q_len", call_.q_len}, {"q_heads", call_.q_heads}});
  check_type(name_, name, view, type);
  prints[count++] = footprint_of(name_, name, view);
  return operand_of(view, false);
}

constexpr std::int64_t kMostKeysNumbered = std::int64_t{1} << 31;  // by kernels, in 32 bits

void Door::take_outputs() {
  Footprint outputs[5];
  int count = 0;
  if (forward_) {
    outputs[count++] = footprint_of(name_, out_name_, from_.out);
    call_.out = operand_of(from_.out, true);
  }
  call_.lse = row_output("lse", from_.lse, ElementType::float32, outputs, count);
  if (!forward_) {  // the LSE is an input of a second pass, as far as it is given
    for (int i = 0; i < count; ++i) inputs_.add(outputs[i]);
    return;
  }
  const RowStatistics& wanted = from_.statistics;
  call_.entropy =
      row_output("statistics.entropy", wanted.entropy, ElementType::float32, outputs, count);
  call_.max_weight =
      row_output("statistics.max_weight", wanted.max_weight, ElementType::float32, outputs, count);
  call_.max_key =
      row_output("statistics.max_key", wanted.max_key, ElementType::int64, outputs, count);
  if (wanted.max_key.given() && call_.kv_len > kMostKeysNumbered) {
    refuse("statistics.max_key is given with kv_len ", call_.kv_len, ", expected at most ",
           kMostKeysNumbered);
  }
  for (int i = 0; i < count; ++i) {
    check_writable(name_, outputs[i], inputs_.prints, inputs_.count);
    check_writable(name_, outputs[i], outputs, i);
  }
}

}  // namespace

AttendCall resolve(const AttentionArguments& arguments, CallName name, Purpose purpose,
                   Inputs& inputs) {
  const base::FloatEnvironment environment;  // settings are compared, slopes made
  return Door(arguments, name, purpose, inputs).open();
}

AttendCall resolve(const AttentionArguments& arguments, CallName name, Purpose purpose) {
  Inputs inputs;
  return resolve(arguments, name, purpose, inputs);
}

}  // namespace polyhead::inline v0::door
