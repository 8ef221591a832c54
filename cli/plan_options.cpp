#include "cli/plan_options.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>
#include <vector>

#include "base/joined.hpp"
#include "cli/command.hpp"
#include "cli/list_text.hpp"
#include "cli/option_checks.hpp"
#include "cli/plan_input.hpp"
#include "polyhead/error.h"
#include "polyhead/executor.h"

namespace polyhead::cli {
namespace {

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

constexpr std::int64_t kLargestBlock = 32;  // elements of one, in types that caches have

/// What the library refuses of what options alone say, as a refusal of them.
template <class Call>
auto as_usage(const std::string& option, const Call& call) {
  try {
    return call();
  } catch (const InvalidArgument& error) {
    throw UsageError((option.empty() ? "" : option + ": ") + reason_of(error));
  }
}

/// What `call` makes of a name that is one of `expected`.
template <class Call>
auto preset_named(const std::string& option, const std::vector<std::string>& expected,
                  const Call& call) {
  try {
    return call();
  } catch (const InvalidArgument& error) {
    std::string why = reason_of(error);
    why += why.ends_with('?') ? " Expected one of " : "; expected one of ";
    throw UsageError(option + ": " + why + base::joined(expected));
  }
}

/// An entry that stands in a list twice changes nothing.
template <class Entries>
void check_repeated(const std::string& option, const Entries& entries) {
  for (auto entry = entries.begin(); entry != entries.end(); ++entry) {
    if (std::find(entries.begin(), entry, *entry) == entry) continue;
    std::ostringstream text;
    text << option << ": " << *entry << " changes nothing here: it is in the list already";
    throw UsageError(text.str());
  }
}

}  // namespace

void PlanOptions::add_options(CLI::App& app) {
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
         "int4-by-channel: a list (default f16; --here bf16 where weights are\n"
         "bf16, else f32)")
      ->type_name("NAME,...");
  option("--compare", compare_, "More models, a list")->type_name("MODEL,...");
  option("--machine", machine_, "a100, h100, h200, b200, mi300x, desktop-cpu")->type_name("NAME");
  app.add_flag("--here", here_, "This machine, measured for some seconds");
  app.add_flag("--measure", measure_,
               "With --here and a model's file: run its first context and set the time beside the\n"
               "predicted");
  app.add_option("--threads", threads_, "Threads of --here (default: all)")
      ->type_name("N")
      ->transform(count(1, ThreadPool::kMost));
  option("--memory", memory_,
         "Memory of a device, instead of --machine's; with --bandwidth and --flops\n"
         "a machine of your own")
      ->type_name("80GB");
  option("--bandwidth", bandwidth_, "Its memory bandwidth, bytes a second")->type_name("3.35TB");
  option("--flops", flops_, "Its peak, FLOPs a second")->type_name("989T");
  option("--compute", compute_,
         "Arithmetic of the peak: f32, f16 or fp8 (default f16; --here f32, but f16\n"
         "where weights are bf16 and the processor has products of them)")
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
  option("--html", html_, "Write one page with plots and sliders")
      ->type_name("FILE")
      ->check(output_name());
  app.add_flag("--list", list_, "Print the presets and nothing else");
  app.footer(kExample);
}

cost::StorageType type_of_cache(const std::string& name) {
  const bool fp8 = name == "e4m3" || name == "e5m2";  // as generate calls them
  std::vector<std::string> expected;
  for (const cost::StorageType& type : cost::storage_types()) {
    if (type.block_elements > kLargestBlock) continue;
    expected.push_back(type.name + (type.name == "fp8" ? " (e4m3, e5m2)" : ""));
  }
  cost::StorageType type =
      preset_named("--kv-type", expected, [&] { return cost::storage_type(fp8 ? "fp8" : name); });
  if (fp8) type.name = name;
  if (type.block_elements > kLargestBlock) {
    throw UsageError("--kv-type: '" + name + "' has blocks of " +
                     std::to_string(type.block_elements) + ", for weights (expected at most " +
                     std::to_string(kLargestBlock) + ")");
  }
  return type;
}

cost::StorageType type_of_weights(const std::string& name) {
  const auto of_cache = [](const std::string& one) {
    return one.starts_with("cache-") || one.ends_with("-by-channel");
  };
  std::vector<std::string> expected;
  for (const cost::StorageType& type : cost::storage_types()) {
    if (!of_cache(type.name)) expected.push_back(type.name);
  }
  cost::StorageType type =
      preset_named("--weight-type", expected, [&] { return cost::storage_type(name); });
  if (of_cache(type.name)) throw UsageError("--weight-type: '" + name + "' is a type of caches");
  return type;
}

cost::Compute compute_named(const std::string& name) {
  if (name == "f32") return cost::Compute::f32;
  if (name == "f16") return cost::Compute::f16;
  if (name == "fp8") return cost::Compute::fp8;
  throw UsageError("--compute: '" + name + "' is not f32, f16 or fp8");
}

std::optional<cost::Machine> PlanOptions::asked_machine() const {
  if (!machine_.empty()) {
    std::vector<std::string> expected;
    for (const cost::Machine& machine : cost::machine_presets()) expected.push_back(machine.id);
    return preset_named("--machine", expected, [&] { return cost::machine_preset(machine_); });
  }
  if (memory_.empty() && bandwidth_.empty() && flops_.empty()) return {};
  if (memory_.empty() || bandwidth_.empty() || flops_.empty())
    throw UsageError("--memory, --bandwidth and --flops make a machine together");
  cost::Machine machine;
  machine.id = "own";
  machine.name = "a machine of your own";
  machine.source = "options";
  return machine;
}

void PlanOptions::give_amounts(cost::Machine& machine, cost::Compute compute) const {
  if (!memory_.empty())
    machine.memory_bytes =
        static_cast<std::int64_t>(parse_amount("--memory", memory_, Amount::bytes));
  if (!bandwidth_.empty())
    machine.memory_bandwidth = parse_amount("--bandwidth", bandwidth_, Amount::bytes_a_second);
  if (flops_.empty()) return;
  const double peak = parse_amount("--flops", flops_, Amount::flops_a_second);
  (compute == cost::Compute::f32   ? machine.f32_flops
   : compute == cost::Compute::f16 ? machine.f16_flops
                                   : machine.fp8_flops) = peak;
}

cost::Devices PlanOptions::devices() const {
  cost::Devices devices;
  devices.count = parse_count("--devices", devices_);
  if (devices.count > 1)
    devices.split = split_ == "tensor" ? cost::Split::tensor : cost::Split::ring;
  return devices;
}

/// Numbers, whatever the model is.
void PlanOptions::check_counts() const {
  const auto positive = [](const char* option, const std::string& list) {
    std::vector<std::int64_t> counts = parse_counts(option, list);
    if (std::ranges::find(counts, 0) != counts.end())
      throw UsageError(std::string(option) + " (0) is not at least 1");
    check_repeated(option, counts);
    return counts;
  };
  std::vector<std::int64_t> contexts;
  if (!context_.empty()) contexts = positive("--context", context_);
  if (!kv_heads_.empty()) positive("--kv-heads", kv_heads_);
  const std::int64_t batch = positive("--batch", batch_).front();
  const std::int64_t devices = parse_some("--devices", devices_);
  const std::int64_t generated = parse_count("--generate", generate_);
  for (const std::int64_t context : contexts) {
    if (generated < context) continue;
    throw UsageError("--generate (" + std::to_string(generated) +
                     ") leaves no prompt of --context " + std::to_string(context));
  }
  if (app_->count("--chunk") > 0) parse_some("--chunk", chunk_);
  if (app_->count("--page") > 0) parse_some("--page", page_);
  if (app_->count("--split") > 0 && devices == 1)
    throw UsageError("--split needs --devices above 1");
  if (measure_ && batch != 1) {
    throw UsageError("--measure: --batch (" + std::to_string(batch) +
                     ") is not 1; one sequence is run");
  }
}

/// Names of types and of choices.
void PlanOptions::check_names() const {
  if (!kv_type_.empty()) {
    std::vector<std::string> names;
    for (const std::string& type : full_pieces_of("--kv-type", kv_type_))
      names.push_back(type_of_cache(type).name);
    check_repeated("--kv-type", names);
  }
  if (!weight_type_.empty()) type_of_weights(weight_type_);
  if (!compare_.empty()) full_pieces_of("--compare", compare_);
  if (count_ != "full" && count_ != "triangle")
    throw UsageError("--count: '" + count_ + "' is neither full nor triangle");
  if (!form_.empty() && form_ != "expanded" && form_ != "absorbed")
    throw UsageError("--latent-form: '" + form_ + "' is neither expanded nor absorbed");
  if (split_ != "tensor" && split_ != "ring")
    throw UsageError("--split: '" + split_ + "' is neither tensor nor ring");
}

void PlanOptions::check_machine() const {
  if (here_ && !machine_.empty()) throw UsageError("--here and --machine exclude each other");
  const cost::Compute compute = compute_named(compute_.empty() ? "f16" : compute_);
  cost::Machine amounts;
  give_amounts(amounts, compute);
  if (here_ && compute == cost::Compute::fp8 && flops_.empty())
    throw UsageError("--compute fp8 with --here needs --flops: no such peak is measured");
  if (here_) return;
  std::optional<cost::Machine> machine = asked_machine();
  if (compute == cost::Compute::fp8 && !machine) {
    throw UsageError(
        "--compute fp8 needs a machine: --machine, or --memory, --bandwidth and --flops");
  }
  if (!machine) return;
  give_amounts(*machine, compute);
  as_usage("", [&] {
    cost::check(*machine);
    cost::peak_flops(*machine, compute);
  });
}

/// A model of the user's own: all that is said of it is on the command line.
void PlanOptions::check_shape() const {
  if (!model_.empty() && shape_.given())
    throw UsageError("MODEL and the options of a model of your own exclude each other");
  if (!model_.empty()) return;
  const cost::ModelDescription model = shape_.model();
  const bool latent = model.layers.front().latent.given();
  if (compare_.empty() && latent && !kv_heads_.empty())
    throw UsageError("--kv-heads changes nothing here: the model has latent attention");
  if (compare_.empty() && !latent && !form_.empty())
    throw UsageError("--latent-form changes nothing here: the model has no latent attention");
  as_usage("", [&] {
    cost::check(model);
    std::vector<cost::ModelDescription> variants{model};
    if (!kv_heads_.empty() && !latent) {
      variants.clear();
      for (const std::int64_t heads : parse_counts("--kv-heads", kv_heads_))
        variants.push_back(cost::with_kv_heads(model, heads));
    }
    for (const cost::ModelDescription& variant : variants) cost::check(devices(), variant);
  });
}

/// Options that say something only beside others.
void PlanOptions::check_companions() const {
  for (const CLI::Option* given : app_->get_options()) {
    const std::string name = given->get_name();
    if (list_ && given->count() > 0 && name != "--list")
      throw UsageError(name + " changes nothing here: --list prints the presets alone");
  }
  if (threads_ > 0 && !here_) throw UsageError("--threads needs --here");
  if (measure_ && !here_) throw UsageError("--measure needs --here");
  if (measure_ && model_.empty()) throw UsageError("--measure needs a model's file");
  if (json_ && csv_) throw UsageError("--json and --csv exclude each other");
  if (explain_ && (json_ || csv_)) {
    throw UsageError("--explain changes nothing here: " + std::string(json_ ? "--json" : "--csv") +
                     " has every term already");
  }
}

void PlanOptions::check() const {
  check_companions();
  if (list_) return;
  check_counts();
  check_names();
  check_machine();
  check_shape();
}

}  // namespace polyhead::cli
