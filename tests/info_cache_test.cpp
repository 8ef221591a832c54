// polyhead info over files of saved caches.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "cli/exit_codes.hpp"
#include "polyhead/cache_file.h"
#include "support/json.hpp"
#include "support/run_program.hpp"
#include "support/scratch_directory.hpp"
#include "support/tiny_llama.hpp"

namespace polyhead {
namespace {

using nlohmann::json;
using test::Outcome;
using test::ScratchDirectory;

constexpr CacheFingerprint kPrint{1, 2, 0xabcdef, 0};

class InfoCache : public testing::Test {
 protected:
  Outcome info(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments{"info", path_};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return test::run_program(arguments);
  }
  /// Whether the text has a line of this name that ends so.
  static testing::AssertionResult says(const Outcome& done, const std::string& name,
                                       const std::string& value) {
    const std::size_t at = done.out.find("\n  " + name + " ");
    if (at != std::string::npos) {
      const std::string line = done.out.substr(at + 1, done.out.find('\n', at + 1) - at - 1);
      if (line.ends_with(" " + value)) return testing::AssertionSuccess();
    }
    return testing::AssertionFailure() << name << " is not " << value << " in\n" << done.out;
  }

  const ScratchDirectory folder_;
  const std::string path_ = folder_.file("it.kv");
};

TEST_F(InfoCache, WhatGenerateSaved) {
  const std::string model = test::tiny_llama(folder_);
  for (const bool by_channel : {false, true}) {
    std::vector<std::string> how = {"generate",     model,  "--prompt",      "abcdefgijabcdefgijab",
                                    "--kv-type",    "int8", "--max-tokens",  "3",
                                    "--save-cache", path_,  "--page-tokens", "8"};
    if (by_channel)
      how.insert(how.end(), {"--kv-keys", "channel", "--kv-text", folder_.write("t.txt", "abcj")});
    ASSERT_EQ(test::run_program(how).status, cli::kSuccess);
    const Outcome text = info();
    ASSERT_EQ(text.status, cli::kSuccess) << text.err;
    EXPECT_TRUE(says(text, "holds", "1 sequence of a paged cache"));
    EXPECT_TRUE(says(text, "tokens", "16"));
    EXPECT_TRUE(says(text, "as",
                     by_channel ? "int8, keys calibrated by channel (--kv-keys channel)" : "int8"));
    const json found = test::json_of(info({"--json"}).out);
    EXPECT_EQ(found["kind"], "sequences");
    EXPECT_EQ(found["tokens"], 16);
    EXPECT_EQ(found["type"], "int8");
    EXPECT_EQ(found["in_frames"], by_channel);
    EXPECT_EQ(found["notes_bytes"] > 0, by_channel);
    const std::string of_model = found["fingerprint"]["model"];
    EXPECT_EQ(of_model.size(), 16u);
    EXPECT_NE(text.out.find(of_model), std::string::npos);
  }
}

TEST_F(InfoCache, CachesOfOtherPrograms) {
  KvCacheConfig config;
  config.batch = 2;
  config.kv_heads = 3;
  config.head_dim = 40;
  config.value_dim = 24;
  config.values_in_keys = true;
  config.growing = true;
  std::vector<KvCache> caches;
  caches.emplace_back(config);
  caches.emplace_back(config);
  const std::vector<float> k(2 * 1500 * 3 * 40);
  caches[0].append(ConstView(k.data(), {2, 1500, 3, 40}), {});
  save_caches(path_, kPrint, caches);
  const Outcome text = info();
  ASSERT_EQ(text.status, cli::kSuccess) << text.err;
  EXPECT_TRUE(says(text, "holds", "2 caches"));
  EXPECT_TRUE(says(text, "tokens", "1,500 of the longest of the batch, the first cache"));
  EXPECT_TRUE(says(text, "sizes", "batch 2, 3 KV heads, head_dim 40, value_dim 24"));
  EXPECT_TRUE(says(text, "as", "f32, values in the keys"));
  EXPECT_TRUE(says(text, "of model",
                   "0000000000000001, weights 0000000000000002, RoPE "
                   "0000000000abcdef"));
  const json found = test::json_of(info({"--json"}).out);
  EXPECT_EQ(found["kind"], "caches");
  EXPECT_EQ(found["batch"], 2);
  EXPECT_EQ(found["values_in_keys"], true);
  EXPECT_FALSE(found.contains("window"));
  EXPECT_FALSE(found.contains("notes_bytes"));
}

TEST_F(InfoCache, SlidingCachesHaveAWindow) {
  SlidingCacheConfig config;
  config.kv_heads = 1;
  config.head_dim = config.value_dim = 8;
  config.window = 1000;
  config.first_tokens = 4;
  config.chunk = 16;
  const SlidingCache cache(config);
  save_caches(path_, kPrint, std::span<const SlidingCache>(&cache, 1));
  EXPECT_TRUE(says(info(), "holds", "1 sliding cache"));
  EXPECT_TRUE(says(info(), "window", "1,000, first tokens 4, chunk 16"));
  EXPECT_TRUE(says(info(), "sizes", "1 KV head, head_dim 8, value_dim 8"));
  const json found = test::json_of(info({"--json"}).out);
  EXPECT_EQ(found["window"], 1000);
  EXPECT_EQ(found["chunk"], 16);
}

TEST_F(InfoCache, NotesOfAnotherProgramAreNoFrames) {
  const std::vector<float> scales(3 * 40, 0.5f);
  PagedCache cache({.pages = 4,
                    .layers = 1,
                    .kv_heads = 3,
                    .head_dim = 40,
                    .type = ElementType::int8,
                    .key_scales = ConstView(scales.data(), {1, 3, 40})});
  const std::vector<std::int64_t> sequences = {cache.create(), cache.create()};
  save_sequences(path_, kPrint, cache, sequences, std::vector<std::byte>(5));
  EXPECT_TRUE(says(info(), "holds", "2 sequences of a paged cache"));
  EXPECT_TRUE(says(info(), "tokens", "0, the first"));
  EXPECT_TRUE(says(info(), "sizes", "1 layer, 3 KV heads, head_dim 40, value_dim 40"));
  EXPECT_TRUE(says(info(), "as", "int8, keys scaled by channel"));
  const json found = test::json_of(info({"--json"}).out);
  EXPECT_EQ(found["keys_by_channel"], true);
  EXPECT_EQ(found["notes_bytes"], 5);
  EXPECT_EQ(found["in_frames"], false);
}

TEST_F(InfoCache, AFileOfNothingHasNoSizes) {
  save_caches(path_, kPrint, std::span<const KvCache>());
  EXPECT_TRUE(says(info(), "holds", "0 caches"));
  EXPECT_EQ(info().out.find("sizes"), std::string::npos);
  EXPECT_FALSE(test::json_of(info({"--json"}).out).contains("head_dim"));
}

TEST_F(InfoCache, RefusesADamagedOneAndTensors) {
  save_caches(path_, kPrint, std::span<const KvCache>());
  const Outcome tensors = info({"--tensors"});
  EXPECT_EQ(tensors.status, cli::kFailure);
  EXPECT_EQ(tensors.err,
            "polyhead: " + path_ + ": is a file of saved caches, expected a model for --tensors\n");
  const std::string good = ScratchDirectory::read(path_);
  folder_.write("it.kv", good.substr(0, good.size() - 1));
  const Outcome damaged = info();
  EXPECT_EQ(damaged.status, cli::kFailure);
  EXPECT_EQ(damaged.out, "");
  EXPECT_EQ(damaged.err, "polyhead: " + path_ + ": is not a file of saved caches\n");
}

}  // namespace
}  // namespace polyhead
