// Files of caches are for one model as it is run: what changes keys and values changes the part of
// the fingerprint that names it, and no other.
#include "models/cache_fingerprint.hpp"

#include <gtest/gtest.h>

#include "polyhead/rope.h"
#include "support/scratch_directory.hpp"
#include "support/tiny_models.hpp"

namespace polyhead {
namespace {

using models::Architecture;
using models::cache_fingerprint;
using models::ModelFile;
using test::GgufBuilder;
using test::ScratchDirectory;
using test::tiny_gguf;

ModelFile open(const GgufBuilder& file) {
  const ScratchDirectory folder;
  return ModelFile(folder.write("m.gguf", file.build()));
}

CacheFingerprint print_of(const ModelFile& file) { return cache_fingerprint(file, {}); }

TEST(CacheFingerprint, TellsWindowsApart) {
  GgufBuilder narrow = tiny_gguf(Architecture::gemma3);
  narrow.replace("gemma3.attention.sliding_window", 8u);
  const CacheFingerprint wide = print_of(open(tiny_gguf(Architecture::gemma3)));
  const CacheFingerprint other = print_of(open(narrow));
  EXPECT_NE(other.model, wide.model);
  EXPECT_EQ(other.weights, wide.weights);
  EXPECT_EQ(other.rope, wide.rope);
}

// Of these three llama alone rotates neighbours; all have the same frequencies.
TEST(CacheFingerprint, TellsPairingsOfRotationsApart) {
  const ModelFile llama = open(tiny_gguf(Architecture::llama));
  const ModelFile qwen2 = open(tiny_gguf(Architecture::qwen2));
  const ModelFile qwen3 = open(tiny_gguf(Architecture::qwen3));
  const auto frequencies = [](const ModelFile& file) {
    return rope_frequencies(*file.config().layers[0].rope, 4);
  };
  ASSERT_EQ(frequencies(llama), frequencies(qwen2));
  EXPECT_EQ(print_of(qwen2).rope, print_of(qwen3).rope);
  EXPECT_NE(print_of(qwen2).rope, print_of(llama).rope);
}

}  // namespace
}  // namespace polyhead
