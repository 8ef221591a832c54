// One call of attention, the exact weights of one of its rows, and a score function of one's own.
#include <polyhead/attention.h>
#include <polyhead/inspect.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

namespace {

constexpr std::int64_t kTokens = 8, kQHeads = 4, kKvHeads = 2, kDim = 16;

/// Numbers that look like nothing in particular.
std::vector<float> numbers(std::int64_t count, float phase) {
  std::vector<float> made(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < made.size(); ++i)
    made[i] = 2.0f * std::sin(phase + 1.7f * static_cast<float>(i * i % 97));
  return made;
}

/// Keys lose a nat of score for every token that they lie behind the query.
struct PreferNear : polyhead::ScoreModifier<PreferNear> {
  float operator()(float score, polyhead::ScoreAt at) const {
    return score - static_cast<float>(at.q_pos - at.kv_pos);
  }
};

/// The weights of the last query in every head, a line a head.
void print_last_row(const char* title, const polyhead::AttentionArguments& call) {
  std::vector<float> weights(kQHeads * kTokens);
  polyhead::InspectArguments wanted;
  wanted.weights = {weights.data(), {std::int64_t{1}, kQHeads, std::int64_t{1}, kTokens}};
  wanted.first_query = kTokens - 1;
  polyhead::inspect(call, wanted);
  std::printf("%s\n", title);
  for (std::int64_t head = 0; head < kQHeads; ++head) {
    std::printf("  head %d:", static_cast<int>(head));
    for (std::int64_t key = 0; key < kTokens; ++key)
      std::printf(" %.3f", static_cast<double>(weights[head * kTokens + key]));
    std::printf("\n");
  }
}

}  // namespace

int main() {
  const std::vector<float> q = numbers(kTokens * kQHeads * kDim, 0.0f);
  const std::vector<float> k = numbers(kTokens * kKvHeads * kDim, 1.0f);
  const std::vector<float> v = numbers(kTokens * kKvHeads * kDim, 2.0f);
  std::vector<float> out(q.size()), lse(kTokens * kQHeads);

  // Shapes are [batch, tokens, heads, dim]; heads 0 and 1 of q read head 0 of k and v.
  polyhead::AttentionArguments call;
  call.q = {q.data(), {1, kTokens, kQHeads, kDim}};
  call.k = {k.data(), {1, kTokens, kKvHeads, kDim}};
  call.v = {v.data(), {1, kTokens, kKvHeads, kDim}};
  call.out = {out.data(), {1, kTokens, kQHeads, kDim}};
  call.lse = {lse.data(), {1, kTokens, kQHeads}};
  call.mask = polyhead::causal();
  polyhead::attention(call);
  print_last_row("weights of the last token, causal:", call);

  const PreferNear prefer_near;
  call.modifiers.custom[0] = &prefer_near;
  polyhead::attention(call);
  print_last_row("the same, near keys preferred:", call);

  call.v = {v.data(), {1, kTokens - 1, kKvHeads, kDim}};  // a value short
  try {
    polyhead::attention(call);
  } catch (const polyhead::InvalidArgument& refusal) {
    std::printf("refused: %s\n", refusal.what());
  }
}
