#include "cli/measure.hpp"

#include <algorithm>

#include "cli/stopwatch.hpp"

namespace polyhead::cli {
namespace {

using bench::Against;
using bench::Arithmetic;
using bench::Case;

constexpr std::size_t kDramBytes = std::size_t{256}
                                   << 20;  // eight times the third level of what is measured on
constexpr double kCeilingSeconds =
    0.003;  // short enough to share the clock speed of the sample beside it
constexpr double kAloneSeconds = 0.02;  // of a ceiling measured for itself
constexpr int kAloneRepeats = 5;        // medians: other programs come and go
constexpr int kMaxSamples = 25, kMinSamples = 3;
constexpr double kLongSample = 1.0;  // seconds; longer ones are taken once

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  const std::size_t half = values.size() / 2;
  std::sort(values.begin(), values.end());
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

Measurer::Measurer(Isa isa, int threads) : isa_(isa), threads_(threads), reader_(kDramBytes) {}

Executor& Measurer::executor(int threads) {
  if (threads == 0) threads = threads_;
  if (threads == 1) return Executor::serial();
  std::unique_ptr<ThreadPool>& pool = pools_[threads];
  if (!pool) pool = std::make_unique<ThreadPool>(threads);
  return *pool;
}

Isa Measurer::isa_of(const Case& of) const { return of.isa == Isa::automatic ? isa_ : of.isa; }

Ceilings Measurer::ceilings() {
  const auto often = [&](auto measure) {
    std::vector<double> rates;
    rates.reserve(kAloneRepeats);
    for (int i = 0; i < kAloneRepeats; ++i) rates.push_back(measure());
    return median(rates);
  };
  const auto arithmetic = [&](Arithmetic kind, Isa isa, int threads) {
    return often(
        [&] { return bench::arithmetic_gops(kind, isa, executor(threads), kAloneSeconds); });
  };
  Ceilings c;
  c.one_float32 = arithmetic(Arithmetic::float32, isa_, 1);
  c.one_bfloat16 = arithmetic(Arithmetic::bfloat16, isa_, 1);
  c.one_matrix = arithmetic(Arithmetic::matrix, isa_, 1);
  c.one_int8 = arithmetic(Arithmetic::int8, isa_, 1);
  c.one_dram = often([&] { return reader_.dram_gbps(executor(1)); });
  c.float32 = threads_ == 1 ? c.one_float32 : arithmetic(Arithmetic::float32, isa_, 0);
  c.bfloat16 = threads_ == 1 ? c.one_bfloat16 : arithmetic(Arithmetic::bfloat16, isa_, 0);
  c.matrix = threads_ == 1 ? c.one_matrix : arithmetic(Arithmetic::matrix, isa_, 0);
  c.int8 = threads_ == 1 ? c.one_int8 : arithmetic(Arithmetic::int8, isa_, 0);
  c.dram = threads_ == 1 ? c.one_dram : often([&] { return reader_.dram_gbps(executor(0)); });
  const bench::CacheBytes caches = bench::cache_bytes();
  const auto cached = [&](std::size_t bytes) {
    return bytes == 0 ? 0.0 : often([&] { return reader_.cached_gbps(bytes, kAloneSeconds / 4); });
  };
  c.l1 = cached(caches.l1 / 2);
  c.l2 = cached(caches.l2 / 2);
  c.l3 = cached(std::min(caches.l3 / 4, kDramBytes / 8));  // others use it too
  for (const Isa isa : available_isas()) {
    if (isa < Isa::avx512_bf16)
      c.float32_by_isa.emplace_back(isa, arithmetic(Arithmetic::float32, isa, 1));
  }
  return c;
}

double Measurer::reference(const Case& of, bench::Workload* base) {
  if (base != nullptr) {
    reader_.evict();
    return base->work() / seconds_of([&] { base->run(); }) / 1e9;
  }
  if (of.against == Against::dram) return reader_.dram_gbps(executor(of.threads));
  if (of.against == Against::bfloat16) {
    const double rate = bench::arithmetic_gops(Arithmetic::bfloat16, isa_of(of),
                                               executor(of.threads), kCeilingSeconds);
    if (rate > 0.0) return rate;
  }
  return bench::arithmetic_gops(Arithmetic::float32, isa_of(of), executor(of.threads),
                                kCeilingSeconds);
}

Measured Measurer::measure(const Case& of, double seconds) {
  const std::unique_ptr<bench::Workload> workload =
      bench::make_workload(of, isa_of(of), executor(of.threads));
  std::unique_ptr<bench::Workload> base;
  if (of.against == Against::base) {
    Case other = bench::case_named(of.base);
    other.against = Against::base;  // the same kind of work: operations, not bytes
    base = bench::make_workload(other, isa_of(other), executor(other.threads));
  }
  std::vector<double> times, shares;
  const Stopwatch watch;
  double before = reference(of, base.get());
  while (static_cast<int>(times.size()) < kMaxSamples) {
    reader_.evict();
    const double time = seconds_of([&] { workload->run(); });
    const double after = reference(of, base.get());
    times.push_back(time);
    shares.push_back(workload->work() / time / 1e9 / ((before + after) / 2));
    before = after;
    const bool enough = watch.seconds() >= seconds && static_cast<int>(times.size()) >= kMinSamples;
    if (enough || time >= kLongSample) break;
  }
  Measured measured;
  measured.of = &of;
  measured.median_seconds = median(times);
  measured.rate = workload->work() / measured.median_seconds / 1e9;
  measured.share = median(shares);
  measured.samples = static_cast<int>(times.size());
  return measured;
}

}  // namespace polyhead::cli
