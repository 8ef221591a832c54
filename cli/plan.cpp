// polyhead plan: what attention costs, before anyone runs it.
#include "cli/plan.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/joined.hpp"
#include "cli/command.hpp"
#include "cli/list_text.hpp"
#include "cli/plan_input.hpp"
#include "cli/plan_options.hpp"
#include "cli/table.hpp"
#include "models/formats/output_file.hpp"
#include "models/model_path.hpp"
#include "polyhead/error.h"

namespace polyhead::cli {
namespace {

constexpr std::size_t kMostCases = 2000;  // more than that no one reads
// What kernels of these kinds usually reach on accelerators (docs/cost.md says whence).
constexpr cost::Utilisation kLow{0.45, 0.35, 0.6}, kHigh{0.75, 0.65, 0.85};

class PlanCommand : public Command, private PlanOptions {
 public:
  const char* name() const override { return "plan"; }
  const char* summary() const override {
    return "What attention costs: FLOPs, parameters, bytes, time, what fits";
  }
  void add_options(CLI::App& app) override { PlanOptions::add_options(app); }
  void run(const Console& console) override;

 private:
  void choose_models(PlanRequest& request) const;
  void choose_workload(PlanRequest& request) const;
  void choose_machine(const Console& console, PlanRequest& request) const;
  void choose_here(const Console& console, PlanRequest& request) const;
  void choose_arithmetic(PlanRequest& request) const;
  cost::ModelDescription first_model() const;
  bool in_bfloat16(const PlanRequest& request) const;
  void check_run(const PlanRequest& request) const;
  std::vector<std::int64_t> chosen_contexts(
      const std::vector<cost::ModelDescription>& models) const;
  void check_encoders(const PlanRequest& request) const;
  void measure(const Console& console, PlanRequest& request) const;
  PlanRequest request(const Console& console) const;
  static void list(const Console& console);
};

/// With --here weights lie as this library packs them; --measure takes the model that would run.
cost::ModelDescription PlanCommand::first_model() const {
  if (model_.empty()) return shape_.model();
  const std::string path = models::model_path(model_);
  if (measure_ && !std::filesystem::exists(path))
    throw InvalidArgument("plan: --measure runs a model's file, and " + path + " is none");
  const cost::ModelDescription model = find_model(measure_ ? path : model_);
  return here_ ? as_held(model) : model;
}

void PlanCommand::choose_models(PlanRequest& request) const {
  std::vector<cost::ModelDescription> models;
  models.push_back(first_model());
  if (!compare_.empty()) {
    for (const std::string& name : full_pieces_of("--compare", compare_)) {
      models.push_back(find_model(name));
      const std::string& id = models.back().id;
      if (std::ranges::count(models, id, &cost::ModelDescription::id) == 1) continue;
      throw InvalidArgument(std::string("plan: --compare: '")
                                .append(name)
                                .append("' changes nothing here: ")
                                .append(id)
                                .append(" is one of the models already"));
    }
  }
  const auto latent = [](const cost::ModelDescription& model) {
    return model.layers.front().latent.given();
  };
  if (!kv_heads_.empty() && std::ranges::all_of(models, latent))
    throw InvalidArgument(
        "plan: --kv-heads changes nothing here: every model has latent attention");
  for (const cost::ModelDescription& model : models) {
    cost::check(model);
    if (kv_heads_.empty() || latent(model)) {
      request.models.push_back(model);
      request.published.push_back(model);
      request.heads.push_back(heads_text(model));
      continue;
    }
    const std::size_t first = request.models.size();
    for (const std::int64_t heads : parse_counts("--kv-heads", kv_heads_)) {
      request.models.push_back(cost::with_kv_heads(model, heads));
      request.heads.push_back(std::to_string(heads));
    }
    // One of the user's own has as many as --kv-heads says, and no others.
    request.published.push_back(model.id == kOwnModel ? request.models[first] : model);
  }
}

/// Tokens of a sequence; no more than the shortest table of positions has rows for.
std::vector<std::int64_t> PlanCommand::chosen_contexts(
    const std::vector<cost::ModelDescription>& models) const {
  const auto table = [](const cost::ModelDescription& model) {
    return model.position_rows > 0 ? model.position_rows : cost::kUnlimited;
  };
  const cost::ModelDescription& shortest = *std::ranges::min_element(models, {}, table);
  const std::int64_t most = table(shortest), made_for = models.front().context_length;
  std::vector<std::int64_t> contexts;
  if (!context_.empty()) {
    contexts = parse_counts("--context", context_);
    const std::int64_t longest = std::ranges::max(contexts);
    if (longest > most) {
      throw InvalidArgument("plan: --context (" + std::to_string(longest) +
                            ") is more than the table of " + std::to_string(most) +
                            " positions that " + shortest.name + " has");
    }
    return contexts;
  }
  for (const std::int64_t tokens : {std::int64_t{4096}, std::int64_t{32000}}) {
    if ((made_for == 0 || tokens < made_for) && tokens <= most) contexts.push_back(tokens);
  }
  if (made_for > 0 && made_for <= most) contexts.push_back(made_for);
  if (contexts.empty()) contexts.push_back(most);
  return contexts;
}

/// What encoders have no use for.
void PlanCommand::check_encoders(const PlanRequest& request) const {
  if (std::ranges::any_of(request.models, decodes)) return;
  for (const char* name : {"--generate", "--chunk", "--page", "--kv-type"}) {
    if (app_->count(name) > 0)
      throw InvalidArgument(std::string("plan: ") + name +
                            " changes nothing here: no model keeps a cache");
  }
}

void PlanCommand::choose_workload(PlanRequest& request) const {
  check_encoders(request);
  cost::Workload& work = request.workload;
  request.contexts = chosen_contexts(request.models);
  request.batches = parse_counts("--batch", batch_);
  if (!weight_type_.empty()) work.weight_type = type_of_weights(weight_type_);
  const char* const cache = !here_ ? "f16" : in_bfloat16(request) ? "bf16" : "f32";
  for (const std::string& type : full_pieces_of("--kv-type", kv_type_.empty() ? cache : kv_type_))
    request.kv_types.push_back(type_of_cache(type));
  work.generated = parse_count("--generate", generate_);
  work.chunk = parse_count("--chunk", chunk_);
  work.page_tokens = parse_count("--page", page_);
  for (const std::int64_t context : request.contexts) {
    if (work.generated < context) continue;
    throw InvalidArgument("plan: --generate (" + std::to_string(work.generated) +
                          ") leaves no prompt of " + std::to_string(context) + " tokens");
  }
  work.counting = count_ == "full" ? cost::Counting::full : cost::Counting::triangle;
  if (!form_.empty()) {
    const auto latent = [](const cost::ModelDescription& model) {
      return std::ranges::any_of(model.layers,
                                 [](const cost::Layer& layer) { return layer.latent.given(); });
    };
    if (std::ranges::none_of(request.models, latent)) {
      throw InvalidArgument(
          "plan: --latent-form changes nothing here: no model has latent attention");
    }
    work.prefill_form = work.decode_form =
        form_ == "expanded" ? cost::LatentForm::expanded : cost::LatentForm::absorbed;
  }
  const std::size_t cases = request.contexts.size() * request.batches.size() *
                            request.kv_types.size() * request.models.size();
  if (cases > kMostCases) {
    throw InvalidArgument("plan: " + std::to_string(cases) + " combinations; expected at most " +
                          std::to_string(kMostCases));
  }
}

/// Whether this library would run the first model in bfloat16: it does where weights are asked for
/// in it, keeps quantised ones and takes the rest to float32.
bool PlanCommand::in_bfloat16(const PlanRequest& request) const {
  const auto& asked = request.workload.weight_type;
  return (asked ? asked->name : request.models.front().weight_type) == "bf16";
}

void PlanCommand::choose_here(const Console& console, PlanRequest& request) const {
  Progress progress(console);
  progress.show("measuring this machine ...");
  request.machine = measure_here(threads_);
  cost::Workload& work = request.workload;
  if (work.chunk == 0) work.chunk = kHereChunk;
  work.scratch = cost::Scratch::apart;
  work.bounded_windows = false;  // sessions keep all tokens
}

void PlanCommand::choose_arithmetic(PlanRequest& request) const {
  const bool wide = here_ && !(in_bfloat16(request) && known(request.machine).f16_flops > 0);
  request.compute = compute_named(compute_.empty() ? (wide ? "f32" : "f16") : compute_);
  if (request.compute == cost::Compute::f32)
    request.workload.activation_type = cost::storage_type("f32");
  request.low = kLow;
  request.high = kHigh;
}

/// Refuses what a run of the model's file is not: it has one sequence, the file's own weights or
/// bfloat16, and a cache of the arithmetic's type.
void PlanCommand::check_run(const PlanRequest& request) const {
  const auto& asked = request.workload.weight_type;
  const std::string& own = request.models.front().weight_type;
  if (asked && asked->name != "bf16" && asked->name != own) {
    throw InvalidArgument("plan: --measure: --weight-type (" + asked->name +
                          ") is not what would run; expected " + own +
                          ", which the file has, or bf16");
  }
  const char* const cache = in_bfloat16(request) ? "bf16" : "f32";
  if (request.kv_types.front().name != cache) {
    throw InvalidArgument("plan: --measure: --kv-type (" + request.kv_types.front().name +
                          ") is not what would run; expected " + cache);
  }
}

/// What the kernels reach at the sizes of the first model, and what a run of it takes.
void PlanCommand::measure(const Console& console, PlanRequest& request) const {
  Progress progress(console);
  const cost::ModelDescription& model = request.models.front();
  cost::Workload work = request.workload;
  work.prompt = request.contexts.front() - work.generated;
  work.batch = request.batches.front();
  if (measure_) check_run(request);
  if (measure_) {  // first: what was allocated before would be taken for the run's
    progress.show("running the model ...");
    request.measured =
        measure_run(models::model_path(model_), work.prompt, threads_, in_bfloat16(request));
  }
  progress.show("measuring kernels ...");
  request.here = measure_kernels(model, work, known(request.machine), request.compute, threads_);
}

void PlanCommand::choose_machine(const Console& console, PlanRequest& request) const {
  if (here_) {
    choose_here(console, request);
  } else {
    request.machine = asked_machine();
  }
  choose_arithmetic(request);
  request.devices = devices();
  for (const cost::ModelDescription& model : request.models) cost::check(request.devices, model);
  if (!request.machine) return;
  give_amounts(*request.machine, request.compute);
  cost::check(*request.machine);
  cost::peak_flops(*request.machine, request.compute);
}

PlanRequest PlanCommand::request(const Console& console) const {
  PlanRequest request;
  request.training = training_;
  choose_models(request);
  choose_workload(request);
  choose_machine(console, request);
  return request;
}

void PlanCommand::list(const Console& console) {
  using Align = Table::Align;
  Table models({Align::left, Align::right, Align::right, Align::left});
  models.header({"model", "parameters", "KV a token, f16", "also"});
  for (const cost::ModelDescription& model : cost::model_presets()) {
    cost::Workload one;
    one.prompt = 1;
    models.row({model.id, parameters_text(cost::parameters(model).value),
                cost::kv_cache_bytes(model, one).value.grouped() + " B",
                base::joined(model.aliases)});
  }
  models.print(console);
  Table machines({Align::left, Align::right, Align::right, Align::right, Align::left});
  machines.header({"machine", "memory", "bandwidth", "f16 dense", ""});
  for (const cost::Machine& machine : cost::machine_presets()) {
    machines.row(
        {machine.id, gigabytes(cost::Count(machine.memory_bytes)),
         fixed(machine.memory_bandwidth / 1e9, machine.memory_bandwidth < 1e11 ? 1 : 0) + " GB/s",
         fixed(machine.f16_flops / 1e12, machine.f16_flops < 1e13 ? 1 : 0) + " TFLOP/s",
         machine.source});
  }
  console.out << '\n';
  machines.print(console);
}

void PlanCommand::run(const Console& console) {
  check();
  if (list_) return list(console);
  if (!html_.empty()) formats::check_writable(html_);
  PlanRequest asked = request(console);
  if (!html_.empty()) formats::check_writable(html_);  // nor has it been read meanwhile
  if (here_) measure(console, asked);
  const PlanResult plan = work_out(std::move(asked));
  if (!html_.empty()) {
    formats::OutputFile file(html_);
    const std::string page = plan_page(plan);
    file.write(page.data(), page.size());
    file.commit();
    console.err << "polyhead: wrote " << printable(html_) << '\n';
  }
  if (json_) {
    console.out << plan_json(plan);
  } else if (csv_) {
    console.out << plan_csv(plan);
  } else if (html_.empty() || explain_) {
    print_plan(console, plan, explain_);
  }
}

}  // namespace

std::unique_ptr<Command> make_plan() { return std::make_unique<PlanCommand>(); }

}  // namespace polyhead::cli
