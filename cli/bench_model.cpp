#include "cli/bench_model.hpp"

#include <algorithm>
#include <optional>

#include "bench/ceilings/ceilings.hpp"
#include "cli/measure.hpp"
#include "cli/stopwatch.hpp"
#include "cli/table.hpp"
#include "models/head_observer.hpp"
#include "models/model_path.hpp"

namespace polyhead::cli {
namespace {

using models::Model;
using models::ModelConfig;
using nlohmann::ordered_json;

constexpr double kCeilingSeconds = 0.02;

/// Ids that no tokenizer need have written: their values change no speed.
std::vector<std::int32_t> some_ids(std::int64_t count, std::int64_t vocabulary) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  std::uint64_t state = 1;
  for (std::int32_t& id : ids) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    id = static_cast<std::int32_t>((state >> 33) % static_cast<std::uint64_t>(vocabulary));
  }
  return ids;
}

/// Operations of one text of `tokens`.
struct Work {
  double weights = 0.0, attention = 0.0;

  Work(const ModelConfig& model, std::int64_t tokens) {
    const auto n = static_cast<double>(tokens);
    for (const models::LayerGeometry& layer : model.layers) {
      const std::int64_t q = layer.q_heads * layer.head_dim, k = layer.kv_heads * layer.head_dim;
      const std::int64_t v = layer.kv_heads * layer.value_dim, o = layer.q_heads * layer.value_dim;
      const std::int64_t columns = q + k + v + o + (model.gated_ffn ? 3 : 2) * model.ffn_dim;
      weights += 2.0 * static_cast<double>(model.model_dim * columns) * n;
      const auto window =
          static_cast<double>(layer.window > 0 ? std::min(layer.window, tokens) : tokens);
      const double pairs = model.causal ? window * (window + 1) / 2 + (n - window) * window : n * n;
      attention += 2.0 * static_cast<double>(q + o) * pairs;
    }
  }
  double all() const { return weights + attention; }
};

/// Runs `body` for about `seconds` between measurements of the ceiling.
class Trial {
 public:
  Trial(const ModelBench& bench, Executor& executor) : bench_(bench), executor_(executor) {}

  template <class Body>
  ordered_json run(const Body& body, const Work& work) {
    std::vector<double> times, shares, weights_shares;
    body();  // memory, caches and clocks
    const Stopwatch watch;
    double before = ceiling();
    do {
      const double time = seconds_of(body), after = ceiling();
      const double rate = (before + after) / 2 * 1e9;
      times.push_back(time);
      shares.push_back(work.all() / time / rate);
      weights_shares.push_back(work.weights / time / rate);
      before = after;
    } while (watch.seconds() < bench_.seconds);
    const double seconds = median(times);
    return {{"seconds", seconds},
            {"gflops", work.all() / seconds / 1e9},
            {"ceiling_gflops", before},
            {"share", median(shares)},
            {"weights_share", median(weights_shares)},
            {"runs", times.size()}};
  }

 private:
  double ceiling() {
    const Isa isa = resolve_isa(bench_.isa);
    if (bench_.bfloat16) {
      const double rate =
          bench::arithmetic_gops(bench::Arithmetic::bfloat16, isa, executor_, kCeilingSeconds);
      if (rate > 0.0) return rate;
    }
    return bench::arithmetic_gops(bench::Arithmetic::float32, isa, executor_, kCeilingSeconds);
  }

  const ModelBench& bench_;
  Executor& executor_;
};

ordered_json decode(const ModelBench& bench, const Model& model) {
  const std::int64_t context = std::min(bench.context, model.config().context_length - 1);
  const auto ids = some_ids(context + 1, model.config().vocab_size);
  std::vector<float> logits(static_cast<std::size_t>(model.config().vocab_size));
  auto session = model.make_session(context + 1);
  model.forward(session, std::span(ids).first(ids.size() - 1), models::Wanted::nothing, nullptr);
  std::vector<double> times;
  const Stopwatch watch;
  do {
    times.push_back(seconds_of([&] {
      model.forward(session, {&ids.back(), 1}, models::Wanted::last, logits.data());
    }));
    session.truncate(context);
  } while (watch.seconds() < bench.seconds);
  const double seconds = median(times);
  return {{"context", context},
          {"seconds", seconds},
          {"tokens_per_second", 1.0 / seconds},
          {"weight_gbps", static_cast<double>(model.weight_bytes()) / seconds / 1e9},
          {"runs", times.size()}};
}

ordered_json prefill(const ModelBench& bench, const Model& model, Trial& trial) {
  const std::int64_t tokens = std::min(bench.tokens, model.config().context_length);
  const auto ids = some_ids(tokens, model.config().vocab_size);
  std::vector<float> logits(static_cast<std::size_t>(model.config().vocab_size));
  auto session = model.make_session(tokens);
  ordered_json result = trial.run(
      [&] {
        session.truncate(0);
        model.forward(session, ids, models::Wanted::last, logits.data());
      },
      Work(model.config(), tokens));
  result["tokens"] = tokens;
  result["tokens_per_second"] = static_cast<double>(tokens) / result["seconds"].get<double>();
  return result;
}

/// The plain run and the same run with every head's statistics, in turns.
ordered_json look(const ModelBench& bench, const Model& model) {
  const std::int64_t tokens = std::min(bench.tokens, model.config().context_length);
  const auto ids = some_ids(tokens, model.config().vocab_size);
  const std::vector<std::uint8_t> delimiters(ids.size(), 0);
  std::vector<float> logits(static_cast<std::size_t>(model.config().vocab_size));
  auto session = model.make_session(tokens);
  models::HeadObserverOptions watching;
  watching.run.isa = bench.isa;
  watching.run.threads = bench.threads;
  std::int64_t heads = 0;
  for (const models::LayerGeometry& layer : model.config().layers) heads += layer.q_heads;
  const auto run = [&](bool with_statistics) {
    session.truncate(0);
    const Stopwatch once;
    std::optional<models::HeadObserver> observer;
    if (with_statistics) observer.emplace(model.config(), ids, delimiters, watching);
    model.forward(session, ids, models::Wanted::last, logits.data(),
                  {observer ? &*observer : nullptr, nullptr});
    return once.seconds();
  };
  std::vector<double> times, ratios;
  const Stopwatch watch;
  run(true);  // memory
  do {
    const double plain = run(false);
    times.push_back(run(true));
    ratios.push_back(times.back() / plain);
  } while (watch.seconds() < bench.seconds);
  return {{"tokens", tokens},
          {"heads", heads},
          {"seconds", median(times)},
          {"of_plain", median(ratios)},
          {"runs", times.size()}};
}

ordered_json embed(const ModelBench& bench, const Model& model, Trial& trial) {
  const std::int64_t tokens = std::min(bench.text_tokens, model.config().context_length);
  const std::vector<std::vector<std::int32_t>> texts(static_cast<std::size_t>(bench.texts),
                                                     some_ids(tokens, model.config().vocab_size));
  std::vector<float> vectors(texts.size() * static_cast<std::size_t>(model.config().model_dim));
  Work work(model.config(), tokens);
  work.weights *= static_cast<double>(bench.texts);
  work.attention *= static_cast<double>(bench.texts);
  ordered_json result = trial.run([&] { model.embed(texts, vectors.data()); }, work);
  result["texts"] = bench.texts;
  result["tokens"] = tokens;
  result["texts_per_second"] = static_cast<double>(bench.texts) / result["seconds"].get<double>();
  return result;
}

}  // namespace

ordered_json bench_model(const ModelBench& bench, const Console& console) {
  Progress progress(console);
  progress.show("loading ...");
  models::ModelOptions options;
  options.weights = bench.bfloat16 ? models::WeightForm::bfloat16 : models::WeightForm::float32;
  options.run.isa = bench.isa;
  options.run.threads = bench.threads;
  const Stopwatch watch;
  const models::ModelFile file(models::model_path(bench.model));
  const Model model(file, options);
  ordered_json result = {{"model", file.config().name},
                         {"weights", bench.bfloat16 ? "bf16" : "f32"},
                         {"load_seconds", watch.seconds()},
                         {"weight_bytes", model.weight_bytes()}};
  std::optional<ThreadPool> pool;  // the ceilings' own, of as many threads as the model has
  if (bench.threads > 1) pool.emplace(bench.threads);
  Trial trial(bench, pool ? *pool : bench.threads == 1 ? Executor::serial() : Executor::shared());
  progress.show("measuring ...");
  if (!model.config().causal) {
    result["embed"] = embed(bench, model, trial);
    return result;
  }
  result["prefill"] = prefill(bench, model, trial);
  result["look"] = look(bench, model);
  result["decode"] = decode(bench, model);
  return result;
}

void print_model_bench(const ordered_json& result, const Console& console) {
  const auto number = [](const ordered_json& value) { return value.get<double>(); };
  const auto milliseconds = [&](const ordered_json& value) {
    return fixed(number(value) * 1e3, 1) + " ms";
  };
  Table table({Table::Align::left, Table::Align::right, Table::Align::left});
  table.row({"loading", milliseconds(result["load_seconds"]),
             fixed(number(result["weight_bytes"]) / 1e6, 0) + " MB of weights"});
  for (const char* name : {"prefill", "embed"}) {
    if (!result.contains(name)) continue;
    const ordered_json& run = result[name];
    const bool texts = run.contains("texts");
    table.row({texts ? grouped(run["texts"]) + " texts of " + grouped(run["tokens"]) + " tokens"
                     : "prefill of " + grouped(run["tokens"]) + " tokens",
               milliseconds(run["seconds"]),
               fixed(number(run["share"]) * 100, 1) + " % of " +
                   fixed(number(run["ceiling_gflops"]), 0) + " GFLOP/s counting all products (" +
                   fixed(number(run["weights_share"]) * 100, 1) +
                   " % counting those of weights alone, not attention's)"});
  }
  if (result.contains("look")) {
    const ordered_json& run = result["look"];
    table.row({"with " + grouped(run["heads"]) + " heads' statistics", milliseconds(run["seconds"]),
               fixed(number(run["of_plain"]), 2) + " times the plain run"});
  }
  if (result.contains("decode")) {
    const ordered_json& run = result["decode"];
    table.row({"a token after " + grouped(run["context"]), milliseconds(run["seconds"]),
               fixed(number(run["tokens_per_second"]), 1) + " a second"});
  }
  table.print(console);
}

}  // namespace polyhead::cli
