// polyhead plan: what attention costs, before anyone runs it.
#include "cli/plan.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "cli/command.hpp"
#include "cli/list_text.hpp"
#include "cli/option_checks.hpp"
#include "cli/plan_input.hpp"
#include "cli/plan_shape.hpp"
#include "cli/table.hpp"
#include "models/formats/output_file.hpp"
#include "models/model_path.hpp"
#include "polyhead/error.h"

namespace polyhead::cli {
namespace {

constexpr std::size_t kMostCases = 2000;  // more than that no one reads
// What kernels of these kinds usually reach on accelerators (docs/cost.md says whence).
constexpr cost::Utilisation kLow{0.45, 0.35, 0.6}, kHigh{0.75, 0.65, 0.85};

constexpr const char* kExample =
    "MODEL is a preset (polyhead plan --list), a GGUF file, a .safetensors file or folder, or a\n"
    "config.json. Without one, give --layers, --q-heads, --head-dim and so on. k is 1,000, Ki is "
    "1,024.\n\n"
    "Examples:\n"
    "  polyhead plan llama-3-70b --context 4096,32k,100k --machine b200\n"
    "  polyhead plan llama-3-70b --context 100k --kv-heads 64,8,1 --kv-type f16,int8,int4 --html "
    "plan.html\n"
    "  polyhead plan deepseek-v3 --compare llama-3-405b --context 128Ki --devices 8 --machine "
    "h200\n"
    "  polyhead plan --layers 32 --q-heads 32 --kv-heads 8 --head-dim 128 --ffn 14336 --vocab "
    "128256";

class PlanCommand : public Command {
 public:
  const char* name() const override { return "plan"; }
  const char* summary() const override {
    return "What attention costs: FLOPs, parameters, bytes, time, what fits";
  }
  void add_options(CLI::App& app) override;
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
  void check_companions() const;
  static void list(const Console& console);

  std::string model_, compare_, context_, batch_ = "1", kv_heads_, kv_type_, weight_type_;
  std::string machine_, memory_, bandwidth_, flops_, compute_, devices_ = "1", split_ = "tensor";
  std::string generate_ = "0", chunk_ = "0", page_ = "0", html_, count_ = "full", form_;
  PlanShape shape_;
  const CLI::App* app_ = nullptr;  ///< knows which options were given
  int threads_ = 0;
  bool measure_ = false;
  bool json_ = false, csv_ = false, explain_ = false, here_ = false, list_ = false,
       training_ = false;
};

void PlanCommand::add_options(CLI::App& app) {
  app_ = &app;
  const auto option = [&](const char* name, std::string& value, const char* text) {
    return app.add_option(name, value, text)->check(not_empty());
  };
  option("model", model_, "Preset or file")->type_name("MODEL");
  option("--context", context_,
         "Tokens of a sequence, a list (default: 4096, 32k and what the model\nwas made for)")
      ->type_name("N,...");
  option("--batch", batch_, "Sequences, a list (default 1)")->type_name("N,...");
  option("--kv-heads", kv_heads_, "Variants of the model by KV heads, a list")->type_name("N,...");
  option("--kv-type", kv_type_,
         "f32, f16, bf16, fp8 (e4m3, e5m2), int8, int4, mxfp4, or as this library's\n"
         "caches have them cache-int8, cache-int4, cache-fp8, int8-by-channel,\n"
         "int4-by-channel: a list (default f16; --here f32)")
      ->type_name("NAME,...");
  option("--compare", compare_, "More models, a list")->type_name("MODEL,...");
  option("--machine", machine_, "a100, h100, h200, b200, mi300x, desktop-cpu")->type_name("NAME");
  app.add_flag("--here", here_, "This machine, measured for some seconds");
  app.add_flag("--measure", measure_,
               "With --here and a model's file: run its first context and set the time beside the\n"
               "predicted");
  app.add_option("--threads", threads_, "Threads of --here (default: all)")
      ->type_name("N")
      ->check(whole_number(1, 4096));
  option("--memory", memory_,
         "Memory of a device, instead of --machine's; with --bandwidth and --flops\n"
         "a machine of your own")
      ->type_name("80GB");
  option("--bandwidth", bandwidth_, "Its memory bandwidth, bytes a second")->type_name("3.35TB");
  option("--flops", flops_, "Its peak, FLOPs a second")->type_name("989T");
  option("--compute", compute_,
         "Arithmetic of the peak: f32, f16 or fp8 (default f16;\n"
         "--here f32)")
      ->type_name("NAME");
  option("--devices", devices_, "Devices (default 1)")->type_name("N");
  option("--split", split_, "Over devices: tensor (heads) or ring (tokens)")->type_name("NAME");
  option("--weight-type", weight_type_,
         "Weights as f32, f16, bf16, fp8, int8, int4, q4_k, ... (default: as\npublished)")
      ->type_name("NAME");
  option("--generate", generate_, "So many of the context's tokens are generated")->type_name("N");
  option("--chunk", chunk_, "Tokens of a prefill call (default: all at once)")->type_name("N");
  option("--page", page_, "Tokens of a cache page (default: no pages)")->type_name("N");
  option("--count", count_, "Scores: full, or the visible triangle")->type_name("NAME");
  option("--latent-form", form_,
         "MLA: expanded or absorbed (default: expanded in prefill, absorbed\nin decoding)")
      ->type_name("NAME");
  shape_.add_options(app);
  app.add_flag("--training", training_, "Training FLOPs as well");
  app.add_flag("--explain", explain_, "Every formula with its numbers");
  app.add_flag("--json", json_, "Print JSON");
  app.add_flag("--csv", csv_, "Print CSV, a row a term");
  option("--html", html_, "Write one page with plots and sliders")->type_name("FILE");
  app.add_flag("--list", list_, "Print the presets and nothing else");
  app.footer(kExample);
}

/// With --here weights lie as this library packs them; --measure takes the model that would run.
cost::ModelDescription PlanCommand::first_model() const {
  if (model_.empty()) return shape_.model();
  const cost::ModelDescription model = find_model(measure_ ? models::model_path(model_) : model_);
  return here_ ? as_held(model) : model;
}

void PlanCommand::choose_models(PlanRequest& request) const {
  std::vector<cost::ModelDescription> models;
  if (!model_.empty() && shape_.given())
    throw UsageError("MODEL and the options of a model of your own exclude each other");
  models.push_back(first_model());
  if (!compare_.empty()) {
    for (const std::string& name : full_pieces_of("--compare", compare_))
      models.push_back(find_model(name));
  }
  const auto latent = [](const cost::ModelDescription& model) {
    return model.layers.front().latent.given();
  };
  if (!kv_heads_.empty() && std::ranges::all_of(models, latent))
    throw UsageError("--kv-heads changes nothing here: every model has latent attention");
  for (const cost::ModelDescription& model : models) {
    cost::check(model);
    if (kv_heads_.empty() || latent(model)) {
      request.models.push_back(model);
      request.heads.push_back(heads_text(model));
      continue;
    }
    for (const std::int64_t heads : parse_counts("--kv-heads", kv_heads_)) {
      request.models.push_back(cost::with_kv_heads(model, heads));
      request.heads.push_back(std::to_string(heads));
    }
  }
}

constexpr std::int64_t kLargestBlock = 32;  // elements of one, in types that caches have

/// What `call` refuses, as a refusal of the option's value.
template <class Call>
auto value_of(const char* option, const Call& call) {
  constexpr std::string_view kBegins = "cost: ";
  try {
    return call();
  } catch (const InvalidArgument& error) {
    std::string_view why = error.what();
    if (why.starts_with(kBegins)) why.remove_prefix(kBegins.size());
    throw UsageError(std::string(option).append(": ").append(why));
  }
}

cost::StorageType type_of_cache(const std::string& name) {
  const bool fp8 = name == "e4m3" || name == "e5m2";  // as generate calls them
  cost::StorageType type =
      value_of("--kv-type", [&] { return cost::storage_type(fp8 ? "fp8" : name); });
  if (type.block_elements > kLargestBlock) {
    throw UsageError("--kv-type: '" + name + "' has blocks of " +
                     std::to_string(type.block_elements) + ", for weights (expected at most " +
                     std::to_string(kLargestBlock) + ")");
  }
  return type;
}

cost::StorageType type_of_weights(const std::string& name) {
  cost::StorageType type = value_of("--weight-type", [&] { return cost::storage_type(name); });
  if (name.starts_with("cache-") || name.ends_with("-by-channel"))
    throw UsageError("--weight-type: '" + name + "' is a type of caches");
  return type;
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
      throw UsageError("--context (" + std::to_string(longest) + ") is more than the table of " +
                       std::to_string(most) + " positions that " + shortest.name + " has");
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
      throw UsageError(std::string(name) + " changes nothing here: no model keeps a cache");
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
    if (context < 1) throw UsageError("--context (0) is not at least 1");
    if (work.generated >= context) {
      throw UsageError("--generate (" + std::to_string(work.generated) +
                       ") leaves no prompt of --context " + std::to_string(context));
    }
  }
  if (count_ != "full" && count_ != "triangle")
    throw UsageError("--count: '" + count_ + "' is neither full nor triangle");
  work.counting = count_ == "full" ? cost::Counting::full : cost::Counting::triangle;
  if (!form_.empty()) {
    if (form_ != "expanded" && form_ != "absorbed")
      throw UsageError("--latent-form: '" + form_ + "' is neither expanded nor absorbed");
    const auto latent = [](const cost::ModelDescription& model) {
      return std::ranges::any_of(model.layers,
                                 [](const cost::Layer& layer) { return layer.latent.given(); });
    };
    if (std::ranges::none_of(request.models, latent))
      throw UsageError("--latent-form changes nothing here: no model has latent attention");
    work.prefill_form = work.decode_form =
        form_ == "expanded" ? cost::LatentForm::expanded : cost::LatentForm::absorbed;
  }
  const std::size_t cases = request.contexts.size() * request.batches.size() *
                            request.kv_types.size() * request.models.size();
  if (cases > kMostCases) {
    throw UsageError(std::to_string(cases) + " combinations; expected at most " +
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
  const std::string compute = compute_.empty() ? (wide ? "f32" : "f16") : compute_;
  if (compute != "f32" && compute != "f16" && compute != "fp8")
    throw UsageError("--compute: '" + compute + "' is not f32, f16 or fp8");
  request.compute = compute == "f32"   ? cost::Compute::f32
                    : compute == "f16" ? cost::Compute::f16
                                       : cost::Compute::fp8;
  if (compute == "fp8" && !request.machine) {
    throw UsageError(
        "--compute fp8 needs a machine: --machine, or --memory, --bandwidth and --flops");
  }
  if (compute == "f32") request.workload.activation_type = cost::storage_type("f32");
  request.low = kLow;
  request.high = kHigh;
}

/// Refuses what a run of the model's file is not: it has one sequence, the file's own weights or
/// bfloat16, and a cache of the arithmetic's type.
void PlanCommand::check_run(const PlanRequest& request) const {
  const auto& asked = request.workload.weight_type;
  const std::string& own = request.models.front().weight_type;
  if (asked && asked->name != "bf16" && asked->name != own) {
    throw UsageError("--measure: --weight-type (" + asked->name +
                     ") is not what would run; expected " + own + ", which the file has, or bf16");
  }
  const char* const cache = in_bfloat16(request) ? "bf16" : "f32";
  if (request.kv_types.front().name != cache) {
    throw UsageError("--measure: --kv-type (" + request.kv_types.front().name +
                     ") is not what would run; expected " + cache);
  }
  if (request.batches.front() != 1) {
    throw UsageError("--measure: --batch (" + std::to_string(request.batches.front()) +
                     ") is not 1; one sequence is run");
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
  if (here_ && !machine_.empty()) throw UsageError("--here and --machine exclude each other");
  if (here_) {
    choose_here(console, request);
  } else if (!machine_.empty()) {
    request.machine = value_of("--machine", [&] { return cost::machine_preset(machine_); });
  } else if (!memory_.empty() || !bandwidth_.empty() || !flops_.empty()) {
    if (memory_.empty() || bandwidth_.empty() || flops_.empty())
      throw UsageError("--memory, --bandwidth and --flops make a machine together");
    request.machine = cost::Machine{};
    request.machine->id = "own";
    request.machine->name = "a machine of your own";
    request.machine->source = "options";
  }
  choose_arithmetic(request);
  if (split_ != "tensor" && split_ != "ring")
    throw UsageError("--split: '" + split_ + "' is neither tensor nor ring");
  request.devices.count = parse_count("--devices", devices_);
  if (app_->count("--split") > 0 && request.devices.count == 1)
    throw UsageError("--split needs --devices above 1");
  if (request.devices.count > 1)
    request.devices.split = split_ == "tensor" ? cost::Split::tensor : cost::Split::ring;
  for (const cost::ModelDescription& model : request.models) cost::check(request.devices, model);
  if (!request.machine) return;
  cost::Machine& machine = *request.machine;
  if (!memory_.empty())
    machine.memory_bytes =
        static_cast<std::int64_t>(parse_amount("--memory", memory_, Amount::bytes));
  if (!bandwidth_.empty())
    machine.memory_bandwidth = parse_amount("--bandwidth", bandwidth_, Amount::bytes_a_second);
  if (!flops_.empty()) {
    const double peak = parse_amount("--flops", flops_, Amount::flops_a_second);
    (request.compute == cost::Compute::f32   ? machine.f32_flops
     : request.compute == cost::Compute::f16 ? machine.f16_flops
                                             : machine.fp8_flops) = peak;
  }
  cost::check(machine);
  cost::peak_flops(machine, request.compute);
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
    std::string also;
    for (const std::string& alias : model.aliases) also += (also.empty() ? "" : ", ") + alias;
    models.row({model.id, parameters_text(cost::parameters(model).value),
                cost::kv_cache_bytes(model, one).value.grouped() + " B", also});
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

/// Options that say something only beside others.
void PlanCommand::check_companions() const {
  for (const CLI::Option* given : app_->get_options()) {
    const std::string name = given->get_name();
    if (list_ && given->count() > 0 && name != "--list")
      throw UsageError(name + " changes nothing here: --list prints the presets alone");
  }
  if (threads_ > 0 && !here_) throw UsageError("--threads needs --here");
  if (json_ && csv_) throw UsageError("--json and --csv exclude each other");
  if (explain_ && (json_ || csv_)) {
    throw UsageError("--explain changes nothing here: " + std::string(json_ ? "--json" : "--csv") +
                     " has every term already");
  }
}

void PlanCommand::run(const Console& console) {
  check_companions();
  if (list_) return list(console);
  if (measure_ && !here_) throw UsageError("--measure needs --here");
  if (measure_ && model_.empty()) throw UsageError("--measure needs a model's file");
  PlanRequest asked = request(console);
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
