#include "cli/plan_measure.hpp"

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <fstream>
#include <memory>
#include <vector>

#include "cli/measure.hpp"
#include "cli/stopwatch.hpp"
#include "models/model.hpp"
#include "models/model_file.hpp"
#include "models/model_path.hpp"
#include "polyhead/error.h"
#include "polyhead/executor.h"

namespace polyhead::cli {
namespace {

constexpr int kRepeats = 3;       // of the prompt
constexpr int kDecodeSteps = 15;  // the median of which is shown

/// Anonymous memory of this process that is in RAM, in bytes; 0 where the system does not say.
std::int64_t private_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::int64_t kibibytes = 0;
    if (word == "RssAnon:" && status >> kibibytes) return kibibytes << 10;
  }
  return 0;
}

/// Memory that was freed goes back to the system, or the next to ask would get it for nothing.
void give_back() {
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
}

}  // namespace

MeasuredRun measure_run(const std::string& path, std::int64_t tokens, int threads, bool bfloat16) {
  give_back();
  const std::int64_t before = private_memory();
  const models::ModelFile file(models::model_path(path));
  const models::ModelConfig& config = file.config();
  if (!config.causal) throw InvalidArgument("plan: " + path + " is an encoder; --measure decodes");
  if (tokens < 1 || tokens + kDecodeSteps > config.context_length) {
    throw InvalidArgument("plan: --measure of " + std::to_string(tokens) + " tokens and " +
                          std::to_string(kDecodeSteps) + " more; " + path + " has a context of " +
                          std::to_string(config.context_length));
  }
  std::unique_ptr<ThreadPool> pool;
  models::ModelOptions options;
  options.weights = bfloat16 ? models::WeightForm::bfloat16 : models::WeightForm::float32;
  if (threads > 1) {
    pool = std::make_unique<ThreadPool>(threads);
    options.run.executor = pool.get();
  } else if (threads == 1) {
    options.run.executor = &Executor::serial();
  }
  const models::Model model(file, options);
  models::Session session = model.make_session(tokens + kDecodeSteps);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens));
  for (std::size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<std::int32_t>((7 * i + 11) % static_cast<std::size_t>(config.vocab_size));
  std::vector<float> logits(static_cast<std::size_t>(config.vocab_size));
  MeasuredRun run;
  run.tokens = tokens;
  std::vector<double> prefill, decode;
  for (int i = 0; i < kRepeats; ++i) {
    session.truncate(0);
    prefill.push_back(
        seconds_of([&] { model.forward(session, ids, models::Wanted::last, logits.data()); }));
  }
  // Before decoding, which makes a full cache double.
  run.weight_bytes = static_cast<std::int64_t>(model.weight_bytes());
  run.cache_bytes = session.cache_bytes();
  give_back();
  run.resident_bytes = private_memory() - before;
  for (int i = 0; i < kDecodeSteps; ++i) {
    const std::int32_t id = ids[static_cast<std::size_t>(i) % ids.size()];
    decode.push_back(seconds_of(
        [&] { model.forward(session, std::span(&id, 1), models::Wanted::last, logits.data()); }));
  }
  run.prefill_seconds = median(prefill);
  run.decode_seconds = median(decode);
  return run;
}

}  // namespace polyhead::cli
