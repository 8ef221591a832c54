#include "support/problem.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include "polyhead/isa.h"

namespace polyhead::test {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

struct DistanceBonus : ScoreModifier<DistanceBonus> {
  float operator()(float score, ScoreAt at) const {
    const float distance = std::abs(static_cast<float>(at.q_pos - at.kv_pos));
    return score + 0.5f / (1.0f + distance) + 0.25f * static_cast<float>(at.head % 3);
  }
};

// Hides every fifth pair by its positions.
struct HideSome : ScoreModifier<HideSome> {
  float operator()(float score, ScoreAt at) const {
    return (at.q_pos * 3 + at.kv_pos + at.head) % 5 == 0 ? kMinusInfinity : score;
  }
};

std::vector<int> order_of(LayoutKind kind) {
  return kind == LayoutKind::heads_first ? std::vector<int>{0, 2, 1, 3}
                                         : std::vector<int>{0, 1, 2, 3};
}

}  // namespace

const std::vector<Types> kTypes = {
    {f32, f32, f32, f32},    {bf16, bf16, bf16, bf16}, {f16, f16, f16, f16},
    {bf16, bf16, bf16, f32}, {f32, f16, f16, f32},     {f32, bf16, bf16, f32},
    {f16, f32, bf16, f16},   {bf16, bf16, f16, bf16},  {f32, f32, bf16, bf16}};

const char* name_of(MaskKind kind) {
  switch (kind) {
    case MaskKind::none:
      return "none";
    case MaskKind::causal_end:
      return "causal_end";
    case MaskKind::causal_start:
      return "causal_start";
    case MaskKind::causal_q_start:
      return "causal_q_start";
    case MaskKind::window_left:
      return "window_left";
    case MaskKind::window_right:
      return "window_right";
    case MaskKind::window_both:
      return "window_both";
    case MaskKind::window_causal:
      return "window_causal";
    case MaskKind::window_and_first:
      return "window_and_first";
    case MaskKind::kv_lengths:
      return "kv_lengths";
    case MaskKind::both_lengths:
      return "both_lengths";
    case MaskKind::prefix:
      return "prefix";
    case MaskKind::prefix_lengths:
      return "prefix_lengths";
    case MaskKind::documents:
      return "documents";
    case MaskKind::boolean_full:
      return "boolean_full";
    case MaskKind::boolean_broadcast:
      return "boolean_broadcast";
    case MaskKind::boolean_by_query:
      return "boolean_by_query";
    case MaskKind::bits:
      return "bits";
    case MaskKind::hidden:
      return "hidden";
    case MaskKind::booleans:
      return "booleans";
    case MaskKind::everything:
      return "everything";
  }
  return "";
}

const char* name_of(ModifierKind kind) {
  switch (kind) {
    case ModifierKind::none:
      return "none";
    case ModifierKind::scale:
      return "scale";
    case ModifierKind::soft_cap:
      return "soft_cap";
    case ModifierKind::bias_full:
      return "bias_full";
    case ModifierKind::bias_broadcast:
      return "bias_broadcast";
    case ModifierKind::bias_16_bit:
      return "bias_16_bit";
    case ModifierKind::bias_hides:
      return "bias_hides";
    case ModifierKind::alibi:
      return "alibi";
    case ModifierKind::slopes:
      return "slopes";
    case ModifierKind::custom:
      return "custom";
    case ModifierKind::custom_hides:
      return "custom_hides";
    case ModifierKind::sink:
      return "sink";
    case ModifierKind::dropout:
      return "dropout";
    case ModifierKind::everything:
      return "everything";
  }
  return "";
}

std::string name_of(const Types& types) {
  return std::string(element_name(types.q)) + "/" + element_name(types.k) + "/" +
         element_name(types.v) + "/" + element_name(types.out);
}

std::string describe(const Case& c) {
  std::ostringstream text;
  text << "batch " << c.batch << " q_len " << c.q_len << " kv_len " << c.kv_len << " heads "
       << c.q_heads << "/" << c.kv_heads << " dims " << c.head_dim << "/" << c.value_dim << " mask "
       << name_of(c.mask) << " modifier " << name_of(c.modifier) << " types " << name_of(c.types)
       << " layout " << static_cast<int>(c.layout) << " seed " << c.seed;
  return text.str();
}

std::vector<Isa> isas() { return available_isas(); }

Problem::Problem(const Case& c) : case_(c) {
  Random random(c.seed);
  const std::vector<int> order = order_of(c.layout);
  const std::int64_t gap = c.layout == LayoutKind::gaps ? 3 : 0;
  q = Tensor(c.types.q, {c.batch, c.q_len, c.q_heads, c.head_dim}, order, gap);
  k = Tensor(c.types.k, {c.batch, c.kv_len, c.kv_heads, c.head_dim}, order, gap);
  v = Tensor(c.types.v, {c.batch, c.kv_len, c.kv_heads, c.value_dim}, order, gap);
  out = Tensor(c.types.out, {c.batch, c.q_len, c.q_heads, c.value_dim}, order, gap);
  lse = Tensor(f32, {c.batch, c.q_len, c.q_heads});
  if (c.statistics) {
    entropy = Tensor(f32, {c.batch, c.q_len, c.q_heads});
    max_weight = Tensor(f32, {c.batch, c.q_len, c.q_heads});
    max_key = Tensor(ElementType::int64, {c.batch, c.q_len, c.q_heads});
  }
  q.fill_normal(random, c.q_deviation);
  k.fill_normal(random);
  v.fill_normal(random);
  make_mask(c.mask, random);
  make_modifier(c.modifier, random);
}

void Problem::make_mask(MaskKind kind, Random& random) {
  const Case& c = case_;
  const auto integers = [&](ElementType type, std::int64_t high) -> Tensor& {
    Tensor& tensor = keep(Tensor(type, {c.batch}));
    tensor.fill([&](const Index&) { return static_cast<double>(random.below(high + 1)); });
    return tensor;
  };
  const auto ids = [&](std::int64_t batch, std::int64_t tokens) -> Tensor& {
    Tensor& tensor = keep(Tensor(ElementType::int32, {batch, tokens}));
    tensor.fill([&](const Index& at) { return std::floor(static_cast<double>(at[1]) / 23.0); });
    return tensor;
  };
  const auto table = [&](Index extents, double set = 0.7) -> Tensor& {
    Tensor& tensor = keep(Tensor(ElementType::boolean, std::move(extents), {}, 5));
    tensor.fill([&](const Index&) { return random.chance(set) ? 1.0 : 0.0; });
    return tensor;
  };
  // Bits of {batch, 1, q_len, kv_len}, three of four set or one.
  const auto packed = [&](bool most) {
    const std::int64_t row = (c.kv_len + 7) / 8 + 1;  // bytes; one more than needed
    Tensor& bytes = keep(Tensor(ElementType::boolean, {c.batch, c.q_len, row}));
    for (std::byte& byte : bytes.bytes()) {
      const std::uint64_t a = random.next(), b = random.next();
      byte = static_cast<std::byte>(most ? a | b : a & b);
    }
    detail::Layout layout;
    layout.axes = 4;
    layout.extents = {c.batch, 1, c.q_len, c.kv_len};
    layout.strides = {row * 8 * c.q_len, 0, row * 8, 1};
    return ConstView(bytes.bytes().data(), ElementType::bit, layout);
  };
  const std::int64_t near = std::max<std::int64_t>(1, c.kv_len / 3);
  switch (kind) {
    case MaskKind::none:
      break;
    case MaskKind::causal_end:
      mask = causal(Align::end);
      break;
    case MaskKind::causal_start:
      mask = causal(Align::start);
      break;
    case MaskKind::causal_q_start:
      mask = causal();
      q_start = Tensor(ElementType::int64, {c.batch});
      q_start.fill(
          [&](const Index&) { return static_cast<double>(random.below(c.kv_len + 3) - 2); });
      break;
    case MaskKind::window_left:
      mask = window(near, -1, Align::end);
      break;
    case MaskKind::window_right:
      mask = window(-1, near, Align::start);
      break;
    case MaskKind::window_both:
      mask = window(near / 2, near / 4, Align::end);
      break;
    case MaskKind::window_causal:
      mask = causal(Align::end) & window(near, 0, Align::end);
      break;
    case MaskKind::window_and_first:
      mask = causal(Align::end) &
             window_and_first(near / 2, -1, std::min<std::int64_t>(5, c.kv_len), Align::end);
      break;
    case MaskKind::kv_lengths:
      mask = lengths(integers(ElementType::int32, c.kv_len).const_view());
      break;
    case MaskKind::both_lengths:
      mask = lengths(integers(ElementType::int64, c.kv_len).const_view(),
                     integers(ElementType::int32, c.q_len).const_view()) &
             causal(Align::end);
      break;
    case MaskKind::prefix:
      mask = prefix(near, Align::end);
      break;
    case MaskKind::prefix_lengths:
      mask = prefix(integers(ElementType::int32, c.kv_len).const_view(), Align::start);
      break;
    case MaskKind::documents:
      mask = documents(ids(1, c.q_len).const_view(), ids(c.batch, c.kv_len).const_view());
      break;
    case MaskKind::boolean_full:
      mask = boolean(table({c.batch, c.q_heads, c.q_len, c.kv_len}).const_view());
      break;
    case MaskKind::boolean_broadcast:
      mask = boolean(table({1, c.q_heads, 1, c.kv_len}).const_view());
      break;
    case MaskKind::boolean_by_query:
      mask = boolean(table({c.batch, 1, c.q_len, 1}).const_view());
      break;
    case MaskKind::bits:
      mask = boolean(packed(true));
      break;
    case MaskKind::hidden:  // of keys, as a key_padding_mask; pairs among `everything`
      mask = hidden(table({c.batch, 1, 1, c.kv_len}).const_view());
      break;
    case MaskKind::booleans:  // two of each
      mask = boolean(table({c.batch, 1, c.q_len, c.kv_len}, 0.9).const_view()) &
             hidden(packed(false)) & boolean(table({1, c.q_heads, 1, c.kv_len}, 0.9).const_view()) &
             hidden(table({c.batch, 1, 1, c.kv_len}, 0.2).const_view());
      break;
    case MaskKind::everything:
      mask = prefix(near / 2, Align::end) & window(near * 2, near, Align::end) &
             lengths(integers(ElementType::int64, c.kv_len).const_view()) &
             boolean(table({c.batch, 1, c.q_len, c.kv_len}).const_view()) & hidden(packed(false));
      break;
  }
}

void Problem::make_modifier(ModifierKind kind, Random& random) {
  const Case& c = case_;
  const auto bias = [&](ElementType type, Index extents) -> Tensor& {
    Tensor& tensor = keep(Tensor(type, std::move(extents), {}, 2));
    tensor.fill_normal(random);
    return tensor;
  };
  const auto heads = [&](double low, double high) -> Tensor& {
    Tensor& tensor = keep(Tensor(f32, {c.q_heads}));
    tensor.fill([&](const Index&) { return random.uniform(low, high); });
    return tensor;
  };
  const bool all = kind == ModifierKind::everything;
  if (kind == ModifierKind::scale || all)
    modifiers.scale = 0.37f / static_cast<float>(std::sqrt(c.head_dim + 1));
  if (kind == ModifierKind::soft_cap || all) modifiers.soft_cap = 1.5f;
  if (kind == ModifierKind::bias_full || all) {
    modifiers.bias = bias(f32, {c.batch, c.q_heads, c.q_len, c.kv_len}).const_view();
  }
  if (kind == ModifierKind::bias_broadcast) {
    modifiers.bias = bias(f32, {1, c.q_heads, c.q_len, 1}).const_view();
  }
  if (kind == ModifierKind::bias_16_bit) {
    modifiers.bias = bias(random.chance(0.5) ? f16 : bf16, {c.batch, 1, 1, c.kv_len}).const_view();
  }
  if (kind == ModifierKind::bias_hides) {
    Tensor& tensor = bias(f32, {1, 1, c.q_len, c.kv_len});
    tensor.fill(
        [&](const Index&) { return random.chance(0.4) ? kMinusInfinity : random.normal(); });
    modifiers.bias = tensor.const_view();
  }
  if (kind == ModifierKind::alibi) modifiers.alibi.use_default_slopes = true;
  if (kind == ModifierKind::slopes || all) modifiers.alibi.slopes = heads(0.001, 0.5).const_view();
  if ((kind == ModifierKind::alibi || kind == ModifierKind::slopes ||
       kind == ModifierKind::dropout || all) &&
      mask.align == Align::unstated && !q_start.given()) {
    mask.align = Align::end;
  }
  if (kind == ModifierKind::custom || all) {
    custom_.push_back(std::make_unique<DistanceBonus>());
    modifiers.custom[0] = custom_.back().get();
  }
  if (kind == ModifierKind::custom_hides) {
    custom_.push_back(std::make_unique<HideSome>());
    modifiers.custom[2] = custom_.back().get();
  }
  if (kind == ModifierKind::sink || all) modifiers.sink = heads(-1.0, 3.0).const_view();
  if (kind == ModifierKind::dropout || all) {
    modifiers.dropout.probability = 0.25f;
    modifiers.dropout.seed = random.next();
    if (all) {
      Tensor& sequence_ids = keep(Tensor(ElementType::int64, {c.batch}));
      sequence_ids.fill([&](const Index& at) { return static_cast<double>(at[0] + 100); });
      modifiers.dropout.sequence_ids = sequence_ids.const_view();
    }
  }
}

AttentionArguments Problem::arguments() {
  AttentionArguments arguments;
  arguments.q = q.view();
  arguments.k = k.view();
  arguments.v = v.view();
  arguments.out = out.view();
  arguments.lse = lse.view();
  arguments.statistics = {entropy.view(), max_weight.view(), max_key.view()};
  arguments.mask = mask;
  arguments.modifiers = modifiers;
  arguments.q_start = q_start.view();
  return arguments;
}

void Problem::run(Isa isa, Executor* executor) {
  for (Tensor* output : {&out, &lse, &entropy, &max_weight, &max_key}) output->poison();
  attention(arguments(), {.isa = isa, .executor = executor});
}

}  // namespace polyhead::test
