// The door's check of what a mask and modifiers say whatever call they come with: that of layers,
// which have them before there is a call, too.
#include <cmath>
#include <utility>

#include "attention/validate.hpp"
#include "base/element.hpp"
#include "base/refuse.hpp"

namespace polyhead::inline v0::door {
namespace {

// Beyond these a float32 has no inverse that is neither subnormal nor infinite.
constexpr float kLeastSoftCap = 1e-30f, kMostSoftCap = 1e30f;

void check_window(const char* call, const Mask& mask) {
  if (mask.windowed) {
    if (mask.first_tokens < 0)
      base::refuse(call, "mask.first_tokens (", mask.first_tokens, ") is negative");
    for (const auto& [side, value] : {std::pair{"left", mask.left}, {"right", mask.right}}) {
      if (value < -1)
        base::refuse(call, "mask.", side, " (", value, ") is less than -1 (unbounded)");
    }
    return;
  }
  // Beside a mask without a window they would not be read.
  if (mask.first_tokens != 0)
    base::refuse(call, "mask.first_tokens (", mask.first_tokens, ") is given without a window");
  for (const auto& [side, value] : {std::pair{"left", mask.left}, {"right", mask.right}}) {
    if (value != -1) {
      base::refuse(call, "mask.", side, " (", value,
                   ") is given without mask.windowed, expected that or -1");
    }
  }
}

void check_mask(const char* call, const Mask& mask) {
  if (mask.conflict != nullptr)
    base::refuse(call, "mask joins two masks of one kind that differ: ", mask.conflict);
  check_window(call, mask);
  if (mask.align != Align::unstated && mask.align != Align::start && mask.align != Align::end) {
    base::refuse(call, "mask.align (", static_cast<int>(mask.align),
                 ") is not Align::unstated, start or end");
  }
  if (mask.prefix_length < 0)
    base::refuse(call, "mask.prefix_length (", mask.prefix_length, ") is negative");
  if (mask.prefix_length > 0 && mask.prefix_lengths.given()) {
    base::refuse(call, "mask.prefix_length (", mask.prefix_length,
                 ") and mask.prefix_lengths are both given, expected one");
  }
  for (const auto& [name, view] : {std::pair{"mask.visible", &mask.visible},
                                   {"mask.also_visible", &mask.also_visible},
                                   {"mask.hidden", &mask.hidden},
                                   {"mask.also_hidden", &mask.also_hidden}}) {
    if (view->given() && view->type != ElementType::boolean && view->type != ElementType::bit) {
      base::refuse(call, name, " is ", element_name(view->type),
                   ", expected boolean or bit (an additive mask is modifiers.bias)");
    }
  }
}

void check_of_heads(const char* call, const char* name, const ConstView& view,
                    std::int64_t q_heads) {
  if (!view.given()) return;
  check_axes(call, name, view, {{"q_heads", q_heads}});
  check_type(call, name, view, ElementType::float32);
}

}  // namespace

void check_settings(const char* call, const Mask& mask, const Modifiers& modifiers,
                    std::int64_t q_heads) {
  check_mask(call, mask);
  if (modifiers.scale && !std::isfinite(*modifiers.scale))
    base::refuse(call, "modifiers.scale (", *modifiers.scale, ") is not finite");
  const float cap = modifiers.soft_cap, dropout = modifiers.dropout.probability;
  if (cap != 0.0f && !(cap >= kLeastSoftCap && cap <= kMostSoftCap)) {
    base::refuse(call, "modifiers.soft_cap (", cap, ") is neither 0 (none) nor within ",
                 kLeastSoftCap, " .. ", kMostSoftCap);
  }
  if (modifiers.bias.given() && !base::is_floating(modifiers.bias.type)) {
    base::refuse(
        call, "modifiers.bias is ", element_name(modifiers.bias.type),
        ", expected float32, float16 or bfloat16 (boolean masks are mask.visible and mask.hidden)");
  }
  if (modifiers.alibi.use_default_slopes && modifiers.alibi.slopes.given())
    base::refuse(call, "modifiers.alibi has both slopes and use_default_slopes, expected one");
  check_of_heads(call, "modifiers.alibi.slopes", modifiers.alibi.slopes, q_heads);
  check_of_heads(call, "modifiers.sink", modifiers.sink, q_heads);
  if (!(dropout >= 0.0f && dropout < 1.0f))
    base::refuse(call, "modifiers.dropout.probability (", dropout, ") is not within [0, 1)");
}

}  // namespace polyhead::inline v0::door
