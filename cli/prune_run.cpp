#include "cli/prune_run.hpp"

#include <algorithm>
#include <string>

#include "cli/check_finite.hpp"
#include "cli/look_print.hpp"
#include "cli/stopwatch.hpp"
#include "cli/table.hpp"

namespace polyhead::cli {
namespace {

/// Counts runs and says how long the rest will take.
class Countdown {
 public:
  Countdown(std::size_t runs, const Console& console) : runs_(runs), progress_(console) {}
  void step() {
    ++done_;
    const double left =
        watch_.seconds() / static_cast<double>(done_) * static_cast<double>(runs_ - done_);
    progress_.show("run " + std::to_string(done_) + " of " + std::to_string(runs_) + ", " +
                   fixed(left, 0) + " s to go");
  }

 private:
  std::size_t runs_, done_ = 0;
  Stopwatch watch_;
  Progress progress_;
};

}  // namespace

Pruning prune_heads(const models::Model& model, std::span<const std::int32_t> ids,
                    std::int64_t points, const Console& console) {
  Pruning result;
  models::HeadMask mask;
  for (const models::LayerGeometry& layer : model.config().layers) {
    for (std::int64_t head = 0; head < layer.q_heads; ++head) {
      result.heads.push_back({static_cast<std::int64_t>(mask.off.size()), head, 0, 0});
    }
    mask.off.emplace_back(static_cast<std::size_t>(layer.q_heads), false);
  }
  const auto switch_head = [&](const HeadLoss& head, bool off) {
    mask.off[static_cast<std::size_t>(head.layer)][static_cast<std::size_t>(head.head)] = off;
  };
  const std::size_t steps =
      std::min(static_cast<std::size_t>(std::max<std::int64_t>(points, 1)), result.heads.size());
  Countdown countdown(1 + result.heads.size() + steps, console);
  models::LayerInputs inputs;
  const auto loss = [&](const auto& without) {
    const double nll = model.negative_log_likelihood(ids, {nullptr, &mask}, &inputs);
    check_finite(nll, [&] { return "prune: the loss " + without(); });
    countdown.step();
    return nll;
  };
  result.nll = loss([] { return std::string("with all heads on"); });
  for (HeadLoss& head : result.heads) {
    switch_head(head, true);
    head.nll = loss([&] { return "without head " + head_name(head.layer, head.head); });
    head.change = head.nll - result.nll;
    switch_head(head, false);
  }
  std::stable_sort(result.heads.begin(), result.heads.end(),
                   [](const HeadLoss& a, const HeadLoss& b) { return a.change < b.change; });
  result.curve.push_back({0, result.nll});
  for (std::size_t step = 1; step <= steps; ++step) {
    const std::size_t off = result.heads.size() * step / steps;
    for (std::size_t i = result.curve.back().off; i < off; ++i) switch_head(result.heads[i], true);
    const double nll = loss([&] { return "without " + std::to_string(off) + " heads"; });
    result.curve.push_back({off, nll});
  }
  return result;
}

}  // namespace polyhead::cli
