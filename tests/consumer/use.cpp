// A user's program: one call, one own score function, a key in a frame, one refused call.
#include <polyhead/attention.h>
#include <polyhead/code_frame.h>
#include <polyhead/version.h>

#include <cmath>
#include <cstdio>

struct PreferSecondKey : polyhead::ScoreModifier<PreferSecondKey> {
  float operator()(float score, polyhead::ScoreAt at) const {
    return at.kv_pos == 1 ? score + std::log(3.0f) : score;
  }
};

/// A key in its frame: (4 - 1) / 2.
float in_a_frame() {
  float k[1] = {4.0f};
  polyhead::enter_frames({.keys = {.centre = {1.0f}, .stretch = {2.0f}}}, {}, {k, {1, 1, 1}}, {});
  return k[0];
}

int main() {
  const float q[1] = {0.0f}, k[2] = {1.0f, 1.0f}, v[2] = {0.0f, 4.0f};
  float out[1] = {-1.0f};
  const PreferSecondKey prefer_second_key;
  polyhead::AttentionArguments call{
      .q = {q, {1, 1, 1, 1}},
      .k = {k, {1, 2, 1, 1}},
      .v = {v, {1, 2, 1, 1}},
      .out = {out, {1, 1, 1, 1}},
  };
  polyhead::attention(call);
  if (!(std::abs(out[0] - 2.0f) <= 1e-6f)) return 1;

  call.modifiers.custom[0] = &prefer_second_key;  // weights 1/4 and 3/4
  polyhead::attention(call);
  if (!(std::abs(out[0] - 3.0f) <= 1e-5f)) return 2;

  if (in_a_frame() != 1.5f) return 4;

  call.q = {q, {1, 1, 0, 1}};
  try {
    polyhead::attention(call);
    return 3;
  } catch (const polyhead::InvalidArgument& refusal) {
    std::printf("polyhead %s, as it should: %s\n", polyhead::version(), refusal.what());
  }
  return 0;
}
