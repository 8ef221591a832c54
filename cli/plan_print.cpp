// The plan as tables: the verdict first, then what it is made of.
#include <algorithm>
#include <cmath>

#include "cli/plan_parts.hpp"
#include "cli/table.hpp"

namespace polyhead::cli {
namespace {

using cost::Count;
using cost::Layer;
using cost::ModelDescription;
using cost::Phase;
using cost::Term;
using Align = Table::Align;

constexpr int kBarCells = 20;  // of a share: 5 % a cell

std::string percent(double share) { return fixed(share * 100, share < 0.0995 ? 1 : 0) + " %"; }

/// "██████▌             ": eighths of a cell.
std::string bar(double share) {
  static constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const int eighths = static_cast<int>(std::lround(std::clamp(share, 0.0, 1.0) * 8 * kBarCells));
  std::string text;
  for (int i = 0; i < eighths / 8; ++i) text += "█";
  text += kEighths[eighths % 8];
  const int used = (eighths + 7) / 8;
  return text + std::string(static_cast<std::size_t>(kBarCells - used), ' ');
}

/// One column a list, left out where it says the same in every row.
struct Columns {
  explicit Columns(const PlanRequest& r)
      : heads(r.models.size() > 1), batch(r.batches.size() > 1), type(r.kv_types.size() > 1) {
    for (const ModelDescription& model : r.models) models = models || model.id != r.models[0].id;
  }
  bool heads, batch, type, models = false;

  std::vector<Align> aligned(std::vector<Align> rest) const {
    std::vector<Align> all{Align::right};
    if (models) all.push_back(Align::left);
    if (heads) all.push_back(Align::right);
    if (type) all.push_back(Align::left);
    if (batch) all.push_back(Align::right);
    all.insert(all.end(), rest.begin(), rest.end());
    return all;
  }
  std::vector<std::string> header(std::vector<std::string> rest) const {
    std::vector<std::string> all{"context"};
    if (models) all.push_back("model");
    if (heads) all.push_back("KV heads");
    if (type) all.push_back("KV type");
    if (batch) all.push_back("batch");
    all.insert(all.end(), rest.begin(), rest.end());
    return all;
  }
  std::vector<std::string> row(const PlanCase& c, std::vector<std::string> rest) const {
    std::vector<std::string> all{grouped(c.work.context())};
    if (models) all.push_back(printable(c.model->id));
    if (heads) all.push_back(c.heads);
    if (type) all.push_back(c.work.kv_type.name);
    if (batch) all.push_back(grouped(c.work.batch));
    all.insert(all.end(), rest.begin(), rest.end());
    return all;
  }
};

std::string shape_of(const Layer& layer) {
  std::string text = grouped(layer.count) + (layer.name.empty() ? "" : " " + layer.name) +
                     (layer.count == 1 ? " layer: " : " layers: ");
  if (layer.latent.given()) {
    return text + counted(layer.q_heads, "head") + " over latents of " +
           grouped(layer.latent.kv_rank) + " + " + grouped(layer.latent.rope_dim);
  }
  text += layer.kv_heads == layer.q_heads
              ? counted(layer.q_heads, "head") + " (MHA)"
              : counted(layer.q_heads, "query head") + ", " + counted(layer.kv_heads, "KV head") +
                    (layer.kv_heads == 1 ? " (MQA)" : " (GQA)");
  text += " of " + grouped(layer.head_dim);
  if (layer.window > 0) text += ", window " + grouped(layer.window);
  if (layer.attends == cost::Attends::all) text += ", not causal";
  return text;
}

bool same_heads(const ModelDescription& a, const ModelDescription& b) {
  return std::ranges::equal(a.layers, b.layers, {}, &Layer::kv_heads, &Layer::kv_heads);
}

/// What --kv-heads makes of a model, where it makes something else of it.
void print_variants(const Console& console, const PlanRequest& r,
                    const ModelDescription& published) {
  std::vector<std::size_t> variants;
  for (std::size_t i = 0; i < r.models.size(); ++i) {
    if (r.models[i].id == published.id) variants.push_back(i);
  }
  if (variants.size() == 1 && same_heads(r.models[variants[0]], published)) return;
  for (const std::size_t i : variants) {
    console.out << "  with " << heads_of(r.heads[i]) << ": "
                << parameters_text(cost::parameters(r.models[i]).value) << " parameters\n";
  }
}

void print_models(const Console& console, const PlanRequest& r) {
  for (const ModelDescription& model : r.published) {
    console.out << console.styled(Style::heading, printable(model.name)) << "  "
                << parameters_text(cost::parameters(model).value) << " parameters, model_dim "
                << grouped(model.layers[0].model_dim);
    for (const Layer& layer : model.layers)
      console.out << (model.layers.size() > 1 ? "\n  " : "; ") << shape_of(layer);
    console.out << '\n';
    print_variants(console, r, model);
  }
  if (r.machine) {
    const cost::Machine& m = known(r.machine);
    if (r.devices.count > 1) {
      console.out << r.devices.count << " devices, "
                  << (r.devices.split == cost::Split::tensor ? "heads" : "tokens")
                  << " split; figures of each: ";
    }
    console.out << printable(m.name) << ": " << gigabytes(Count(m.memory_bytes)) << " ("
                << gibibytes(Count(m.memory_bytes)) << "), "
                << gigabytes(Count(static_cast<std::int64_t>(m.memory_bandwidth))) << "/s, "
                << flops_text(Count(static_cast<std::int64_t>(cost::peak_flops(m, r.compute))))
                << "/s dense\n";
  }
}

void print_verdicts(const Console& console, const PlanResult& plan) {
  const Columns columns(plan.request);
  Table table({Align::left, Align::left});
  for (const PlanCase& c : plan.cases) {
    std::string who = counted(c.work.context(), "token");
    if (columns.models) who += ", " + printable(c.model->id);
    if (columns.heads) who += ", " + heads_of(c.heads);
    if (columns.type) who += ", " + c.work.kv_type.name;
    if (c.work.batch > 1) who += ", batch " + grouped(c.work.batch);
    const Style style = !plan.request.machine ? Style::key : c.fits ? Style::good : Style::bad;
    table.row({who, console.styled(style, verdict_of(c, plan.request))});
  }
  console.out << '\n';
  table.print(console);
}

void print_memory(const Console& console, const PlanResult& plan) {
  const PlanRequest& r = plan.request;
  const Columns columns(r);
  heading(console, "Memory");
  std::vector<Align> rest(6, Align::right);
  std::vector<std::string> names{"KV cache", "", "weights", "scratch", "total", ""};
  const bool paged = r.workload.page_tokens > 0;
  if (paged) names.insert(names.begin() + 2, "of it page ends");
  if (r.machine) {
    for (const char* name : {"of memory", "longest context", "largest batch"})
      names.push_back(name);
  }
  rest.resize(names.size(), Align::right);
  Table table(columns.aligned(rest));
  table.header(columns.header(names));
  for (const PlanCase& c : plan.cases) {
    std::vector<std::string> cells{gigabytes(c.kv_cache.value), gibibytes(c.kv_cache.value),
                                   gigabytes(c.weights.value),  gigabytes(c.scratch.value),
                                   gigabytes(c.memory.value),   gibibytes(c.memory.value)};
    if (paged) cells.insert(cells.begin() + 2, gigabytes(c.kv_waste));
    if (r.machine) {
      const double share =
          c.memory.value.to_double() / static_cast<double>(known(r.machine).memory_bytes);
      cells.push_back(console.styled(c.fits ? Style::good : Style::bad, percent(share)));
      cells.push_back(tokens_text(c.largest_context));
      cells.push_back(tokens_text(c.largest_batch));
    }
    table.row(columns.row(c, cells));
  }
  table.print(console);
}

/// What memory alone allows may be more than a model was trained on.
void print_made_for(const Console& console, const PlanResult& plan) {
  for (const ModelDescription& model : plan.request.published) {
    const auto beyond = [&](const PlanCase& c) {
      return c.model->id == model.id && c.largest_context > model.context_length;
    };
    if (model.context_length == 0 || std::ranges::none_of(plan.cases, beyond)) continue;
    console.out << "  "
                << console.styled(Style::faint, "the longest context is what memory holds; " +
                                                    printable(model.name) + " was made for " +
                                                    counted(model.context_length, "token"))
                << '\n';
  }
}

bool fits(const PlanCase& c, const cost::Machine& machine, const cost::Devices& devices) {
  try {
    return cost::memory_bytes(*c.model, c.work, devices).value.fits(machine.memory_bytes);
  } catch (const InvalidArgument&) {
    return false;  // heads do not divide
  }
}

/// As many devices of each preset as were asked for, if the last case fits them; otherwise the
/// fewest that it fits, heads split.
void print_where_it_fits(const Console& console, const PlanResult& plan) {
  const cost::Devices asked = plan.request.devices;
  std::vector<cost::Devices> tried{asked};
  if (asked.count == 1) {
    for (const std::int64_t count : {2, 4, 8, 16, 32})
      tried.push_back({count, cost::Split::tensor});
  }
  std::string list;
  cost::Split split = cost::Split::none;
  for (const cost::Machine& machine : cost::machine_presets()) {
    const auto found = std::ranges::find_if(tried, [&](const cost::Devices& devices) {
      return fits(plan.cases.back(), machine, devices);
    });
    if (found == tried.end()) continue;
    list += (list.empty() ? "" : ", ") + std::to_string(found->count) + " x " + machine.id;
    if (found->count > 1) split = found->split;
  }
  if (list.empty()) return;
  if (split != cost::Split::none) {
    list += console.styled(Style::faint,
                           split == cost::Split::tensor ? " (heads split)" : " (tokens split)");
  }
  console.out << "  " << console.styled(Style::faint, "the last row fits ") << list << '\n';
}

std::string range(double fast, double slow) {
  return seconds_text(fast) + " - " + seconds_text(slow);
}

const char* bound_text(cost::Bound bound) {
  return bound == cost::Bound::compute ? "compute" : "bandwidth";
}

void print_prefill(const Console& console, const PlanResult& plan) {
  const PlanRequest& r = plan.request;
  const Columns columns(r);
  const cost::Workload& work = r.workload;
  heading(console, std::string("Prefill") +
                       (work.generated > 0 ? " of all but the " + counted(work.generated, "token") +
                                                 (work.generated == 1 ? " that is generated"
                                                                      : " that are generated")
                                           : "") +
                       (work.chunk > 0 ? ", " + counted(work.chunk, "token") + " a call" : "") +
                       of_which_devices(r));
  std::vector<Align> rest{Align::right, Align::right, Align::right, Align::right, Align::left};
  std::vector<std::string> names{"attention in full", "triangle", "all", "scores' share", ""};
  if (r.machine) {
    for (const char* name : {"attention at peak", "all, likely", "bound by"}) {
      rest.push_back(std::string(name) == "bound by" ? Align::left : Align::right);
      names.push_back(name);
    }
  }
  const bool visible_only = r.workload.counting == cost::Counting::triangle;
  Table table(columns.aligned(rest));
  table.header(columns.header(names));
  for (const PlanCase& c : plan.cases) {
    const Term& flops = visible_only ? c.prefill_triangle : c.prefill;
    const Count all = flops.value, products = flops.parts[1].value;
    const double share = all > Count(0) ? products.to_double() / all.to_double() : 0;
    std::vector<std::string> cells{flops_text(cost::attention_only(c.prefill)),
                                   flops_text(cost::attention_only(c.prefill_triangle)),
                                   flops_text(all), percent(share),
                                   console.styled(Style::key, bar(share))};
    if (r.machine) {
      const Likely& time = known(c.prefill_time);
      cells.push_back(seconds_text(time.peak.attention_seconds));
      cells.push_back(range(time.fast.seconds, time.slow.seconds));
      cells.push_back(bound_text(time.slow.bound));
    }
    table.row(columns.row(c, cells));
  }
  table.print(console);
}

std::string rate_text(const PlanCase& c, double seconds) {
  return three_figures(static_cast<double>(c.work.batch) / seconds);
}

void print_decode(const Console& console, const PlanResult& plan) {
  const PlanRequest& r = plan.request;
  if (std::ranges::none_of(r.models, decodes)) return;
  const Columns columns(r);
  heading(console, "Decode, one more token of each sequence" + of_which_devices(r));
  std::vector<Align> rest{Align::right, Align::right, Align::right};
  std::vector<std::string> names{"reads", "of it KV", "FLOPs"};
  if (r.machine) {
    for (const char* name : {"tokens/s at peak", "likely", "bound by"}) {
      rest.push_back(std::string(name) == "bound by" ? Align::left : Align::right);
      names.push_back(name);
    }
  }
  Table table(columns.aligned(rest));
  table.header(columns.header(names));
  for (const PlanCase& c : plan.cases) {
    if (!decodes(*c.model)) continue;
    const Term traffic = cost::traffic_bytes(c.share, c.work, Phase::decode_step);
    std::vector<std::string> cells{gigabytes(traffic.value), gigabytes(traffic.at("kv_read")),
                                   flops_text(c.decode.value)};
    if (r.machine) {
      const Likely& time = known(c.decode_time);
      cells.push_back(rate_text(c, time.peak.seconds));
      cells.push_back(rate_text(c, time.slow.seconds) + " - " + rate_text(c, time.fast.seconds));
      cells.push_back(bound_text(time.slow.bound));
    }
    table.row(columns.row(c, cells));
  }
  table.print(console);
}

void print_generation(const Console& console, const PlanResult& plan) {
  const PlanRequest& r = plan.request;
  if (r.workload.generated < 2) return;
  const Columns columns(r);
  heading(console, "Generating " + counted(r.workload.generated, "token"));
  Table table(columns.aligned({Align::right, Align::right, Align::right}));
  table.header(columns.header({"FLOPs", r.machine ? "at peak" : "", r.machine ? "likely" : ""}));
  for (const PlanCase& c : plan.cases) {
    if (!decodes(*c.model)) continue;
    std::vector<std::string> cells{flops_text(c.generation.value)};
    if (r.machine) {
      cells.push_back(seconds_text(known(c.generation_time).peak.seconds));
      cells.push_back(
          range(known(c.generation_time).fast.seconds, known(c.generation_time).slow.seconds));
    }
    table.row(columns.row(c, cells));
  }
  table.print(console);
}

void print_others(const Console& console, const PlanResult& plan) {
  const PlanRequest& r = plan.request;
  const Columns columns(r);
  if (r.training) {
    heading(console, "Training, forward and backward, scores computed again");
    Table table(columns.aligned({Align::right, Align::right}));
    table.header(columns.header({"FLOPs", r.machine ? "at peak" : ""}));
    for (const PlanCase& c : plan.cases) {
      table.row(columns.row(
          c, {flops_text(known(c.training).value),
              r.machine ? seconds_text(known(c.training_time).peak.peak_seconds) : ""}));
    }
    table.print(console);
  }
  if (r.devices.count == 1) return;
  heading(console, "Sent by each device");
  const bool timed = r.machine && known(r.machine).link_bandwidth > 0;
  Table table(columns.aligned({Align::right, Align::right, Align::right, Align::right}));
  table.header(columns.header(
      {"prefill", timed ? "at link speed" : "", "a decode step", timed ? "at link speed" : ""}));
  for (const PlanCase& c : plan.cases) {
    const auto time = [&](const Term& sent) {
      return timed ? seconds_text(sent.value.to_double() / known(r.machine).link_bandwidth) : "";
    };
    table.row(columns.row(c, {gigabytes(known(c.sent_prefill).value), time(known(c.sent_prefill)),
                              gigabytes(known(c.sent_decode).value), time(known(c.sent_decode))}));
  }
  table.print(console);
}

std::string turn_text(const std::optional<std::int64_t>& tokens) {
  return tokens ? grouped(*tokens) : "never";
}

void print_crossover(const Console& console, const PlanResult& plan) {
  heading(console, "Scores and weighted sums overtake, in prefill");
  const PlanRequest& r = plan.request;
  Table table({Align::left, Align::right, Align::right, Align::right, Align::right});
  table.header({"tokens", "projections", "triangle", "with feed-forward", "triangle"});
  for (std::size_t i = 0; i < r.models.size(); ++i) {
    const cost::LatentForm form = r.workload.prefill_form;
    const cost::Crossover full = cost::crossover(r.models[i], cost::Counting::full, form);
    const cost::Crossover half = cost::crossover(r.models[i], cost::Counting::triangle, form);
    const bool one = r.models.size() == 1;
    table.row({one ? "" : printable(r.models[i].id) + ", " + heads_of(r.heads[i]),
               turn_text(full.projections), turn_text(half.projections), turn_text(full.everything),
               turn_text(half.everything)});
  }
  table.print(console);
}

void print_assumptions(const Console& console, const PlanResult& plan) {
  const PlanRequest& r = plan.request;
  const auto share = [](double low, double high) {
    return fixed(low * 100, 0) + "-" + fixed(high * 100, 0) + " %";
  };
  std::string text = "\n  A multiply and an add are two FLOPs. Scores are counted ";
  text += r.workload.counting == cost::Counting::full ? "in full, \"triangle\" visible pairs only"
                                                      : "as visible pairs only";
  text += "; attention is projections, scores and weighted sums.\n";
  text += "  1 GB = 10^9 bytes, 1 GiB = 2^30; k is 1,000, Ki 1,024.";
  if (r.machine) {
    text += " At peak: the least time of what is counted.";
  }
  if (r.here) {
    text +=
        " Likely: the kernels' rates as measured here, give or\n  take 15 %; --explain shows them.";
  } else if (r.machine) {
    text += " Likely: visible pairs only,\n  matrix products at " + share(r.low.gemm, r.high.gemm) +
            " of peak, attention " + share(r.low.attention, r.high.attention) + ", bandwidth " +
            share(r.low.bandwidth, r.high.bandwidth) + ".";
  }
  console.out << console.styled(Style::faint, text) << "\n";
}

}  // namespace

void print_plan(const Console& console, const PlanResult& plan, bool explain) {
  print_models(console, plan.request);
  print_verdicts(console, plan);
  print_memory(console, plan);
  if (plan.request.machine) {
    print_made_for(console, plan);
  } else {
    print_where_it_fits(console, plan);
  }
  print_prefill(console, plan);
  print_decode(console, plan);
  print_generation(console, plan);
  print_others(console, plan);
  print_measured(console, plan);
  print_crossover(console, plan);
  if (explain) {
    explain_rates(console, plan);
    for (const PlanCase& c : plan.cases) explain_case(console, plan, c);
  } else {
    print_terms(console, plan);
  }
  print_assumptions(console, plan);
}

}  // namespace polyhead::cli
