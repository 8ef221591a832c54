#include "cost/calls.hpp"

#include <algorithm>

namespace polyhead::inline v0::cost {
namespace {

/// sum of min(i, window) for i = 1..n: what causal queries at 1..n see.
Count seen_by_first(Count n, Count window) {
  const Count ramp = std::min(n, window);
  return ramp * (ramp + 1) / 2 + (n - ramp) * window;
}

/// sum of min(j · step, limit) for j = 1..n.
Count sum_of_ends(Count n, Count step, Count limit) {
  const Count rising = std::min(n, limit / step);
  return step * (rising * (rising + 1) / 2) + (n - rising) * limit;
}

/// A causal prompt of n tokens in calls of `chunk`.
Calls prompt_calls(Count n, Count chunk, Count window) {
  Calls calls;
  calls.queries = calls.new_keys = n;
  calls.visible = seen_by_first(n, window);
  if (n == Count(0)) return calls;
  const Count whole = n / chunk, rest = n - whole * chunk;
  calls.calls = ceil_div(n, chunk);
  calls.full = chunk * sum_of_ends(whole, chunk, window) + rest * std::min(n, window);
  calls.keys_read = sum_of_ends(whole, chunk, std::min(n, window + chunk - 1));
  if (rest > Count(0)) calls.keys_read = calls.keys_read + std::min(n, window + rest - 1);
  if (calls.calls == Count(1)) calls.rectangle = {{"queries", n}, {"keys", std::min(n, window)}};
  return calls;
}

/// `steps` tokens one at a time, the first of them seeing `first` keys.
Calls decode_calls(Count steps, Count first, Count window) {
  Calls calls;
  calls.calls = calls.queries = calls.new_keys = steps;
  if (steps == Count(0)) return calls;
  calls.visible = seen_by_first(first + steps - 1, window) - seen_by_first(first - 1, window);
  calls.full = calls.keys_read = calls.visible;
  if (steps == Count(1)) calls.rectangle = {{"queries", 1}, {"keys", calls.visible}};
  return calls;
}

/// Every query sees all of `keys`.
Calls whole_calls(Count calls_made, Count queries, Count keys, Count new_keys) {
  Calls calls;
  calls.calls = calls_made;
  calls.queries = queries;
  calls.new_keys = new_keys;
  calls.full = calls.visible = queries * keys;
  calls.keys_read = calls_made * keys;
  calls.rectangle = {{"queries", queries}, {"keys", keys}};
  return calls;
}

}  // namespace

Calls calls_of(const Layer& layer, const Workload& workload, Phase phase) {
  const Count prompt = workload.prompt, context = workload.context();
  const Count window = layer.window > 0 ? Count(layer.window) : Count(kUnlimited) * 2;
  const Count steps = phase == Phase::decode_step ? Count(1)
                      : workload.generated > 1    ? Count(workload.generated - 1)
                                                  : Count(0);
  const bool in_chunks = workload.chunk > 0 && !trains(phase);
  const Count chunk = in_chunks ? Count(workload.chunk) : std::max(prompt, Count(1));
  switch (layer.attends) {
    case Attends::all:
      if (decodes(phase)) return {};
      return whole_calls(prompt > Count(0) ? 1 : 0, prompt, prompt, prompt);
    case Attends::source:
      if (decodes(phase)) return whole_calls(steps, steps, prompt, 0);
      return whole_calls(prompt > Count(0) ? ceil_div(prompt, chunk) : Count(0), prompt, prompt,
                         prompt);
    case Attends::causal:
      break;
  }
  if (phase == Phase::decode_step) return decode_calls(1, std::max(context, Count(1)), window);
  if (phase == Phase::generation) return decode_calls(steps, prompt + 1, window);
  return prompt_calls(prompt, chunk, window);
}

std::vector<Factor> pair_factors(const Calls& calls, const Workload& workload) {
  if (workload.counting == Counting::triangle) return {{"visible_pairs", calls.visible}};
  if (!calls.rectangle.empty()) return calls.rectangle;
  return {{"pairs_of_calls", calls.full}};
}

Count key_bytes(const Layer& layer, const Workload& workload) {
  if (layer.attends != Attends::all)
    return kv_bytes_per_token(layer, workload.kv_type, workload.key_type).value;
  return Count(layer.kv_heads) * Count(layer.head_dim + layer.value_dim) *
         Count(workload.activation_type.block_bytes);
}

}  // namespace polyhead::inline v0::cost
