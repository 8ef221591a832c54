// polyhead bench: the ceilings of this machine and the share of them that each case reaches.
#include <CLI/CLI.hpp>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>

#include "cli/bench_model.hpp"
#include "cli/call_options.hpp"
#include "cli/command.hpp"
#include "cli/json_text.hpp"
#include "cli/measure.hpp"
#include "cli/option_checks.hpp"
#include "cli/table.hpp"
#include "polyhead/error.h"
#include "polyhead/executor.h"

namespace polyhead::cli {
namespace {

using bench::Against;
using bench::Case;
using nlohmann::ordered_json;

// A case; with some 130 of them a run stays under two minutes.
constexpr double kCaseSeconds = 0.3;
constexpr std::size_t kMostFilter = 1000;  // std::regex takes some stack for each character

constexpr const char* kExample =
    "Work counts only what is useful: a multiply and an add are two operations, hidden pairs are "
    "none. A share is of\n"
    "the ceiling measured just before and after, arrays in no cache; medians. Close other "
    "programs.\n\n"
    "Examples:\n"
    "  polyhead bench --filter 'causal float32'\n"
    "  polyhead bench --filter decode --threads 2 --json\n"
    "  polyhead bench --model smollm2 --weights bf16\n"
    "  polyhead bench --list";

class Bench : public Command {
 public:
  const char* name() const override { return "bench"; }
  const char* summary() const override {
    return "This machine's ceilings and the share of them reached";
  }
  void add_options(CLI::App& app) override;
  void run(const Console& console) override;

 private:
  void check_listing() const;
  std::vector<const Case*> chosen() const;
  void print_names(const Console& console, const std::vector<const Case*>& list) const;
  std::vector<Measured> measure(const Console& console, Measurer& measurer,
                                const std::vector<const Case*>& list,
                                std::vector<std::string>& skipped) const;

  const CLI::App* app_ = nullptr;  ///< knows which options were given
  std::string filter_, isa_, model_, weights_ = "f32";
  int threads_ = 0;
  double seconds_ = kCaseSeconds;
  bool json_ = false, list_ = false;
};

void Bench::add_options(CLI::App& app) {
  app_ = &app;
  auto* filter = app.add_option("--filter", filter_,
                                "Only the cases whose name matches this regular expression")
                     ->type_name("REGEX")
                     ->check(not_empty());
  app.add_option("--isa", isa_,
                 "portable, avx2, avx512, avx512_bf16 or amx_bf16 (default:\nPOLYHEAD_ISA, else "
                 "the best here)")
      ->type_name("NAME")
      ->check(not_empty())
      ->check(isa_name());
  app.add_option("--threads", threads_,
                 "Threads of the ceilings, and of the cases that take all of them (default:\n"
                 "POLYHEAD_THREADS, else all processors)")
      ->type_name("N")
      ->transform(count(1, ThreadPool::kMost));
  app.add_option("--seconds", seconds_, "Time for each case (default 0.3)")
      ->type_name("S")
      ->check(number_if([](double s) { return s > 0.0; }, "above 0"));
  auto* model =
      app.add_option("--model", model_,
                     "Measure a model instead: loading, prefill of 2,048 tokens and decoding "
                     "after\n1,024, or 64 texts of 128 tokens")
          ->type_name("MODEL")
          ->excludes(filter)
          ->check(not_empty());
  app.add_option("--weights", weights_, "The model's, f32 or bf16")
      ->type_name("f32|bf16")
      ->check(CLI::IsMember({"f32", "bf16"}).description(""))
      ->needs(model);
  app.add_flag("--list", list_, "Print the names of the cases and nothing else");
  app.add_flag("--json", json_, "Print JSON");
  app.footer(kExample);
}

/// Options that --list would ignore.
void Bench::check_listing() const {
  for (const char* option : {"--isa", "--threads", "--seconds", "--model"}) {
    if (list_ && app_->count(option) > 0)
      throw UsageError(std::string(option) + " changes nothing here: --list measures nothing");
  }
}

std::vector<const Case*> Bench::chosen() const {
  if (filter_.size() > kMostFilter) {
    throw UsageError("--filter has " + std::to_string(filter_.size()) + " bytes (at most " +
                     std::to_string(kMostFilter) + ")");
  }
  std::vector<const Case*> list;
  try {
    const std::regex pattern(filter_);
    for (const Case& c : bench::cases()) {
      if (std::regex_search(c.name, pattern)) list.push_back(&c);
    }
  } catch (const std::regex_error&) {
    throw UsageError("--filter: '" + filter_ + "' is not a regular expression");
  }
  if (list.empty()) throw UsageError("--filter: no case's name matches '" + filter_ + "'");
  return list;
}

void Bench::print_names(const Console& console, const std::vector<const Case*>& list) const {
  if (!json_) {
    for (const Case* c : list) console.out << c->name << '\n';
    return;
  }
  ordered_json names = ordered_json::array();
  for (const Case* c : list) names.push_back(c->name);
  console.out << json_text({{"cases", names}});
}

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

const char* unit_of(const Case& c) { return c.against == Against::dram ? "GB/s" : "GFLOP/s"; }

/// Four figures, no more than the measurement is worth.
double rounded(double value) {
  if (value == 0.0 || !std::isfinite(value)) return value;
  const double digit = std::pow(10.0, 3 - std::floor(std::log10(std::abs(value))));
  return std::round(value * digit) / digit;
}

ordered_json ceilings_json(const Ceilings& c) {
  ordered_json one = {{"float32_gflops", rounded(c.one_float32)},
                      {"bfloat16_gflops", rounded(c.one_bfloat16)},
                      {"bfloat16_matrix_gflops", rounded(c.one_matrix)},
                      {"int8_gops", rounded(c.one_int8)},
                      {"dram_gbps", rounded(c.one_dram)},
                      {"l1_gbps", rounded(c.l1)},
                      {"l2_gbps", rounded(c.l2)},
                      {"l3_gbps", rounded(c.l3)}};
  for (const auto& [isa, rate] : c.float32_by_isa)
    one["float32_gflops_by_isa"][isa_name(isa)] = rounded(rate);
  return {{"float32_gflops", rounded(c.float32)},
          {"bfloat16_gflops", rounded(c.bfloat16)},
          {"bfloat16_matrix_gflops", rounded(c.matrix)},
          {"int8_gops", rounded(c.int8)},
          {"dram_gbps", rounded(c.dram)},
          {"one_thread", one}};
}

ordered_json case_json(const Measured& m) {
  ordered_json one = {{"name", m.of->name},
                      {"median_seconds", rounded(m.median_seconds)},
                      {"rate", rounded(m.rate)},
                      {"unit", unit_of(*m.of)},
                      {"share", rounded(m.share)}};
  one["goal"] = m.of->goal > 0.0 ? ordered_json(m.of->goal) : ordered_json(nullptr);
  one["samples"] = m.samples;
  if (m.of->against == Against::base) one["of"] = m.of->base;
  return one;
}

std::string rate_text(double rate) {
  return rate <= 0.0 ? "-" : rate >= 100 ? fixed(rate, 0) : fixed(rate, 1);
}

std::string time_text(double seconds) {
  return seconds >= 1.0    ? fixed(seconds, 3) + "  s"
         : seconds >= 1e-3 ? fixed(seconds * 1e3, 3) + " ms"
                           : fixed(seconds * 1e6, 1) + " µs";
}

std::string percent(double share) { return fixed(share * 100, 1) + " %"; }

std::string share_of(const Case& c) {
  switch (c.against) {
    case Against::float32:
      return c.isa == Isa::automatic ? "float32" : std::string(isa_name(c.isa)) + " float32";
    case Against::bfloat16:
      return "bfloat16";
    case Against::dram:
      return "DRAM read";
    case Against::base:
      return c.base;
  }
  return "";
}

void print_ceilings(const Console& console, const Ceilings& c, int threads) {
  using Align = Table::Align;
  Table table({Align::left, Align::right, Align::right, Align::left});
  table.header({"ceiling", "one thread",
                threads == 1 ? "" : "  " + std::to_string(threads) + " threads", ""});
  const auto row = [&](const std::string& name, double one, double all, const char* unit) {
    if (one > 0.0)
      table.row({name, rate_text(one), threads == 1 || all <= 0.0 ? "" : rate_text(all), unit});
  };
  row("float32 multiply-add", c.one_float32, c.float32, "GFLOP/s");
  for (const auto& [isa, rate] : c.float32_by_isa)
    row(std::string("  ") + isa_name(isa), rate, 0.0, "GFLOP/s");
  row("bfloat16 dot", c.one_bfloat16, c.bfloat16, "GFLOP/s");
  row("bfloat16 matrices", c.one_matrix, c.matrix, "GFLOP/s");
  row("int8 dot", c.one_int8, c.int8, "GOP/s");
  row("L1 read", c.l1, 0.0, "GB/s");
  row("L2 read", c.l2, 0.0, "GB/s");
  row("L3 read", c.l3, 0.0, "GB/s");
  row("DRAM read", c.one_dram, c.dram, "GB/s");
  table.print(console);
}

void print_cases(const Console& console, const std::vector<Measured>& measured) {
  if (measured.empty()) return;
  using Align = Table::Align;
  Table table({Align::left, Align::right, Align::right, Align::left, Align::right, Align::right,
               Align::left});
  table.header({"case", "median", "rate", "", "share", "goal", "of"});
  for (const Measured& m : measured) {
    const bool met = m.of->goal <= 0.0 || m.share >= m.of->goal;
    table.row({m.of->name, time_text(m.median_seconds), rate_text(m.rate), unit_of(*m.of),
               console.styled(met ? Style::good : Style::bad, percent(m.share)),
               m.of->goal > 0.0 ? percent(m.of->goal) : "",
               console.styled(Style::faint, share_of(*m.of))});
  }
  console.out << '\n';
  table.print(console);
}

std::vector<Measured> Bench::measure(const Console& console, Measurer& measurer,
                                     const std::vector<const Case*>& list,
                                     std::vector<std::string>& skipped) const {
  std::vector<Measured> measured;
  Progress progress(console);
  std::size_t begun = 0;
  for (const Case* c : list) {
    progress.show(std::to_string(++begun) + "/" + std::to_string(list.size()) + "  " + c->name);
    try {
      measured.push_back(measurer.measure(*c, seconds_));
    } catch (const InvalidArgument& error) {
      skipped.push_back(c->name + ": " + error.what());
    }
  }
  return measured;
}

void Bench::run(const Console& console) {
  check_listing();
  const std::vector<const Case*> list = chosen();
  if (list_) {
    print_names(console, list);
    return;
  }
  const Isa isa = resolve_isa(isa_.empty() ? Isa::automatic : isa_option(isa_));
  if (!model_.empty()) {
    ModelBench bench;
    bench.model = model_;
    bench.bfloat16 = weights_ == "bf16";
    bench.seconds = seconds_;
    bench.isa = isa;
    bench.threads = threads_;
    const ordered_json result = bench_model(bench, console);
    if (json_) {
      console.out << json_text(result);
    } else {
      print_model_bench(result, console);
    }
    return;
  }
  const int threads = threads_ > 0 ? threads_ : Executor::shared().concurrency();
  Measurer measurer(isa, threads);
  Ceilings ceilings;
  {
    Progress progress(console);
    progress.show("measuring the ceilings ...");
    ceilings = measurer.ceilings();
  }
  std::vector<std::string> skipped;
  const std::string cpu = cpu_name();
  if (!json_) {
    console.out << "  " << console.styled(Style::heading, cpu) << ", " << isa_name(isa) << ", "
                << threads << (threads == 1 ? " thread" : " threads") << "\n\n";
    print_ceilings(console, ceilings, threads);
    flush(console.out);
  }
  const std::vector<Measured> measured = measure(console, measurer, list, skipped);
  for (const std::string& why : skipped) console.err << "skipped: " << why << '\n';
  if (!json_) return print_cases(console, measured);
  ordered_json result = {{"cpu", cpu}, {"isa", isa_name(isa)}, {"threads", threads}};
  result["ceilings"] = ceilings_json(ceilings);
  result["cases"] = ordered_json::array();
  for (const Measured& m : measured) result["cases"].push_back(case_json(m));
  console.out << json_text(result);
}

}  // namespace

std::unique_ptr<Command> make_bench() { return std::make_unique<Bench>(); }

}  // namespace polyhead::cli
