// From a request to figures, and figures to the words that tables and verdicts share.
#include <algorithm>
#include <cmath>
#include <span>

#include "cli/plan.hpp"
#include "cli/table.hpp"

namespace polyhead::cli {
namespace {

using cost::Count;
using cost::Phase;

/// In the unit that leaves it below `step`; whole where it is small.
std::string scaled(const Count& count, double step, std::span<const char* const> units) {
  if (count < Count(static_cast<std::int64_t>(step))) return count.str() + units[0];
  double value = count.to_double();
  std::size_t unit = 0;
  while (value >= step - 0.5 && unit + 1 < units.size()) value /= step, ++unit;
  return three_figures(value) + units[unit];
}

constexpr double kSpread = 1.15;  // around what is predicted here: others use the machine too

cost::Utilisation scaled_by(cost::Utilisation share, double factor) {
  for (double* one :
       {&share.gemm, &share.attention, &share.bandwidth, &share.cache_bandwidth, &share.row_wise}) {
    *one *= factor;
  }
  return share;
}

Likely likely(const PlanRequest& r, const PlanCase& c, Phase phase) {
  const auto at = [&](const cost::Utilisation& share, cost::Counting counting) {
    cost::Workload work = work_of(c, phase);
    work.counting = counting;
    return cost::phase_time(*c.model, work, phase, known(r.machine), r.compute, share, r.devices);
  };
  // Fused kernels leave out what a mask hides, so that is what a run is likely to take.
  constexpr cost::Counting kRun = cost::Counting::triangle;
  if (!r.here) return {at({}, c.work.counting), at(r.high, kRun), at(r.low, kRun), {}};
  const bool decodes = phase == Phase::decode_step || phase == Phase::generation;
  const cost::Utilisation share =
      decodes ? r.here->decode(*c.model, c.work) : r.here->prefill(c.work);
  return {at({}, c.work.counting), at(scaled_by(share, kSpread), kRun),
          at(scaled_by(share, 1 / kSpread), kRun), at(share, kRun)};
}

void add_times(const PlanRequest& r, PlanCase& c) {
  c.prefill_time = likely(r, c, Phase::prefill);
  c.decode_time = likely(r, c, Phase::decode_step);
  if (c.work.generated > 1) c.generation_time = likely(r, c, Phase::generation);
  if (r.training) c.training_time = likely(r, c, Phase::training_recompute);
  const std::int64_t memory = known(r.machine).memory_bytes;
  c.fits = c.memory.value.fits(memory);
  c.kv_alone_fits = c.kv_cache.value.fits(memory);
  c.largest_context = cost::largest_context(*c.model, c.work, memory, r.devices);
  c.largest_batch = cost::largest_batch(*c.model, c.work, memory, r.devices);
}

PlanCase make_case(const PlanRequest& r, const cost::ModelDescription& model,
                   const std::string& heads, const cost::Workload& work) {
  PlanCase c;
  c.model = &model;
  c.heads = heads;
  c.work = work;
  c.share = cost::of_one_device(model, r.devices);
  c.memory = cost::memory_bytes(model, work, r.devices);
  c.weights = c.memory.parts[0];
  c.kv_cache = c.memory.parts[1];
  c.scratch = c.memory.parts[2];
  cost::Workload unpaged = work;
  unpaged.page_tokens = 0;
  c.kv_waste = c.kv_cache.value - cost::kv_cache_bytes(model, unpaged, r.devices).value;
  cost::Workload full = work, triangle = work;
  full.counting = cost::Counting::full;
  triangle.counting = cost::Counting::triangle;
  c.prefill = cost::model_flops(model, full, Phase::prefill);
  c.prefill_triangle = cost::model_flops(model, triangle, Phase::prefill);
  c.decode = cost::model_flops(model, full, Phase::decode_step);
  c.generation = cost::model_flops(model, full, Phase::generation);
  c.scores = cost::score_bytes(model.layers.back(), work);
  if (r.training)
    c.training =
        cost::model_flops(model, work_of(c, Phase::training_recompute), Phase::training_recompute);
  if (r.devices.count > 1) {
    c.sent_prefill = cost::sent_bytes(model, work, Phase::prefill, r.devices);
    c.sent_decode = cost::sent_bytes(model, work, Phase::decode_step, r.devices);
  }
  if (r.machine) add_times(r, c);
  return c;
}

}  // namespace

std::string three_figures(double value) {
  constexpr double kMost = 1e18;  // 64 bits hold it
  if (value == 0) return "0";
  if (value >= 999.5 && value < kMost) return grouped(std::llround(value));
  return fixed(value, value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2);
}

cost::Workload work_of(const PlanCase& c, cost::Phase phase) {
  cost::Workload work = c.work;
  if (phase == cost::Phase::training_recompute) work.prompt = work.context(), work.generated = 0;
  return work;
}

PlanResult work_out(PlanRequest request) {
  PlanResult plan;
  plan.request = std::move(request);
  const PlanRequest& r = plan.request;
  for (const std::int64_t context : r.contexts) {
    for (std::size_t m = 0; m < r.models.size(); ++m) {
      for (const cost::StorageType& type : r.kv_types) {
        for (const std::int64_t batch : r.batches) {
          cost::Workload work = r.workload;
          work.prompt = context - work.generated;
          work.batch = batch;
          keep_as(work, type);
          plan.cases.push_back(make_case(r, r.models[m], r.heads[m], work));
        }
      }
    }
  }
  return plan;
}

void keep_as(cost::Workload& work, const cost::StorageType& type) {
  constexpr std::string_view kByChannel = "-by-channel";
  work.kv_type = type;
  if (!type.name.ends_with(kByChannel)) return;
  work.key_type = type;
  const std::string code = type.name.substr(0, type.name.size() - kByChannel.size());
  work.kv_type = cost::storage_type("cache-" + code);
  work.kv_type.name = type.name;
}

bool decodes(const cost::ModelDescription& model) {
  return std::ranges::any_of(
      model.layers, [](const cost::Layer& layer) { return layer.attends != cost::Attends::all; });
}

std::string of_which_devices(const PlanRequest& request) {
  if (request.devices.count == 1) return "";
  return request.devices.split == cost::Split::tensor ? ", FLOPs of all devices, bytes of each"
                                                      : ", FLOPs and bytes of all devices";
}

std::string gigabytes(const Count& bytes) {
  static constexpr const char* kUnits[] = {" B",  " kB", " MB", " GB", " TB", " PB",
                                           " EB", " ZB", " YB", " RB", " QB"};
  return scaled(bytes, 1000, kUnits);
}

std::string gibibytes(const Count& bytes) {
  static constexpr const char* kUnits[] = {" B",   " KiB", " MiB", " GiB", " TiB",
                                           " PiB", " EiB", " ZiB", " YiB"};
  return scaled(bytes, 1024, kUnits);
}

std::string flops_text(const Count& flops) {
  static constexpr const char* kUnits[] = {" FLOP",  " kFLOP", " MFLOP", " GFLOP",
                                           " TFLOP", " PFLOP", " EFLOP", " ZFLOP",
                                           " YFLOP", " RFLOP", " QFLOP"};
  return scaled(flops, 1000, kUnits);
}

std::string parameters_text(const Count& count) {
  static constexpr const char* kUnits[] = {"", " k", " M", " B", " T", " P", " E", " Z", " Y"};
  return scaled(count, 1000, kUnits);
}

std::string seconds_text(double seconds) {
  if (!std::isfinite(seconds)) return "-";
  if (seconds >= 2 * 86400) return three_figures(seconds / 86400) + " days";
  if (seconds >= 2 * 3600) return three_figures(seconds / 3600) + " h";
  if (seconds >= 0.9995) return three_figures(seconds) + " s";
  if (seconds >= 0.9995e-3) return three_figures(seconds * 1e3) + " ms";
  if (seconds >= 0.9995e-6) return three_figures(seconds * 1e6) + " µs";
  return three_figures(seconds * 1e9) + " ns";
}

std::string tokens_text(std::int64_t tokens) {
  return tokens >= cost::kUnlimited ? "no limit" : grouped(tokens);
}

std::string counted(std::int64_t count, const std::string& noun) {
  return grouped(count) + " " + noun + (count == 1 ? "" : "s");
}

std::string verdict_of(const PlanCase& c, const PlanRequest& r) {
  const std::string sum = gigabytes(c.memory.value) + " (weights " + gigabytes(c.weights.value) +
                          " + KV " + gigabytes(c.kv_cache.value) + " + scratch " +
                          gigabytes(c.scratch.value) + ")";
  const std::string each = r.devices.count > 1 ? " on each device" : "";
  if (!r.machine) return "needs " + sum + each;
  const std::string memory = gigabytes(Count(known(r.machine).memory_bytes));
  if (!c.kv_alone_fits)
    return "does not fit: " + gigabytes(c.kv_cache.value) + " of KV against " + memory + each;
  if (!c.weights.value.fits(known(r.machine).memory_bytes))
    return "does not fit: " + gigabytes(c.weights.value) + " of weights against " + memory + each;
  if (!c.fits) return "does not fit: " + sum + " against " + memory + each;
  return "fits: " + sum + " of " + memory + each;
}

}  // namespace polyhead::cli
