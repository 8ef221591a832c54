// The cases of `polyhead bench` under Google Benchmark, for its filters, repetitions and counters.
// Arrays stay in the caches here between runs; shares of the ceilings are what `polyhead bench`
// gives.
#include <benchmark/benchmark.h>

#include <map>
#include <memory>

#include "cases/cases.hpp"
#include "polyhead/error.h"

namespace {

using polyhead::bench::Case;

polyhead::Executor& executor(int threads) {
  if (threads == 0) return polyhead::Executor::shared();
  if (threads == 1) return polyhead::Executor::serial();
  static std::map<int, std::unique_ptr<polyhead::ThreadPool>> pools;
  auto& pool = pools[threads];
  if (!pool) pool = std::make_unique<polyhead::ThreadPool>(threads);
  return *pool;
}

void run(benchmark::State& state, const Case& of) {
  std::unique_ptr<polyhead::bench::Workload> workload;
  try {
    workload = polyhead::bench::make_workload(of, of.isa, executor(of.threads));
  } catch (const polyhead::InvalidArgument& error) {
    state.SkipWithError(error.what());
    return;
  }
  for (auto _ : state) workload->run();
  const bool bytes = of.against == polyhead::bench::Against::dram;
  state.counters[bytes ? "B/s" : "FLOP/s"] = benchmark::Counter(
      workload->work() * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

}  // namespace

int main(int argc, char** argv) {
  for (const Case& of : polyhead::bench::cases()) {
    benchmark::RegisterBenchmark(of.name.c_str(), run, of)
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
