// Where things turn: crossover lengths, the largest context and batch that fit.
#include <algorithm>

#include "cost/terms.hpp"

namespace polyhead::inline v0::cost {
namespace {

/// The least n in [1, kUnlimited] for which `reached(n)` holds, which from then on it does.
template <class Reached>
std::optional<std::int64_t> first_where(Reached reached) {
  if (!reached(kUnlimited)) return std::nullopt;
  std::int64_t low = 1, high = kUnlimited;
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (reached(middle))
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

/// The largest n in [1, kUnlimited] for which `fits(n)` holds, which up to then it does; 0: none.
template <class Fits>
std::int64_t last_where(Fits fits) {
  const auto beyond = first_where([&](std::int64_t n) { return !fits(n); });
  return beyond ? *beyond - 1 : kUnlimited;
}

/// Twice the pairs that a prompt of n tokens has, the triangle as n²/2.
Count twice_the_pairs(const Layer& layer, Count n, Counting counting) {
  const Count window = layer.window > 0 ? std::min(Count(layer.window), n) : n;
  if (layer.attends != Attends::causal || counting == Counting::full) return Count(2) * n * window;
  return Count(2) * n * window - window * window;
}

/// FLOPs that grow with the tokens alone, of one token.
struct Rates {
  Count projections = 0, feed_forward = 0;
};

Rates rates_of(const ModelDescription& model, LatentForm form) {
  Workload one;
  one.prompt = 1;
  one.prefill_form = form;
  const Term flops = model_flops(model, one, Phase::prefill);
  return {flops.parts[0].value, flops.parts[2].value};
}

Count pair_flops(const Layer& layer, LatentForm form) {
  Workload one;
  one.prompt = 1;
  one.prefill_form = form;
  const Term steps = attention_flops(layer, one, Phase::prefill);
  return steps.at("scores") + steps.at("weighted_sum");
}

bool fits(const ModelDescription& model, const Workload& workload, std::int64_t bytes,
          const Devices& devices) {
  try {
    return memory_bytes(model, workload, devices).value.fits(bytes);
  } catch (const TooLarge&) {
    return false;
  }
}

}  // namespace

Crossover crossover(const ModelDescription& model, Counting counting, LatentForm form) {
  check(model);
  const Rates rates = rates_of(model, form);
  const auto overtakes = [&](Count per_token) {
    return first_where([&](std::int64_t n) {
      const Count projections = Count(2) * Count(n) * per_token;
      try {
        Count twice = 0;
        for (const Layer& layer : model.layers) {
          twice = twice + Count(layer.count) * pair_flops(layer, form) *
                              twice_the_pairs(layer, n, counting);
        }
        return twice >= projections;
      } catch (const TooLarge&) {
        return true;  // beyond what the other side still is
      }
    });
  };
  return {overtakes(rates.projections), overtakes(rates.projections + rates.feed_forward)};
}

std::int64_t largest_context(const ModelDescription& model, Workload workload, std::int64_t memory,
                             const Devices& devices) {
  const std::int64_t generated = workload.generated;
  const std::int64_t largest = last_where([&](std::int64_t context) {
    workload.generated = std::min(generated, context - 1);
    workload.prompt = context - workload.generated;
    return fits(model, workload, memory, devices);
  });
  return model.position_rows > 0 ? std::min(largest, model.position_rows) : largest;
}

std::int64_t largest_batch(const ModelDescription& model, Workload workload, std::int64_t memory,
                           const Devices& devices) {
  return last_where([&](std::int64_t batch) {
    workload.batch = batch;
    return fits(model, workload, memory, devices);
  });
}

}  // namespace polyhead::inline v0::cost
