// Sequences in a batch get the bits they get alone, however they join, share, wait and leave.
#include "models/batcher.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>

#include "polyhead/error.h"
#include "support/effort.h"
#include "support/golden_model.hpp"
#include "support/scratch_directory.hpp"
#include "support/tiny_llama.hpp"

namespace polyhead {
namespace {

using models::Batcher;
using models::BatcherOptions;
using models::Model;
using models::ModelFile;
using models::SequencePart;
using models::Wanted;
using models::WeightForm;

/// The tiny Qwen2 with a context long enough for these tests.
std::string long_tiny_model() {
  static const test::ScratchDirectory folder;
  const std::string tiny = POLYHEAD_TEST_DATA "/tiny/qwen2/";
  std::string config = folder.read(tiny + "config.json");
  const std::string context = "\"max_position_embeddings\": ";
  config.replace(config.find(context), context.size() + 2, context + "2048");
  folder.write("model.safetensors", folder.read(tiny + "model.safetensors"));
  return std::filesystem::path(folder.write("config.json", config)).parent_path().string();
}

/// A real model, or "" where it was not fetched. Who joins, shares, waits and leaves is the same in
/// a tiny one, which stands for it where every access is checked.
std::string model_path() {
  static const std::string path =
      test::effort() == test::Effort::smoke ? long_tiny_model() : test::fetched_model("smollm2");
  return path;
}

/// Ids that the model knows.
std::vector<std::int32_t> some_ids(std::size_t count, unsigned seed) {
  const std::uint64_t vocabulary = test::effort() == test::Effort::smoke ? 80 : 40000;
  std::vector<std::int32_t> ids;
  std::uint64_t state = seed;
  for (std::size_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    ids.push_back(static_cast<std::int32_t>((state >> 33) % vocabulary));
  }
  return ids;
}

std::vector<float> alone(const Model& model, std::span<const std::int32_t> ids) {
  std::vector<float> logits(static_cast<std::size_t>(model.config().vocab_size), NAN);
  auto session = model.make_session();
  model.forward(session, ids, Wanted::last, logits.data());
  return logits;
}

void expect_row(const std::vector<float>& expected, const std::vector<float>& rows, std::size_t row,
                const char* what) {
  EXPECT_EQ(std::memcmp(expected.data(), rows.data() + row * expected.size(),
                        expected.size() * sizeof(float)),
            0)
      << what;
}

class PoolOf : public testing::TestWithParam<WeightForm> {};

TEST_P(PoolOf, MixedStepsGiveTheBitsOfSessions) {
  const std::string path = model_path();
  if (path.empty()) GTEST_SKIP() << "scripts/get-model smollm2 was not run";
  const Model model(ModelFile(path), {GetParam(), {}});
  const auto vocabulary = static_cast<std::size_t>(model.config().vocab_size);
  const auto first = some_ids(70, 1), second = some_ids(21, 2);
  auto third = std::vector<std::int32_t>(first.begin(), first.begin() + 40);  // begins as `first`
  third.push_back(17);
  for (const std::int64_t page_tokens : {8, 64}) {
    auto pool = model.make_pool(40, page_tokens);
    PagedCache& cache = pool.cache();
    const std::int64_t a = cache.create(), b = cache.create();
    std::vector<float> rows(3 * vocabulary, NAN);
    const auto part = [](std::int64_t sequence, const std::vector<std::int32_t>& ids,
                         std::size_t from, std::size_t to) {
      return SequencePart{sequence, std::span(ids).subspan(from, to - from), true};
    };
    // A chunk of a prompt beside another; then the rest beside one token; then one beside a third
    // sequence that finds the first's pages.
    SequencePart step1[] = {part(a, first, 0, 33), part(b, second, 0, 20)};
    step1[0].logits = false;
    ASSERT_EQ(model.forward(pool, step1, rows.data()), PagedCache::Status::ok);
    expect_row(alone(model, std::span(second).first(20)), rows, 0, "second's prompt");
    const SequencePart step2[] = {part(a, first, 33, 69), part(b, second, 20, 21)};
    ASSERT_EQ(model.forward(pool, step2, rows.data()), PagedCache::Status::ok);
    expect_row(alone(model, std::span(first).first(69)), rows, 0, "first's prompt");
    expect_row(alone(model, second), rows, 1, "second's token");
    const std::int64_t c = cache.create();
    const auto found = static_cast<std::size_t>(cache.adopt_prefix(c, third));
    EXPECT_EQ(found,
              40u / static_cast<std::size_t>(page_tokens) * static_cast<std::size_t>(page_tokens));
    const SequencePart step3[] = {part(c, third, found, third.size()), part(a, first, 69, 70)};
    ASSERT_EQ(model.forward(pool, step3, rows.data()), PagedCache::Status::ok);
    expect_row(alone(model, third), rows, 0, "third, on shared pages");
    expect_row(alone(model, first), rows, 1, "first's token");
  }
}

INSTANTIATE_TEST_SUITE_P(Weights, PoolOf,
                         testing::Values(WeightForm::float32, WeightForm::bfloat16),
                         [](const auto& form) {
                           return form.param == WeightForm::float32 ? "float32" : "bfloat16";
                         });

TEST(Pool, AFullOneForgetsNoPrefix) {
  const std::string path = model_path();
  if (path.empty()) GTEST_SKIP() << "scripts/get-model smollm2 was not run";
  const Model model{ModelFile(path)};
  auto pool = model.make_pool(6, 8);
  PagedCache& cache = pool.cache();
  const auto ids = some_ids(40, 4);
  const SequencePart prompt[] = {{cache.create(), std::span(ids).first(32), false}};
  ASSERT_EQ(model.forward(pool, prompt, nullptr), PagedCache::Status::ok);
  cache.release(prompt[0].sequence);
  const SequencePart both[] = {{cache.create(), ids, false},
                               {cache.create(), std::span(ids).first(16), false}};
  EXPECT_EQ(model.forward(pool, both, nullptr), PagedCache::Status::exhausted);
  EXPECT_EQ(cache.adopt_prefix(cache.create(), ids), 32);
}

TEST(Pool, AFullOneAndWrongPartsChangeNothing) {
  const std::string path = model_path();
  if (path.empty()) GTEST_SKIP() << "scripts/get-model smollm2 was not run";
  const Model model{ModelFile(path)};
  auto pool = model.make_pool(3, 8);
  const std::int64_t a = pool.cache().create(), b = pool.cache().create();
  const auto ids = some_ids(20, 3);
  const SequencePart both[] = {{a, ids, false}, {b, std::span(ids).first(9), false}};
  EXPECT_EQ(model.forward(pool, both, nullptr), PagedCache::Status::exhausted);
  EXPECT_EQ(pool.cache().length(a), 0);
  EXPECT_EQ(pool.cache().free_pages(), 3);
  const SequencePart twice[] = {{a, std::span(ids).first(2), false}, {a, ids, false}};
  EXPECT_THROW(model.forward(pool, twice, nullptr), InvalidArgument);
  const std::int32_t bad[] = {-1};
  const SequencePart wrong[] = {{a, bad, false}};
  EXPECT_THROW(model.forward(pool, wrong, nullptr), InvalidArgument);
  const SequencePart empty[] = {{a, {}, false}};
  EXPECT_THROW(model.forward(pool, empty, nullptr), InvalidArgument);
  EXPECT_EQ(pool.cache().length(a), 0);
  const SequencePart one[] = {{a, ids, false}};
  EXPECT_EQ(model.forward(pool, one, nullptr), PagedCache::Status::ok);
}

/// The tokens a request gets in a session of its own.
std::vector<std::int32_t> answer_alone(const Model& model, const models::Request& request) {
  models::Sampler sampler(request.sampling);
  auto session = model.make_session();
  std::vector<float> logits(static_cast<std::size_t>(model.config().vocab_size));
  model.forward(session, request.prompt, Wanted::last, logits.data());
  std::vector<std::int32_t> ids;
  while (std::ssize(ids) < request.max_tokens) {
    ids.push_back(sampler.next(logits));
    model.forward(session, std::span(ids).last(1), Wanted::last, logits.data());
  }
  return ids;
}

TEST(Batcher, AnswersAreThoseOfEachRequestAlone) {
  const std::string path = model_path();
  if (path.empty()) GTEST_SKIP() << "scripts/get-model smollm2 was not run";
  const Model model{ModelFile(path)};
  std::vector<models::Request> requests;
  for (const unsigned seed : {1u, 1u, 2u, 3u, 5u}) {
    models::Request request;
    request.prompt = some_ids(12 + 9 * seed, seed);
    request.max_tokens = 4 + seed;
    request.sampling.temperature = seed == 2 ? 0.8f : 0.0f;
    request.sampling.seed = seed;
    requests.push_back(request);
  }
  // A small pool: somebody must wait and somebody must begin again.
  for (const std::int64_t pages : {9, 40}) {
    BatcherOptions options;
    options.sequences = 5;
    options.pages = pages;
    options.page_tokens = 8;
    options.step_tokens = 16;
    std::int64_t heard = 0;
    Batcher batcher(model, options, {}, [&](std::int64_t, std::int32_t) { ++heard; });
    for (const auto& request : requests) batcher.submit(request);
    while (batcher.step()) {
    }
    std::int64_t expected_tokens = 0;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const models::Answer& answer = batcher.answer(static_cast<std::int64_t>(i));
      EXPECT_EQ(answer.ids, answer_alone(model, requests[i])) << i << " with " << pages << " pages";
      EXPECT_EQ(answer.stop, models::Stop::max_tokens);
      expected_tokens += requests[i].max_tokens;
    }
    EXPECT_EQ(heard, expected_tokens);
    EXPECT_GT(batcher.answer(1).shared, 0) << "it begins as the first did";
    EXPECT_EQ(batcher.figures().interrupted > 0, pages == 9);
    EXPECT_EQ(batcher.cache().sequences(), 0);
    EXPECT_EQ(batcher.cache().free_pages(), pages);
  }
}

// Their decode steps compute the first split of the keys once for all.
TEST(Batcher, PromptsThatBeginWithAWholeSplitAlike) {
  const std::string path = model_path();
  if (path.empty()) GTEST_SKIP() << "scripts/get-model smollm2 was not run";
  const Model model{ModelFile(path)};
  BatcherOptions options;
  options.sequences = 3;
  options.pages = 120;
  options.page_tokens = 16;
  Batcher batcher(model, options);
  std::vector<models::Request> requests(3);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    requests[i].prompt = some_ids(1100, 9);
    requests[i].prompt.push_back(static_cast<std::int32_t>(i));
    requests[i].max_tokens = 9 - static_cast<std::int64_t>(i);
    batcher.submit(requests[i]);
    while (batcher.answer(0).ids.empty()) ASSERT_TRUE(batcher.step());
  }
  while (batcher.step()) {
  }
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const models::Answer& answer = batcher.answer(static_cast<std::int64_t>(i));
    EXPECT_EQ(answer.ids, answer_alone(model, requests[i])) << i;
    if (i > 0) {
      EXPECT_GE(answer.shared, 1024);
    }
  }
}

TEST(Batcher, EqualBeginningsAreComputedOnce) {
  const std::string path = model_path();
  if (path.empty()) GTEST_SKIP() << "scripts/get-model smollm2 was not run";
  const Model model{ModelFile(path)};
  std::vector<models::Request> requests(4);
  for (models::Request& request : requests) request = {some_ids(100, 4), 3, {}};
  requests[1].prompt[50] = 7;           // six pages of 8 are alike, then none
  requests[3].prompt = some_ids(9, 5);  // alike with nobody
  BatcherOptions options;
  options.sequences = 4;
  options.pages = 60;
  options.page_tokens = 8;
  options.step_tokens = 24;
  Batcher batcher(model, options);
  for (const auto& request : requests) batcher.submit(request);
  ASSERT_TRUE(batcher.step());
  EXPECT_EQ(batcher.cache().sequences(), 2) << "who shares nothing joins at once";
  while (batcher.step()) {
  }
  const std::int64_t shared[] = {0, 48, 96, 0};
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const models::Answer& answer = batcher.answer(static_cast<std::int64_t>(i));
    EXPECT_EQ(answer.ids, answer_alone(model, requests[i])) << i;
    EXPECT_EQ(answer.shared, shared[i]) << i;
  }
}

TEST(Batcher, WhatARequestComputedItselfIsNotShared) {
  const std::string path = model_path();
  if (path.empty()) GTEST_SKIP() << "scripts/get-model smollm2 was not run";
  const Model model{ModelFile(path)};
  BatcherOptions options;
  options.pages = 4;
  options.page_tokens = 8;
  Batcher batcher(model, options);
  batcher.submit({some_ids(5, 1), 20, {}});
  batcher.submit({some_ids(9, 2), 20, {}});
  while (batcher.step()) {
  }
  EXPECT_GT(batcher.figures().interrupted, 0);
  EXPECT_EQ(batcher.answer(0).shared, 0);
  EXPECT_EQ(batcher.answer(1).shared, 0);
}

TEST(Batcher, TakesRequestsWhileItHears) {
  const std::string path = model_path();
  if (path.empty()) GTEST_SKIP() << "scripts/get-model smollm2 was not run";
  const Model model{ModelFile(path)};
  BatcherOptions options;
  options.sequences = 2;
  options.pages = 8;
  options.page_tokens = 8;
  std::vector<models::Request> requests;
  for (const unsigned seed : {1u, 2u, 3u, 4u, 5u}) requests.push_back({some_ids(6, seed), 2, {}});
  std::size_t submitted = 0;
  Batcher* self = nullptr;
  Batcher batcher(model, options, {}, [&](std::int64_t, std::int32_t) {
    while (submitted < requests.size()) self->submit(requests[submitted++]);
  });
  self = &batcher;
  batcher.submit(requests[submitted++]);
  const models::Answer& first = batcher.answer(0);
  for (int steps = 0; batcher.step(); ++steps) ASSERT_LT(steps, 30);
  EXPECT_EQ(&first, &batcher.answer(0));
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const models::Answer& answer = batcher.answer(static_cast<std::int64_t>(i));
    EXPECT_EQ(answer.ids, answer_alone(model, requests[i])) << i;
    EXPECT_EQ(answer.stop, models::Stop::max_tokens);
  }
}

// What a callback throws comes out of the step, which is whole: each answer goes on as it is alone,
// and every page comes back.
TEST(Batcher, GoesOnAfterACallbackThrew) {
  const std::string path = model_path();
  if (path.empty()) GTEST_SKIP() << "scripts/get-model smollm2 was not run";
  const Model model{ModelFile(path)};
  BatcherOptions options;
  options.sequences = 3;
  options.pages = 16;
  options.page_tokens = 8;
  struct Wrong {
    int number;
  };
  for (const bool at_ends : {false, true}) {
    int heard = 0, asked = 0, thrown = 0;
    Batcher batcher(
        model, options,
        [&](std::int32_t) {
          if (at_ends && ++asked % 2 == 0) throw Wrong{asked};
          return false;
        },
        [&](std::int64_t, std::int32_t) {
          if (++heard % 2 == 0 && !at_ends) throw Wrong{heard};
        });
    std::vector<models::Request> requests;
    for (const unsigned seed : {1u, 2u, 3u, 4u, 5u})
      requests.push_back({some_ids(4 + seed, seed), 1 + seed % 3, {}});
    const std::int64_t free = batcher.cache().free_pages();
    for (const models::Request& request : requests) batcher.submit(request);
    for (int steps = 0, more = 1; more != 0; ++steps) {
      ASSERT_LT(steps, 30);
      const int before = at_ends ? asked : heard;
      try {
        more = batcher.step();
      } catch (const Wrong& wrong) {
        ++thrown;
        EXPECT_LE(wrong.number, before + 2) << "the first that was thrown";
      }
    }
    EXPECT_GT(thrown, 2);
    EXPECT_EQ(heard, 2 + 3 + 1 + 2 + 3);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const models::Answer& answer = batcher.answer(static_cast<std::int64_t>(i));
      EXPECT_EQ(answer.ids, answer_alone(model, requests[i])) << i;
      EXPECT_EQ(answer.stop, models::Stop::max_tokens);
    }
    EXPECT_EQ(batcher.cache().free_pages(), free);
  }
}

// One request's logits are no numbers: its answer is over, and the others' are what they are alone.
TEST(Batcher, GoesOnWithoutARequestWhoseLogitsAreNoNumbers) {
  const test::ScratchDirectory folder;
  const Model model{ModelFile(test::model_with_a_nan(folder))};
  const std::vector<models::Request> requests = {
      {{1, 2, 3}, 5, {}}, {{4, 7}, 5, {}}, {{5, 6, 8, 9}, 5, {}}, {{9, 1}, 3, {}}};
  BatcherOptions options;
  options.pages = 8;
  options.page_tokens = 8;
  Batcher batcher(model, options);
  for (const auto& request : requests) batcher.submit(request);
  int refused = 0;
  for (int steps = 0, more = 1; more != 0; ++steps) {
    ASSERT_LT(steps, 20);
    try {
      more = batcher.step();
    } catch (const InvalidArgument& error) {
      ++refused;
      EXPECT_STREQ(error.what(),
                   "Sampler: logits hold a NaN: the model's weights or its text give no numbers");
    }
  }
  EXPECT_EQ(refused, 1);
  EXPECT_EQ(batcher.answer(1).stop, models::Stop::failed);
  EXPECT_TRUE(batcher.answer(1).ids.empty());
  for (const std::size_t i : {0u, 2u, 3u}) {
    const models::Answer& answer = batcher.answer(static_cast<std::int64_t>(i));
    EXPECT_EQ(answer.ids, answer_alone(model, requests[i])) << i;
    EXPECT_EQ(answer.stop, models::Stop::max_tokens);
  }
  EXPECT_EQ(batcher.cache().sequences(), 0);
  EXPECT_EQ(batcher.cache().free_pages(), 8);
}

// More requests than a step has tokens for, all past their prompts: none waits for others to end.
TEST(Batcher, EveryStepTakesATokenOfAllPastTheirPrompts) {
  const Model model{ModelFile(POLYHEAD_TEST_DATA "/gguf_models/llama.gguf")};
  BatcherOptions options;
  options.sequences = 4;
  options.page_tokens = 8;
  options.step_tokens = 2;
  std::vector<models::Request> requests;
  for (const std::int32_t first : {1, 2, 3, 4}) requests.push_back({{first, 5}, 6, {}});
  std::vector<std::int64_t> heard(requests.size());
  std::int64_t tokens = 0;
  Batcher batcher(model, options, {}, [&](std::int64_t request, std::int32_t) {
    ++heard[static_cast<std::size_t>(request)];
  });
  for (const auto& request : requests) batcher.submit(request);
  for (bool more = true; more;) {
    const std::vector<std::int64_t> before = heard;
    more = batcher.step();
    for (std::size_t i = 0; i < heard.size(); ++i) {
      if (before[i] > 0 && before[i] < 6) {
        EXPECT_EQ(heard[i], before[i] + 1) << i;
      }
    }
    tokens = batcher.figures().tokens;
  }
  EXPECT_EQ(tokens, 4 * 7);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(batcher.answer(static_cast<std::int64_t>(i)).ids, answer_alone(model, requests[i]));
  }
}

// Put back once, the second has to wait for the pages of all that it had read, and the third behind
// it: neither joins for nothing in every step.
TEST(Batcher, WhoHasNoPagesForItsChunkWaits) {
  const Model model{ModelFile(POLYHEAD_TEST_DATA "/gguf_models/llama.gguf")};
  BatcherOptions options;
  options.sequences = 3;
  options.pages = 4;
  options.page_tokens = 8;
  const std::vector<models::Request> requests = {
      {{1, 2, 3}, 18, {}}, {std::vector<std::int32_t>(23, 4), 8, {}}, {{5}, 2, {}}};
  Batcher batcher(model, options);
  for (const auto& request : requests) batcher.submit(request);
  while (batcher.step()) {
  }
  EXPECT_EQ(batcher.figures().interrupted, 1) << "the second, for its fourth page";
  for (std::size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(batcher.answer(static_cast<std::int64_t>(i)).ids, answer_alone(model, requests[i]));
  }
}

// The last token of a full context is told, and run by nobody.
TEST(Batcher, StopsWhereTheContextIsFull) {
  const Model model{ModelFile(POLYHEAD_TEST_DATA "/tiny/qwen2")};
  const std::int64_t context = model.config().context_length;
  Batcher batcher(model, {});
  batcher.submit({{1, 2, 3}, context, {}});
  batcher.submit({{1, 2, 3}, context - 3 + 1, {}});
  while (batcher.step()) {
  }
  for (const std::int64_t request : {0, 1}) {
    const models::Answer& answer = batcher.answer(request);
    EXPECT_EQ(std::ssize(answer.ids), context - 3 + 1);
    EXPECT_EQ(answer.stop, request == 0 ? models::Stop::context : models::Stop::max_tokens);
  }
}

TEST(Batcher, EndsAndRefuses) {
  const std::string path = model_path();
  if (path.empty()) GTEST_SKIP() << "scripts/get-model smollm2 was not run";
  const Model model{ModelFile(path)};
  BatcherOptions options;
  options.pages = 2;
  options.page_tokens = 8;
  Batcher batcher(model, options, [](std::int32_t) { return true; });
  EXPECT_THROW(batcher.submit({{}, 4, {}}), InvalidArgument);
  EXPECT_THROW(batcher.submit({some_ids(12, 1), 6, {}}), InvalidArgument);  // 17 tokens, 16 places
  EXPECT_THROW(batcher.submit({some_ids(2, 1), -1, {}}), InvalidArgument);
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_THROW(batcher.submit({some_ids(5, 1), kMost, {}}), InvalidArgument);
  const std::int32_t beyond = static_cast<std::int32_t>(model.config().vocab_size);
  EXPECT_THROW(batcher.submit({{-1}, 4, {}}), InvalidArgument);
  EXPECT_THROW(batcher.submit({{3, beyond}, 4, {}}), InvalidArgument);
  EXPECT_THROW(batcher.submit({{3}, 4, {.temperature = -1.0f}}), InvalidArgument);
  EXPECT_THROW(batcher.submit({{3}, 0, {.temperature = -1.0f}}), InvalidArgument);
  const std::int64_t nothing = batcher.submit({some_ids(30, 1), 0, {}});  // takes no page
  const std::int64_t ended = batcher.submit({some_ids(12, 1), 5, {}});
  EXPECT_EQ(batcher.answer(nothing).stop, models::Stop::max_tokens);
  EXPECT_FALSE(batcher.step());
  EXPECT_EQ(batcher.answer(ended).stop, models::Stop::end);
  EXPECT_TRUE(batcher.answer(ended).ids.empty());
  EXPECT_THROW(batcher.answer(2), InvalidArgument);
  options.step_tokens = 0;
  EXPECT_THROW(Batcher(model, options), InvalidArgument);
}

}  // namespace
}  // namespace polyhead
