// What a model's cache holds: for every type the same bits however tokens arrive, in sessions and
// pools, and on real text no more loss than docs/numerics.md says.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/command.hpp"
#include "cli/exit_codes.hpp"
#include "models/batcher.hpp"
#include "models/model.hpp"
#include "models/tokenizers/tokenizer.hpp"
#include "polyhead/error.h"
#include "support/effort.h"
#include "support/golden_model.hpp"
#include "support/refusal.h"
#include "support/run_program.hpp"
#include "support/scratch_directory.hpp"

namespace polyhead {
namespace {

using models::CacheForm;
using models::Model;
using models::ModelFile;
using models::Wanted;

constexpr ElementType kTypes[] = {
    ElementType::float32, ElementType::bfloat16,    ElementType::float16,    ElementType::int8,
    ElementType::int4,    ElementType::float8_e4m3, ElementType::float8_e5m2};
const std::vector<std::int32_t> kIds = {3, 1, 4, 1, 5, 0, 2, 5, 3, 5, 4, 2, 1, 3, 0, 2, 4, 4, 1, 0};

Model tiny(const char* name) {
  return Model{ModelFile(POLYHEAD_TEST_DATA "/tiny/" + std::string(name))};
}

/// Keys by channel with scales that clamp some of them.
CacheForm by_channel(const Model& model, ElementType type) {
  CacheForm form{type, {}};
  for (const auto& layer : model.config().layers) {
    form.key_scales.emplace_back(static_cast<std::size_t>(layer.kv_heads * layer.head_dim),
                                 type == ElementType::int8 ? 0.01f : 0.15f);
  }
  return form;
}

/// Every way to hold a cache.
std::vector<CacheForm> forms(const Model& model) {
  std::vector<CacheForm> all;
  for (const ElementType type : kTypes) all.push_back({type, {}});
  for (const ElementType type : {ElementType::int8, ElementType::int4}) {
    all.push_back(by_channel(model, type));
    all.push_back(model.calibrated(type, std::span(kIds).first(12)));
  }
  return all;
}

std::string said(const CacheForm& form) {
  return std::string(element_name(*form.type)) + (form.key_scales.empty() ? "" : " by channel") +
         (form.frames.empty() ? "" : " in frames");
}

std::vector<float> logits_of(const Model& model, const CacheForm& form, std::size_t piece) {
  const auto vocabulary = static_cast<std::size_t>(model.config().vocab_size);
  std::vector<float> logits(kIds.size() * vocabulary, NAN);
  auto session = model.make_session(0, form);
  for (std::size_t first = 0; first < kIds.size(); first += piece) {
    const std::size_t count = std::min(piece, kIds.size() - first);
    model.forward(session, std::span(kIds).subspan(first, count), Wanted::every,
                  logits.data() + first * vocabulary, {}, 4);
  }
  return logits;
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class KvTypeOf : public testing::TestWithParam<const char*> {};

TEST_P(KvTypeOf, GivesTheSameBitsHoweverTokensArrive) {
  const Model model = tiny(GetParam());
  const std::vector<float> exact = logits_of(model, {}, kIds.size());
  for (const CacheForm& form : forms(model)) {
    SCOPED_TRACE(said(form));
    const std::vector<float> whole = logits_of(model, form, kIds.size());
    EXPECT_TRUE(same(whole, logits_of(model, form, 1))) << "token by token";
    EXPECT_TRUE(same(whole, logits_of(model, form, 7))) << "pieces of 7";
    // What the cache holds is what is read, so only float32 is exact.
    EXPECT_EQ(same(whole, exact), form.type == ElementType::float32);
    EXPECT_TRUE(std::ranges::all_of(whole, [](float x) { return std::isfinite(x); }));
  }
}

TEST_P(KvTypeOf, PoolsGiveTheBitsOfSessions) {
  const Model model = tiny(GetParam());
  const auto vocabulary = static_cast<std::size_t>(model.config().vocab_size);
  for (const CacheForm& form : forms(model)) {
    SCOPED_TRACE(said(form));
    const std::vector<float> whole = logits_of(model, form, kIds.size());
    auto pool = model.make_pool(12, 8, form);
    PagedCache& cache = pool.cache();
    const std::int64_t a = cache.create(), b = cache.create();
    std::vector<float> rows(2 * vocabulary, NAN);
    for (std::size_t at = 0; at + 2 <= kIds.size(); at += 2) {  // two tokens beside one
      const models::SequencePart parts[] = {{a, std::span(kIds).subspan(at, 2)},
                                            {b, std::span(kIds).subspan(at / 2, 1)}};
      ASSERT_EQ(model.forward(pool, parts, rows.data()), PagedCache::Status::ok);
      EXPECT_EQ(std::memcmp(rows.data(), whole.data() + (at + 1) * vocabulary, vocabulary * 4), 0);
      EXPECT_EQ(
          std::memcmp(rows.data() + vocabulary, whole.data() + at / 2 * vocabulary, vocabulary * 4),
          0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, KvTypeOf, testing::Values("llama3", "gemma3", "gpt2"),
                         [](const auto& test) { return std::string(test.param); });

TEST(KvType, ABatcherAnswersAsASessionOfItsTypeDoes) {
  const Model model = tiny("llama3");
  const auto vocabulary = static_cast<std::size_t>(model.config().vocab_size);
  for (const CacheForm& form : forms(model)) {
    models::BatcherOptions options;
    options.pages = 8;
    options.page_tokens = 8;
    options.step_tokens = 5;
    options.cache = form;
    models::Batcher batcher(model, options);
    const std::vector<std::int32_t> one(kIds.begin(), kIds.begin() + 11), two = {2, 2, 3};
    batcher.submit({one, 6, {}});
    batcher.submit({two, 6, {}});
    while (batcher.step()) {
    }
    for (const auto& [number, prompt] : {std::pair{0, one}, {1, two}}) {
      auto session = model.make_session(0, form);
      std::vector<float> logits(vocabulary, NAN);
      std::vector<std::int32_t> next = prompt, ids;
      for (int i = 0; i < 6; ++i) {
        model.forward(session, next, Wanted::last, logits.data());
        next = {static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin())};
        ids.push_back(next[0]);
      }
      EXPECT_EQ(batcher.answer(number).ids, ids) << said(form);
    }
  }
}

TEST(KvType, RefusesByName) {
  const Model model = tiny("llama3");
  CacheForm form = by_channel(model, ElementType::int8);
  form.key_scales[1].pop_back();
  const std::size_t scales = form.key_scales[0].size();
  EXPECT_EQ(test::refusal_of([&] { model.make_session(0, form); }),
            "Model::make_session: key_scales[1] has " + std::to_string(scales - 1) +
                " scales, expected " + std::to_string(scales));
  form.key_scales.pop_back();
  EXPECT_EQ(test::refusal_of([&] { model.make_pool(4, 8, form); }),
            "Model::make_pool: key_scales has " + std::to_string(form.key_scales.size()) +
                " layers, expected " + std::to_string(form.key_scales.size() + 1));
  CacheForm frames = model.calibrated(ElementType::int4, kIds);
  frames.type = ElementType::float16;
  EXPECT_EQ(test::refusal_of([&] { model.make_session(0, frames); }),
            "Model::make_session: frames are given for float16, expected int8, int4 or an 8-bit "
            "float");
  frames.frames[0].keys.stretch.pop_back();
  EXPECT_EQ(test::refusal_of([&] { model.make_pool(4, 8, frames); }),
            "Model::make_pool: frames[0].keys.stretch has " + std::to_string(scales - 1) +
                " numbers, expected " + std::to_string(scales) + ": kv_heads * dim");
  EXPECT_EQ(test::refusal_of([&] { model.calibrated(ElementType::float16, kIds); }),
            "Model::calibrated: type is float16, expected int8 or int4");
  EXPECT_EQ(test::refusal_of([&] { model.calibrated(ElementType::int8, {}); }),
            "Model::calibrated: ids is empty");
  EXPECT_EQ(test::refusal_of([&] { model.calibrated(ElementType::int8, kIds, -1); }),
            "Model::calibrated: length (-1) is not within 0 .. " +
                std::to_string(model.config().context_length) + ", the model's context");
  EXPECT_NE(test::refusal_of([&] { model.make_session(0, {ElementType::int32, {}}); }), "accepted");

  class Deaf : public models::Observer {
    void attended(const models::AttentionSeen&) override {}
  } observer;
  models::RunOptions run;
  run.observer = &observer;
  auto session = model.make_session(0, {ElementType::int8, {}});
  EXPECT_EQ(test::refusal_of([&] { model.forward(session, kIds, Wanted::nothing, nullptr, run); }),
            "Model::forward: the session's cache holds int8, but an observer reads float32, "
            "float16 or bfloat16");
  EXPECT_EQ(session.length(), 0);
}

std::vector<double> losses_of(const Model& model, const CacheForm& form,
                              std::span<const std::int32_t> ids) {
  auto session = model.make_session(0, form);
  std::vector<double> nats(ids.size() - 1);
  model.losses(session, ids.first(nats.size()), ids.subspan(1), nats.data());
  return nats;
}

double mean_change(const std::vector<double>& from, const std::vector<double>& to) {
  double sum = 0.0;
  for (std::size_t i = 0; i < from.size(); ++i) sum += to[i] - from[i];
  return sum / static_cast<double>(from.size());
}

std::string text_of(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// int8 raises the loss by at most 0.002 (docs/numerics.md has the table); int4 keys by channel by
// 0.020 and 0.014, a ninth of int4's by token and less. They are calibrated on the beginning of the
// text, a quarter of it, as `generate` does on a prompt. The mean over this text has a standard
// error of 0.005, and the last bits of a float32 (another instruction set) draw it anew: two of
// them beside the 0.02 that is aimed at. Gemma 3, as slow again, belongs to the full grid.
TEST(KvType, CodesChangeTheLossOfRealTextByLittle) {
  if (test::effort() == test::Effort::smoke) GTEST_SKIP() << "whole models take long here";
  const std::string prose = text_of(POLYHEAD_TEST_DATA "/prose.txt");
  const std::string text = prose + text_of(POLYHEAD_SOURCE_DIR "/LICENSE");
  for (const std::string name : {"smollm2", "gemma3"}) {
    if (name == "gemma3" && test::effort() != test::Effort::full) continue;
    const std::string path = test::fetched_model(name);
    if (path.empty()) GTEST_SKIP() << "scripts/get-model " << name << " was not run";
    const ModelFile model_file(path);
    const models::Tokenizer tokenizer(model_file.tokenizer());
    const auto ids = tokenizer.encode(text), beginning = tokenizer.encode(prose);
    const auto length = static_cast<std::int64_t>(ids.size());
    const Model model(model_file);
    const std::vector<double> exact = losses_of(model, {}, ids);
    const auto change = [&](const char* what, const CacheForm& form) {
      const double by = mean_change(exact, losses_of(model, form, ids));
      RecordProperty(name + "_" + what, std::to_string(by));
      return by;
    };
    EXPECT_LE(change("int8", {ElementType::int8, {}}), 0.002) << name;
    EXPECT_LE(change("int8_by_channel", model.calibrated(ElementType::int8, beginning, length)),
              0.002)
        << name;
    EXPECT_LE(change("int4_by_channel", model.calibrated(ElementType::int4, beginning, length)),
              0.03)
        << name;
  }
}

int status_of(const std::vector<std::string>& arguments) {
  std::ostringstream out, err;
  return cli::run_program(arguments, {out, err, false, false});
}

TEST(KvType, TheProgramTakesIt) {
  const std::string model = POLYHEAD_TEST_DATA "/gguf_models/llama.gguf";
  EXPECT_EQ(status_of({"score", model, "--text", "x", "--kv-type", "int3"}), cli::kBadUsage);
  EXPECT_EQ(status_of({"score", model, "--text", "x", "--kv-keys", "channel"}), cli::kBadUsage);
  EXPECT_EQ(
      status_of({"generate", model, "--prompt", "x", "--kv-type", "f16", "--kv-keys", "channel"}),
      cli::kBadUsage);
  EXPECT_EQ(
      status_of({"score", model, "--text", "x", "--kv-type", "int8", "--kv-text", "prose.txt"}),
      cli::kBadUsage);
  const auto said = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin() + 1, model);
    std::ostringstream out, err;
    EXPECT_EQ(cli::run_program(arguments, {out, err, false, false}), cli::kBadUsage);
    return err.str().substr(0, err.str().find('\n'));
  };
  const std::string both = "both read standard input, expected one of them";
  for (const auto& [command, option] : {std::pair<const char*, std::string>{"generate", "--prompt"},
                                        {"generate", "--prompts"},
                                        {"score", "--file"}}) {
    EXPECT_EQ(
        said({command, option, "-", "--kv-type", "int8", "--kv-keys", "channel", "--kv-text", "-"}),
        std::string("polyhead: ") + command + ": " + option + " - and --kv-text - " + both);
  }
  for (const auto& [command, option] : {std::pair{"generate", "--prompt"}, {"score", "--text"}}) {
    EXPECT_EQ(said({command, option, "x", "--kv-text", ""}),
              "polyhead: --kv-text: the value is empty");
    EXPECT_EQ(
        said({command, option, "x", "--kv-keys", "token"}),
        std::string("polyhead: ") + command + ": --kv-keys token needs --kv-type int8 or int4");
  }
  EXPECT_EQ(said({"generate", "--prompts", "x", "--kv-type", "int8", "--kv-keys", "channel"}),
            "polyhead: generate: --prompts with --kv-keys channel needs --kv-text or "
            "--load-cache: calibrated on one of the prompts, the others would not get the bits "
            "they have alone");
  EXPECT_EQ(said({"generate", "--prompt", "x", "--chat", "--chat-template", ""}),
            "polyhead: --chat-template: the value is empty");
  EXPECT_EQ(said({"generate", "--prompt", "x", "--chat", "--chat-template", "foo"}),
            "polyhead: --chat-template: foo not in {chatml,gemma,llama2,llama3}");
  EXPECT_EQ(said({"generate", "--prompt", "x", "--system", ""}),
            "polyhead: generate: --chat-template and --system need --chat");
  if (test::fetched_model("smollm2").empty()) GTEST_SKIP() << "scripts/get-model smollm2";
  // Five tokens: too few to calibrate on alone.
  for (const auto& [type, keys] :
       {std::pair("int8", "token"), {"int8", "channel"}, {"int4", "channel"}}) {
    std::ostringstream out, err;
    ASSERT_EQ(cli::run_program({"generate", "smollm2", "--prompt", "The capital of France is",
                                "--max-tokens", "4", "--kv-type", type, "--kv-keys", keys},
                               {out, err, false, false}),
              cli::kSuccess)
        << err.str();
    EXPECT_NE(out.str().find("Paris"), std::string::npos) << out.str();
    if (test::effort() == test::Effort::smoke) break;  // the test below calibrates
  }
}

// Calibrated on its own longest prompt a batch would give others other bits than they have alone.
// The text is short, since each of the three runs prefills it.
TEST(KvType, WithATextOfItsOwnABatchAnswersAsEachPromptAlone) {
  if (test::fetched_model("smollm2").empty()) GTEST_SKIP() << "scripts/get-model smollm2";
  const test::ScratchDirectory directory;
  const std::string text = directory.file("text.txt");
  const bool smoke = test::effort() == test::Effort::smoke;
  const std::size_t bytes = smoke ? 100 : 500;
  const char* const tokens = smoke ? "2" : "5";
  directory.write("text.txt", text_of(POLYHEAD_TEST_DATA "/prose.txt").substr(0, bytes));
  const auto run = [&](std::vector<std::string> arguments) {
    for (const char* more : {"--max-tokens", tokens, "--kv-type", "int4", "--kv-keys", "channel",
                             "--kv-text", text.c_str()}) {
      arguments.emplace_back(more);
    }
    arguments.insert(arguments.begin(), {"generate", "smollm2"});
    return test::run_program_json(arguments);
  };
  directory.write("prompts.txt", "The sea\nWater boils at a hundred degrees, and it\n");
  const nlohmann::json many = run({"--prompts", directory.file("prompts.txt")});
  EXPECT_EQ(many["answers"][0]["ids"], run({"--prompt", "The sea"})["ids"]);
  EXPECT_EQ(many["answers"][1]["ids"],
            run({"--prompt", "Water boils at a hundred degrees, and it"})["ids"]);
}

}  // namespace
}  // namespace polyhead
