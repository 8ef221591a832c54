#include "models/sampler.hpp"

#include <algorithm>
#include <cmath>

#include "base/refuse.hpp"
#include "base/splitmix64.hpp"

namespace polyhead::inline v0::models {

Sampler::Sampler(const Sampling& sampling) : sampling_(sampling), state_(sampling.seed) {
  constexpr const char* kCall = "Sampler";
  if (!(sampling.temperature >= 0.0f) || std::isinf(sampling.temperature)) {
    base::refuse(kCall, "temperature (", sampling.temperature, ") is not finite and at least 0");
  }
  if (sampling.top_k < 0) base::refuse(kCall, "top_k (", sampling.top_k, ") is negative");
  if (!(sampling.top_p > 0.0f && sampling.top_p <= 1.0f)) {
    base::refuse(kCall, "top_p (", sampling.top_p, ") is not above 0 and at most 1");
  }
  if (!(sampling.min_p >= 0.0f && sampling.min_p <= 1.0f))
    base::refuse(kCall, "min_p (", sampling.min_p, ") is not within 0 .. 1");
  if (!(sampling.repeat_penalty > 0.0f) || std::isinf(sampling.repeat_penalty)) {
    base::refuse(kCall, "repeat_penalty (", sampling.repeat_penalty, ") is not finite and above 0");
  }
  if (sampling.repeat_last < 0)
    base::refuse(kCall, "repeat_last (", sampling.repeat_last, ") is negative");
}

/// The logits, those of tokens among the last ones of `before` moved, once however often they are
/// there.
std::span<const float> Sampler::penalised(std::span<const float> logits,
                                          std::span<const std::int32_t> before) {
  const float penalty = sampling_.repeat_penalty;
  if (penalty == 1.0f) return logits;
  const auto last = static_cast<std::size_t>(sampling_.repeat_last);
  if (last > 0 && last < before.size()) before = before.last(last);
  penalised_.assign(logits.begin(), logits.end());
  for (const std::int32_t id : before) {
    const auto at = static_cast<std::size_t>(id);
    if (at >= logits.size()) base::refuse("Sampler", "a token before (", id, ") has no logit");
    penalised_[at] = logits[at] > 0.0f ? logits[at] / penalty : logits[at] * penalty;
  }
  return penalised_;
}

/// In [0, 1): the upper 53 bits.
double Sampler::draw() { return static_cast<double>(base::splitmix64(state_) >> 11) * 0x1p-53; }

/// Keeps candidates of a weight of min_p or more, where the best has 1; the sum of their weights.
double Sampler::keep_probable(std::vector<double>& weights) {
  double total = 0.0;
  std::size_t count = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] < double{sampling_.min_p}) continue;
    candidates_[count] = candidates_[i];
    weights[count++] = weights[i];
    total += weights[i];
  }
  weights.resize(count);
  return total;
}

std::int32_t Sampler::next(std::span<const float> logits, std::span<const std::int32_t> before) {
  logits = penalised(logits, before);
  if (std::ranges::any_of(logits, [](float x) { return std::isnan(x); }))
    base::refuse("Sampler", "logits hold a NaN: the model's weights or its text give no numbers");
  const auto best = std::max_element(logits.begin(), logits.end());
  if (!std::isfinite(*best))
    base::refuse("Sampler", "the largest logit (", *best, ") is not finite");
  if (sampling_.temperature == 0.0f) return static_cast<std::int32_t>(best - logits.begin());

  candidates_.clear();
  for (std::size_t id = 0; id < logits.size(); ++id) {
    candidates_.emplace_back(logits[id], static_cast<std::int32_t>(id));
  }
  // Best first, the lower id on ties: an order that every machine agrees on.
  const auto better = [](const auto& a, const auto& b) {
    return a.first > b.first || (a.first == b.first && a.second < b.second);
  };
  const auto kept = sampling_.top_k > 0 ? std::min<std::size_t>(candidates_.size(), sampling_.top_k)
                                        : candidates_.size();
  if (kept < candidates_.size() || sampling_.top_p < 1.0f) {
    std::partial_sort(candidates_.begin(), candidates_.begin() + static_cast<std::ptrdiff_t>(kept),
                      candidates_.end(), better);
    candidates_.resize(kept);
  }
  const double most = *best;
  std::vector<double> weights(candidates_.size());
  double total = 0.0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    weights[i] = std::exp((candidates_[i].first - most) / sampling_.temperature);
    total += weights[i];
  }
  if (sampling_.top_p < 1.0f) {
    double sum = 0.0;
    std::size_t count = 0;
    while (count < weights.size() && sum < total * sampling_.top_p) sum += weights[count++];
    weights.resize(count);
    total = sum;
  }
  if (sampling_.min_p > 0.0f) total = keep_probable(weights);
  const double wanted = draw() * total;
  double sum = 0.0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    sum += weights[i];
    if (wanted < sum) return candidates_[i].second;
  }
  return candidates_[weights.size() - 1].second;  // rounding left the last one short
}

}  // namespace polyhead::inline v0::models
