// What `polyhead plan` works out once and prints in several ways.
#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "cli/console.hpp"
#include "cli/plan_kernels.hpp"
#include "cli/plan_measure.hpp"
#include "polyhead/cost.h"

namespace polyhead::cli {

/// What is there by the rules below: a case has times where its request has a machine, and so on.
template <class T>
const T& known(const std::optional<T>& value) {
  if (!value) throw std::logic_error("plan: a figure is missing");
  return *value;
}

struct PlanRequest {
  std::vector<cost::ModelDescription> models;  ///< variants, in the order asked for
  std::vector<std::string> heads;              ///< of each variant: "8", "MLA"
  /// The models before --kv-heads made variants of them; of the user's own, the first variant.
  std::vector<cost::ModelDescription> published;
  std::vector<std::int64_t> contexts, batches;
  std::vector<cost::StorageType> kv_types;
  cost::Workload workload;  ///< everything but prompt, batch and KV type
  std::optional<cost::Machine> machine;
  cost::Devices devices;
  cost::Compute compute = cost::Compute::f16;
  cost::Utilisation low, high;      ///< what kernels of a kind usually reach, from and to
  std::optional<KernelRates> here;  ///< the machine is this one: what the kernels reach on it
  bool training = false;
  std::optional<MeasuredRun> measured;  ///< of the first model and context
};

/// A phase's time at the peaks of the machine, and from fast to slow as it is likely.
struct Likely {
  cost::PhaseTime peak, fast, slow;
  std::optional<cost::PhaseTime> predicted;  ///< at the measured rates of this machine
};

/// One model variant under one workload, every figure as a term.
struct PlanCase {
  const cost::ModelDescription* model = nullptr;
  std::string heads;
  cost::Workload work;
  cost::Term weights, kv_cache, scratch, memory;
  cost::Count kv_waste;                                              ///< of whole pages
  cost::Term prefill, prefill_triangle, decode, generation, scores;  ///< of all devices
  cost::ModelDescription share;  ///< of the model, what a device of a tensor split has
  std::optional<cost::Term> training, sent_prefill, sent_decode;
  std::optional<Likely> prefill_time, decode_time, generation_time, training_time;
  bool fits = false, kv_alone_fits = false;  ///< meaningful with a machine
  std::int64_t largest_context = 0, largest_batch = 0;
};

struct PlanResult {
  PlanRequest request;
  std::vector<PlanCase> cases;
};

PlanResult work_out(PlanRequest request);

/// What a phase of a case works on: training reads whole texts, of which nothing is generated.
cost::Workload work_of(const PlanCase& c, cost::Phase phase);

/// Verdicts, then tables, then terms; with `explain` every formula with its numbers.
void print_plan(const Console& console, const PlanResult& plan, bool explain);

/// One object; bytes and FLOPs as plain integers of any size.
std::string plan_json(const PlanResult& plan);

/// A row a term: context, batch, model, kv_heads, kv_type, term, unit, value.
std::string plan_csv(const PlanResult& plan);

/// One self-contained page that recomputes everything as its sliders move.
std::string plan_page(const PlanResult& plan);

/// What one device of this machine does, measured by the ceilings of `polyhead bench`.
cost::Machine measure_here(int threads);

/// Of what is not negative: "0", "1.23", "12.3", "123", "1,234".
std::string three_figures(double value);

/// "262 GB", "30.5 PFLOP", "13.6 s", "1.23 M": three figures, or all of a number below 1,000.
std::string gigabytes(const cost::Count& bytes);
std::string gibibytes(const cost::Count& bytes);
std::string flops_text(const cost::Count& flops);
std::string seconds_text(double seconds);
std::string parameters_text(const cost::Count& count);
std::string tokens_text(std::int64_t tokens);                      ///< "no limit" for kUnlimited
std::string counted(std::int64_t count, const std::string& noun);  ///< "1 token", "4,096 tokens"

/// Sets what keys and values are kept as. Scales by channel are of keys; the values beside them
/// have scales by token.
void keep_as(cost::Workload& work, const cost::StorageType& type);

/// Whether a model has tokens after its first ones: an encoder has not.
bool decodes(const cost::ModelDescription& model);

/// ", FLOPs of all devices, bytes of each" and the like, where there are several.
std::string of_which_devices(const PlanRequest& request);

/// "does not fit: 262 GB of KV against 192 GB", "fits: ...". Without a machine what is needed.
std::string verdict_of(const PlanCase& c, const PlanRequest& request);

}  // namespace polyhead::cli
