// The plan's terms: one layer step by step, every formula with its numbers, what was measured here.
#include "cli/plan_parts.hpp"
#include "cli/table.hpp"

namespace polyhead::cli {

using cost::Count;
using cost::Layer;
using cost::Phase;
using cost::Term;
using Align = Table::Align;

namespace {

void explain_term(const Console& console, const Term& term, std::size_t depth) {
  const std::string indent(2 + 2 * depth, ' ');
  console.out << indent << console.styled(Style::key, term.label()) << " = " << term.formula()
              << '\n';
  if (term.numbers() != term.formula() && term.numbers() != term.value.grouped())
    console.out << indent << "  = " << term.numbers() << '\n';
  console.out << indent << "  = " << term.value.grouped();
  if (!term.note.empty())
    console.out << "  " << console.styled(Style::faint, "(" + term.note + ")");
  console.out << '\n';
  for (const Term& part : term.parts) explain_term(console, part, depth + 1);
}

}  // namespace

void heading(const Console& console, const std::string& text) {
  console.out << '\n' << console.styled(Style::heading, text) << '\n';
}

std::string heads_of(const std::string& heads) {
  return heads == "MLA" ? heads : heads + (heads == "1" ? " KV head" : " KV heads");
}

void print_terms(const Console& console, const PlanResult& plan) {
  const PlanCase& c = plan.cases.front();
  for (const Layer& layer : c.model->layers) {
    heading(console, "One " + (layer.name.empty() ? std::string() : layer.name + " ") + "layer, " +
                         heads_of(c.heads) + ", " + counted(c.work.context(), "token"));
    cost::Workload full = c.work;
    full.counting = plan.request.workload.counting;
    const Term flops = cost::attention_flops(layer, full, Phase::prefill);
    const Term softmax = cost::softmax_flops(layer, full, Phase::prefill);
    Table table({Align::left, Align::right, Align::right, Align::left});
    table.header({"term", "", "exactly", ""});
    for (const Term& part : cost::attention_parameters(layer).parts)
      table.row({part.id, parameters_text(part.value), part.value.grouped(), "parameters"});
    table.rule();
    for (const Term& part : flops.parts)
      table.row({part.id, flops_text(part.value), part.value.grouped(), "FLOPs"});
    table.row({"softmax, counted apart", flops_text(softmax.value), softmax.value.grouped(),
               "operations"});
    table.rule();
    const Term scores = cost::score_bytes(layer, c.work);
    const Term token = cost::kv_bytes_per_token(layer, c.work.kv_type);
    table.row({"scores if written", gigabytes(scores.value), scores.value.grouped(), "bytes"});
    table.row({"KV of one token", gigabytes(token.value), token.value.grouped(), "bytes"});
    table.print(console);
  }
}

void print_measured(const Console& console, const PlanResult& plan) {
  if (!plan.request.measured) return;
  const MeasuredRun& run = *plan.request.measured;
  const PlanCase& c = plan.cases.front();
  heading(console, "Measured here, " + counted(run.tokens, "token"));
  Table table({Align::left, Align::right, Align::right, Align::right});
  table.header({"", "measured", "predicted", "predicted / measured"});
  const auto time = [&](const char* name, double measured, const Likely& likely) {
    const double predicted = known(likely.predicted).seconds;
    table.row(
        {name, seconds_text(measured), seconds_text(predicted), fixed(predicted / measured, 2)});
  };
  const auto bytes = [&](const char* name, std::int64_t measured, const Count& predicted) {
    if (measured <= 0) return;
    table.row({name, gigabytes(Count(measured)), gigabytes(predicted),
               fixed(predicted.to_double() / static_cast<double>(measured), 2)});
  };
  time("prefill", run.prefill_seconds, known(c.prefill_time));
  time("a decode step", run.decode_seconds, known(c.decode_time));
  bytes("weights", run.weight_bytes, c.weights.value);
  bytes("KV cache", run.cache_bytes, c.kv_cache.value);
  bytes("memory", run.resident_bytes, c.memory.value);
  table.print(console);
}

void explain_case(const Console& console, const PlanResult& plan, const PlanCase& c) {
  const auto show = [&](const char* title, const Term& term) {
    heading(console, title);
    explain_term(console, term, 0);
  };
  heading(console, printable(c.model->id) + ", " + heads_of(c.heads) + ", " +
                       counted(c.work.context(), "token") + ", batch " + grouped(c.work.batch) +
                       ", " + c.work.kv_type.name);
  const bool triangle = plan.request.workload.counting == cost::Counting::triangle;
  const std::string of = plan.request.devices.split == cost::Split::tensor ? ", of one device" : "";
  show("Parameters", cost::parameters(*c.model));
  show("Memory", c.memory);
  show("FLOPs of prefill", triangle ? c.prefill_triangle : c.prefill);
  show("FLOPs of one decode step", c.decode);
  show(("Bytes read and written by prefill" + of).c_str(),
       cost::traffic_bytes(c.share, c.work, Phase::prefill));
  show(("Bytes read and written by one decode step" + of).c_str(),
       cost::traffic_bytes(c.share, c.work, Phase::decode_step));
  show("Scores of one layer, were they written", c.scores);
  if (c.training) show("FLOPs of training", known(c.training));
  if (c.sent_prefill) show("Sent by a device in prefill", known(c.sent_prefill));
  if (c.sent_decode) show("Sent by a device in one decode step", known(c.sent_decode));
}

void explain_rates(const Console& console, const PlanResult& plan) {
  if (!plan.request.here) return;
  const KernelRates& k = *plan.request.here;
  const auto flops = [](double rate) {
    return flops_text(Count(static_cast<std::int64_t>(rate))) + "/s";
  };
  const auto bytes = [](double rate) {
    return gigabytes(Count(static_cast<std::int64_t>(rate))) + "/s";
  };
  const auto rows = [](double rate) {
    return parameters_text(Count(static_cast<std::int64_t>(rate))) + " elements/s";
  };
  const auto of = [](double rate, double peak) { return fixed(100 * rate / peak, 0) + " %"; };
  heading(console, "Kernels measured here, at the sizes of the first model");
  Table rates({Align::left, Align::right, Align::right});
  rates.header({"", "rate", "of the ceiling"});
  rates.row({"products, many rows", flops(k.many_rows), of(k.many_rows, k.peak)});
  rates.row(
      {"attention, many queries, on the diagonal", flops(k.diagonal), of(k.diagonal, k.peak)});
  rates.row({"attention, many queries, beside it", flops(k.beside), of(k.beside, k.peak)});
  rates.row({"products, a row a sequence", bytes(k.one_row), of(k.one_row, k.bandwidth)});
  rates.row({"attention, a query, keys and values", bytes(k.cache), of(k.cache, k.bandwidth)});
  rates.row({"  and for each layer", seconds_text(k.query_seconds), ""});
  rates.row({"norms, sums, activations, many rows", rows(k.rows_many), ""});
  rates.row({"norms, sums, activations, a row a sequence", rows(k.rows_one), ""});
  rates.print(console);
  heading(console, "Predicted for " + counted(plan.cases.front().work.context(), "token") +
                       ": the larger of FLOPs and bytes at these rates");
  Table sums({Align::left, Align::right, Align::right});
  sums.header({"", "prefill", "a decode step"});
  const auto& prefill = known(known(plan.cases.front().prefill_time).predicted);
  const auto& decode = known(known(plan.cases.front().decode_time).predicted);
  for (std::size_t i = 0; i < prefill.kernels.size(); ++i) {
    sums.row({prefill.kernels[i].id, seconds_text(prefill.kernels[i].seconds()),
              seconds_text(decode.kernels[i].seconds())});
  }
  sums.rule();
  sums.row({"all", seconds_text(prefill.seconds), seconds_text(decode.seconds)});
  sums.print(console);
}

}  // namespace polyhead::cli
