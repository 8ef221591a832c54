// Requests that are cancelled and tenants that share nothing: whoever else is there gets the tokens
// that it gets alone.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "models/batcher.hpp"
#include "support/refusal.h"
#include "support/scratch_directory.hpp"

namespace polyhead {
namespace {

using models::Batcher;
using models::BatcherOptions;
using models::Model;
using models::ModelFile;
using models::Request;
using models::Stop;
using Ids = std::vector<std::int32_t>;

const Model& tiny() {
  static const Model model{ModelFile(POLYHEAD_TEST_DATA "/gguf_models/llama.gguf")};
  return model;
}

BatcherOptions options(std::int64_t sequences, std::int64_t pages) {
  BatcherOptions o;
  o.sequences = sequences;
  o.pages = pages;
  o.page_tokens = 8;
  return o;
}

Ids some(std::int64_t count, std::int32_t first) {
  Ids ids;
  for (std::int64_t i = 0; i < count; ++i)
    ids.push_back(static_cast<std::int32_t>(3 + (first * 7 + i * i) % 17));
  return ids;
}

Ids alone(const Request& request) {
  Batcher batcher(tiny(), options(1, 16));
  batcher.submit(request);
  while (batcher.step()) {
  }
  return batcher.answer(0).ids;
}

void expect_alone(const Batcher& batcher, const std::vector<Request>& requests,
                  std::initializer_list<std::size_t> who) {
  for (const std::size_t i : who) {
    const models::Answer& answer = batcher.answer(static_cast<std::int64_t>(i));
    EXPECT_EQ(answer.ids, alone(requests[i])) << i;
    EXPECT_EQ(answer.stop, Stop::max_tokens) << i;
  }
}

void expect_empty(const Batcher& batcher, std::int64_t pages) {
  EXPECT_EQ(batcher.cache().sequences(), 0);
  EXPECT_EQ(batcher.cache().free_pages(), pages);
}

TEST(BatcherCancel, WhoRunsGivesItsPagesBackAtOnceAndKeepsWhatItSaid) {
  const std::vector<Request> requests = {
      {some(20, 1), 9, {}}, {some(20, 1), 9, {}}, {some(11, 3), 9, {}}};
  Batcher batcher(tiny(), options(3, 24));
  for (const Request& request : requests) batcher.submit(request);
  while (batcher.answer(0).ids.size() < 4) ASSERT_TRUE(batcher.step());
  const std::int64_t sequences = batcher.cache().sequences(), free = batcher.cache().free_pages();
  const Ids said = batcher.answer(0).ids;
  EXPECT_TRUE(batcher.cancel(0));
  EXPECT_EQ(batcher.cache().sequences(), sequences - 1);
  EXPECT_GT(batcher.cache().free_pages(), free);
  EXPECT_FALSE(batcher.cancel(0)) << "it is over";
  while (batcher.step()) {
  }
  EXPECT_EQ(batcher.answer(0).ids, said);
  EXPECT_EQ(batcher.answer(0).stop, Stop::cancelled);
  Ids beginning = alone(requests[0]);
  beginning.resize(said.size());
  EXPECT_EQ(said, beginning);
  expect_alone(batcher, requests, {1, 2});
  EXPECT_FALSE(batcher.cancel(1)) << "it is answered";
  EXPECT_EQ(batcher.answer(1).stop, Stop::max_tokens);
  expect_empty(batcher, 24);
}

// One that never joined, and one that had to begin again for want of pages.
TEST(BatcherCancel, WhoWaitsIsNeverRun) {
  const std::vector<Request> requests = {
      {some(5, 1), 20, {}}, {some(9, 2), 20, {}}, {some(6, 4), 3, {}}};
  Batcher batcher(tiny(), options(2, 4));
  for (const Request& request : requests) batcher.submit(request);
  while (batcher.figures().interrupted == 0) ASSERT_TRUE(batcher.step());
  const Ids said = batcher.answer(1).ids;
  EXPECT_FALSE(said.empty());
  EXPECT_TRUE(batcher.cancel(1));
  EXPECT_TRUE(batcher.cancel(2));
  while (batcher.step()) {
  }
  EXPECT_EQ(batcher.answer(1).ids, said);
  EXPECT_EQ(batcher.answer(1).stop, Stop::cancelled);
  EXPECT_TRUE(batcher.answer(2).ids.empty());
  EXPECT_EQ(batcher.answer(2).stop, Stop::cancelled);
  expect_alone(batcher, requests, {0});
  expect_empty(batcher, 4);
}

// The prompt that others wait to share is cancelled while it is read: they read it themselves.
TEST(BatcherCancel, WhoWaitsForPagesOfACancelledPromptReadsThemItself) {
  const std::vector<Request> requests(2, Request{some(25, 1), 4, {}});
  BatcherOptions small = options(2, 16);
  small.step_tokens = 8;
  Batcher batcher(tiny(), small);
  for (const Request& request : requests) batcher.submit(request);
  ASSERT_TRUE(batcher.step());
  EXPECT_EQ(batcher.cache().sequences(), 1) << "the second waits";
  EXPECT_TRUE(batcher.cancel(0));
  while (batcher.step()) {
  }
  EXPECT_TRUE(batcher.answer(0).ids.empty());
  EXPECT_EQ(batcher.answer(1).shared, 8) << "the page that was whole";
  expect_alone(batcher, requests, {1});
  expect_empty(batcher, 16);
}

// Callbacks cancel the request that they hear of, one before it, one after it and one that waits.
TEST(BatcherCancel, WithinAStep) {
  for (const bool at_ends : {false, true}) {
    const std::vector<Request> requests = {{some(4, 1), 6, {}},
                                           {some(5, 2), 6, {}},
                                           {some(6, 3), 6, {}},
                                           {some(7, 4), 6, {}},
                                           {some(8, 5), 6, {}}};
    Batcher* self = nullptr;
    int heard = 0;
    const auto cancel_four = [&] {
      if (heard != 6) return;  // of the second step of four: of request 1
      for (const std::int64_t request : {0, 1, 2, 4}) EXPECT_TRUE(self->cancel(request));
      EXPECT_FALSE(self->cancel(2));
      EXPECT_EQ(self->cache().sequences(), 4) << "until the step is done";
    };
    Batcher batcher(
        tiny(), options(4, 16),
        [&](std::int32_t) {
          heard += at_ends;
          if (at_ends) cancel_four();
          return false;
        },
        [&](std::int64_t, std::int32_t) {
          heard += !at_ends;
          if (!at_ends) cancel_four();
        });
    self = &batcher;
    for (const Request& request : requests) batcher.submit(request);
    while (batcher.step()) {
    }
    EXPECT_EQ(heard, 4 + 3 + 4) << "nothing of who is cancelled";
    const std::size_t said[] = {2, at_ends ? 1u : 2u, 1, 6, 0};
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const models::Answer& answer = batcher.answer(static_cast<std::int64_t>(i));
      EXPECT_EQ(answer.stop, i == 3 ? Stop::max_tokens : Stop::cancelled) << i;
      Ids expected = alone(requests[i]);
      expected.resize(said[i]);
      EXPECT_EQ(answer.ids, expected) << i;
    }
    expect_empty(batcher, 16);
  }
}

TEST(BatcherCancel, OfNoRequestIsRefused) {
  Batcher batcher(tiny(), options(2, 4));
  batcher.submit({some(4, 1), 2, {}});
  EXPECT_EQ(test::refusal_of([&] { batcher.cancel(1); }),
            "Batcher::cancel: request (1) is not within 0 .. 0");
  EXPECT_EQ(test::refusal_of([&] { batcher.cancel(-1); }),
            "Batcher::cancel: request (-1) is not within 0 .. 0");
}

// Each answer is taken as soon as it is over, and requests come and go: nothing is kept of them.
TEST(BatcherTake, AnAnswerThatIsOverIsGivenOnce) {
  const std::vector<Request> requests = {
      {some(9, 1), 2, {}}, {some(5, 2), 5, {}}, {some(6, 4), 3, {}}, {some(4, 3), 0, {}}};
  Batcher batcher(tiny(), options(2, 8));
  for (const Request& request : requests) batcher.submit(request);
  std::vector<models::Answer> taken(requests.size());
  const auto take_finished = [&] {
    for (std::size_t i = 0; i < taken.size(); ++i) {
      const auto number = static_cast<std::int64_t>(i);
      if (taken[i].stop == Stop::running && batcher.answer(number).stop != Stop::running)
        taken[i] = batcher.take_answer(number);
    }
  };
  take_finished();
  EXPECT_EQ(taken[3].stop, Stop::max_tokens) << "it was over at once";
  while (batcher.step()) take_finished();
  take_finished();
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(taken[i].ids, alone(requests[i])) << i;
  for (const std::int64_t i : {0, 1, 2, 3}) {
    EXPECT_EQ(test::refusal_of([&] { batcher.take_answer(i); }),
              "Batcher::take_answer: request (" + std::to_string(i) +
                  ") has no answer any more: it was taken");
  }
  EXPECT_EQ(test::refusal_of([&] { batcher.answer(0); }),
            "Batcher::answer: request (0) has no answer any more: it was taken");
  EXPECT_EQ(test::refusal_of([&] { batcher.cancel(0); }),
            "Batcher::cancel: request (0) has no answer any more: it was taken");
  EXPECT_EQ(batcher.submit(requests[0]), 4) << "numbers go on";
}

TEST(BatcherTake, OneThatIsNotOverIsRefused) {
  Batcher* self = nullptr;
  const auto refused = [&](std::int64_t request) {
    EXPECT_EQ(test::refusal_of([&] { self->take_answer(request); }),
              "Batcher::take_answer: request (" + std::to_string(request) +
                  ") waits or runs, expected one that is over");
  };
  const auto cancel_and_take = [&](std::int64_t request, std::int32_t) {
    self->cancel(request);
    refused(request);  // the step still uses it
  };
  Batcher batcher(tiny(), options(1, 4), {}, cancel_and_take);
  self = &batcher;
  const Request request{some(4, 1), 2, {}};
  batcher.submit(request);
  batcher.submit(request);
  refused(0);
  refused(1);
  batcher.step();
  EXPECT_EQ(batcher.take_answer(0).stop, Stop::cancelled);
  refused(1);
  EXPECT_EQ(test::refusal_of([&] { batcher.take_answer(2); }),
            "Batcher::take_answer: request (2) is not within 0 .. 1");
}

TEST(BatcherSalt, TenantsShareNoPages) {
  const std::vector<Request> requests = {
      {some(25, 1), 3, {}, 5}, {some(25, 1), 3, {}, 6}, {some(25, 1), 3, {}, 5}};
  Batcher batcher(tiny(), options(3, 24));
  for (const Request& request : requests) batcher.submit(request);
  ASSERT_TRUE(batcher.step());
  EXPECT_EQ(batcher.cache().sequences(), 2) << "the other tenant waits for nobody";
  while (batcher.step()) {
  }
  EXPECT_EQ(batcher.answer(0).shared, 0);
  EXPECT_EQ(batcher.answer(1).shared, 0);
  EXPECT_EQ(batcher.answer(2).shared, 24);
  expect_alone(batcher, requests, {0, 1, 2});
}

TEST(BatcherSalt, FilesAreATenantsOwn) {
  const test::ScratchDirectory folder;
  const std::string path = folder.write("prompt.kv", "");
  const CacheFingerprint fingerprint{};
  const Request request{some(25, 1), 3, {}, 5};
  Batcher batcher(tiny(), options(1, 16));
  batcher.submit(request);
  while (batcher.step()) {
  }
  EXPECT_EQ(batcher.save(request.prompt, path, fingerprint), 0) << "of no salt";
  EXPECT_EQ(batcher.save(request.prompt, path, fingerprint, 5), 24);
  Batcher other(tiny(), options(1, 32));
  other.load(path, fingerprint, 9);
  other.submit(request);
  Request of_nine = request;
  of_nine.salt = 9;
  other.submit(of_nine);
  while (other.step()) {
  }
  EXPECT_EQ(other.answer(0).shared, 0);
  EXPECT_EQ(other.answer(1).shared, 24);
  expect_alone(other, {request, of_nine}, {0, 1});
}

}  // namespace
}  // namespace polyhead
