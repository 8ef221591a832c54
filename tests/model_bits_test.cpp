// A session's logits do not depend on how its tokens arrived, nor on threads.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "models/model.hpp"
#include "polyhead/error.h"
#include "support/effort.h"
#include "support/golden_model.hpp"

namespace polyhead {
namespace {

using models::Model;
using models::ModelFile;
using models::Wanted;
using models::WeightForm;

std::vector<std::int32_t> some_ids(std::int64_t count, std::int64_t vocabulary) {
  std::vector<std::int32_t> ids;
  std::uint64_t state = 12345;
  for (std::int64_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    ids.push_back(
        static_cast<std::int32_t>((state >> 33) % static_cast<std::uint64_t>(vocabulary)));
  }
  return ids;
}

/// All logits of `ids`, given in pieces of `piece` tokens, each run in chunks of `chunk`.
std::vector<float> all_logits(const Model& model, std::span<const std::int32_t> ids,
                              std::size_t piece, std::int64_t chunk) {
  const auto vocabulary = static_cast<std::size_t>(model.config().vocab_size);
  std::vector<float> logits(ids.size() * vocabulary, NAN);
  auto session = model.make_session();
  for (std::size_t first = 0; first < ids.size(); first += piece) {
    const std::size_t count = std::min(piece, ids.size() - first);
    model.forward(session, ids.subspan(first, count), Wanted::every,
                  logits.data() + first * vocabulary, {}, chunk);
  }
  EXPECT_EQ(session.length(), static_cast<std::int64_t>(ids.size()));
  return logits;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void expect_same_bits(const std::string& name, WeightForm weights, std::int64_t count) {
  const std::string path = test::fetched_model(name);
  if (path.empty()) GTEST_SKIP() << "scripts/get-model " << name << " was not run";
  const ModelFile file(path);
  const Model model(file, {weights, {}});
  const std::vector<std::int32_t> ids = some_ids(count, model.config().vocab_size);
  const std::vector<float> whole = all_logits(model, ids, ids.size(), 0);
  EXPECT_TRUE(same_bits(whole, all_logits(model, ids, 1, 0))) << "token by token";
  EXPECT_TRUE(same_bits(whole, all_logits(model, ids, ids.size(), 7))) << "chunks of 7";
  EXPECT_TRUE(same_bits(whole, all_logits(model, ids, 17, 5))) << "pieces of 17, chunks of 5";
  Options one;
  one.threads = 1;
  EXPECT_TRUE(same_bits(whole, all_logits(Model(file, {weights, one}), ids, 33, 0))) << "a thread";

  // The likelihood that keeps no logits is that of the logits.
  const auto vocabulary = static_cast<std::size_t>(model.config().vocab_size);
  double sum = 0.0;
  for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
    const float* const row = whole.data() + i * vocabulary;
    double total = 0.0;
    for (std::size_t v = 0; v < vocabulary; ++v) total += std::exp(static_cast<double>(row[v]));
    sum += std::log(total) - static_cast<double>(row[ids[i + 1]]);
  }
  const double mean = sum / static_cast<double>(ids.size() - 1);
  // float32 exponentials of differences: 2 ulp each, so their sum and its logarithm too.
  EXPECT_NEAR(model.negative_log_likelihood(ids), mean, 1e-6 * mean);
}

TEST(ModelBits, SmolLm2) {
  expect_same_bits("smollm2", WeightForm::float32, test::case_count(8, 70, 300));
}
TEST(ModelBits, SmolLm2InBfloat16) {
  expect_same_bits("smollm2", WeightForm::bfloat16, test::case_count(8, 70, 300));
}
TEST(ModelBits, Gemma3) {
  expect_same_bits("gemma3", WeightForm::float32, test::case_count(6, 24, 600));
}

TEST(ModelSession, TruncatesAndRefusesWithoutChange) {
  const std::string path = test::fetched_model("smollm2");
  if (path.empty()) GTEST_SKIP() << "scripts/get-model smollm2 was not run";
  const Model model{ModelFile(path)};
  const auto vocabulary = static_cast<std::size_t>(model.config().vocab_size);
  const std::vector<std::int32_t> ids = some_ids(12, model.config().vocab_size);
  auto session = model.make_session(16);
  std::vector<float> first(vocabulary), again(vocabulary);
  model.forward(session, ids, Wanted::last, first.data());
  EXPECT_THROW(model.forward(session, ids, Wanted::nothing, nullptr), InvalidArgument);  // 24 > 16
  const std::int32_t bad[] = {1, -1};
  EXPECT_THROW(model.forward(session, bad, Wanted::nothing, nullptr), InvalidArgument);
  EXPECT_THROW(session.truncate(13), InvalidArgument);
  EXPECT_THROW(model.make_session(-1), InvalidArgument);
  EXPECT_THROW(model.embed({}, nullptr), InvalidArgument);  // no pooling
  EXPECT_EQ(session.length(), 12);
  session.truncate(11);
  model.forward(session, std::span(ids).subspan(11), Wanted::last, again.data());
  EXPECT_TRUE(same_bits(first, again));
}

/// Fails in the middle of a run.
class Failing : public models::Observer {
 public:
  void attended(const models::AttentionSeen& seen) override {
    if (seen.layer == 2) throw std::runtime_error("enough");
  }
};

TEST(ModelSession, IsAsBeforeWhenARunFails) {
  const std::string path = test::fetched_model("smollm2");
  if (path.empty()) GTEST_SKIP() << "scripts/get-model smollm2 was not run";
  const Model model{ModelFile(path)};
  const auto vocabulary = static_cast<std::size_t>(model.config().vocab_size);
  const std::vector<std::int32_t> ids = some_ids(9, model.config().vocab_size);
  auto session = model.make_session();
  std::vector<float> logits(vocabulary), again(vocabulary);
  model.forward(session, std::span(ids).first(5), Wanted::nothing, nullptr);
  Failing failing;
  models::RunOptions options;
  options.observer = &failing;
  EXPECT_THROW(model.forward(session, std::span(ids).subspan(5), Wanted::nothing, nullptr, options),
               std::runtime_error);
  EXPECT_EQ(session.length(), 5);
  model.forward(session, std::span(ids).subspan(5), Wanted::last, logits.data());
  auto fresh = model.make_session();
  model.forward(fresh, ids, Wanted::last, again.data());
  EXPECT_TRUE(same_bits(logits, again));
}

TEST(HeadMask, AHeadSwitchedOffChangesWhatFollowsAndNothingBefore) {
  const std::string path = test::fetched_model("smollm2");
  if (path.empty()) GTEST_SKIP() << "scripts/get-model smollm2 was not run";
  const Model model{ModelFile(path)};
  const std::vector<std::int32_t> ids = some_ids(12, model.config().vocab_size);
  models::HeadMask mask;
  mask.off.assign(30, std::vector<bool>(9, false));
  models::RunOptions options;
  options.heads = &mask;
  const double plain = model.negative_log_likelihood(ids);
  EXPECT_EQ(model.negative_log_likelihood(ids, options), plain);
  mask.off[0][3] = true;
  EXPECT_NE(model.negative_log_likelihood(ids, options), plain);
  mask.off.pop_back();
  EXPECT_THROW(model.negative_log_likelihood(ids, options), InvalidArgument);
}

}  // namespace
}  // namespace polyhead
