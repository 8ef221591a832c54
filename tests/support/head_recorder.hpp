// What every head of a model did, held against expected figures.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "models/model.hpp"
#include "polyhead/inspect.h"

namespace polyhead::test {

/// Mean entropies and rows of weights of every layer and head, of a text that runs in one chunk.
class HeadRecorder : public models::Observer {
 public:
  /// Of the queries that `golden["heads"]` has rows for.
  explicit HeadRecorder(const nlohmann::json& golden) {
    for (const auto& [query, row] : golden["heads"][0]["rows"].items()) {
      queries_.push_back(std::stoll(query));
    }
  }

  void attending(std::int64_t, std::int64_t, AttentionArguments& arguments) override {
    const auto& q = arguments.q.layout.extents;
    entropy_.assign(static_cast<std::size_t>(q[1] * q[2]), NAN);
    arguments.statistics.entropy = View(entropy_.data(), {std::int64_t{1}, q[1], q[2]});
  }

  void attended(const models::AttentionSeen& seen) override {
    const std::int64_t tokens = seen.call.q.layout.extents[1];
    const std::int64_t count = seen.call.q.layout.extents[2], keys = seen.call.k.layout.extents[1];
    std::vector<float> weights(static_cast<std::size_t>(count * tokens * keys), NAN);
    InspectArguments wanted;
    wanted.weights = View(weights.data(), {std::int64_t{1}, count, tokens, keys});
    inspect(seen.call, wanted);
    for (std::int64_t head = 0; head < count; ++head) {
      Head& to = heads_[{seen.layer, head}];
      double sum = 0.0;
      for (std::int64_t t = 0; t < tokens; ++t) {
        sum += static_cast<double>(entropy_[static_cast<std::size_t>(t * count + head)]);
      }
      to.mean_entropy = sum / static_cast<double>(tokens);
      for (const std::int64_t query : queries_) {
        const float* const row = weights.data() + (head * tokens + query) * keys;
        to.rows[query] = {row, row + keys};
      }
    }
  }

  void expect(const nlohmann::json& golden, double error) const {
    ASSERT_EQ(heads_.size(), golden["heads"].size());
    for (const auto& expected : golden["heads"]) {
      const std::pair key{expected["layer"].get<std::int64_t>(),
                          expected["head"].get<std::int64_t>()};
      const std::string place =
          "layer " + std::to_string(key.first) + " head " + std::to_string(key.second);
      const Head& found = heads_.at(key);
      EXPECT_NEAR(found.mean_entropy, expected["mean_entropy"].get<double>(), error) << place;
      for (const auto& [query, row] : expected["rows"].items()) {
        const std::vector<float>& weights = found.rows.at(std::stoll(query));
        ASSERT_EQ(weights.size(), row.size());
        for (std::size_t i = 0; i < weights.size(); ++i) {
          EXPECT_NEAR(weights[i], row[i].get<float>(), error)
              << place << " query " << query << " key " << i;
        }
      }
    }
  }

 private:
  struct Head {
    double mean_entropy = 0.0;
    std::map<std::int64_t, std::vector<float>> rows;
  };
  std::map<std::pair<std::int64_t, std::int64_t>, Head> heads_;
  std::vector<std::int64_t> queries_;
  std::vector<float> entropy_;
};

}  // namespace polyhead::test
