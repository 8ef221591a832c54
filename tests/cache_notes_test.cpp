// The frames of a cache's codes beside its file: what is read is what was written, or refused.
#include "models/cache_notes.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "models/model_file.hpp"
#include "support/refusal.h"
#include "support/scratch_directory.hpp"
#include "support/tiny_models.hpp"

namespace polyhead {
namespace {

using models::frames_of_notes;
using models::notes_of;
using test::refusal_of;

/// Frames of so many layers: some of all parts, some of two, some of none.
std::vector<LayerFrames> frames_of(std::size_t layers) {
  std::vector<LayerFrames> frames(layers);
  float next = 0.5f;
  const auto numbers = [&](std::size_t count) {
    std::vector<float> list(count);
    for (float& number : list) number = next += 1.0f;
    return list;
  };
  for (std::size_t i = 0; i < layers; ++i) {
    if (i % 3 == 2) continue;
    frames[i].keys = {numbers(8), numbers(8), {}, {}};
    if (i % 3 == 0) frames[i].values = {numbers(4), numbers(4), numbers(16), numbers(4)};
  }
  return frames;
}

bool alike(const CodeFrame& a, const CodeFrame& b) {
  return a.centre == b.centre && a.stretch == b.stretch && a.carry == b.carry && a.cost == b.cost;
}

std::string refused(const std::vector<std::byte>& notes) {
  return refusal_of([&] { (void)frames_of_notes("f.kv", notes); });
}

TEST(CacheNotes, AreReadAsTheyWereWritten) {
  for (const std::size_t layers : {1, 2, 7}) {
    const std::vector<LayerFrames> frames = frames_of(layers);
    const std::vector<LayerFrames> read = frames_of_notes("f.kv", notes_of(frames));
    ASSERT_EQ(read.size(), layers);
    for (std::size_t i = 0; i < layers; ++i) {
      EXPECT_TRUE(alike(read[i].keys, frames[i].keys)) << i;
      EXPECT_TRUE(alike(read[i].values, frames[i].values)) << i;
    }
  }
  EXPECT_TRUE(notes_of({}).empty());
  EXPECT_TRUE(frames_of_notes("f.kv", {}).empty());
}

// Each number stands in them: other frames have other notes.
TEST(CacheNotes, TellFramesApart) {
  std::vector<LayerFrames> frames = frames_of(2);
  const std::vector<std::byte> notes = notes_of(frames);
  for (LayerFrames& layer : frames) {
    for (CodeFrame* side : {&layer.keys, &layer.values}) {
      for (auto* part : {&side->centre, &side->stretch, &side->carry, &side->cost}) {
        if (part->empty()) continue;
        part->back() += 1.0f;
        EXPECT_NE(notes_of(frames), notes);
        part->back() -= 1.0f;
      }
    }
  }
  EXPECT_EQ(notes_of(frames), notes);
}

TEST(CacheNotes, RefuseWhatIsNone) {
  const std::vector<std::byte> good = notes_of(frames_of(3));
  for (std::size_t bytes = 1; bytes < good.size(); ++bytes)
    EXPECT_NE(refused({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(bytes)}), "")
        << bytes;
  std::vector<std::byte> wrong = good;
  wrong.push_back(std::byte{0});
  EXPECT_EQ(refused(wrong), "frames_of_notes: f.kv has notes that are 1 bytes too long");
  wrong = good;
  wrong[3] = std::byte{'f'};
  EXPECT_EQ(refused(wrong), "frames_of_notes: f.kv has notes that are no frames");
  const std::uint64_t many = std::uint64_t{1} << 62;
  for (const std::size_t at : {8, 16}) {  // of layers, and of the first list
    wrong = good;
    std::memcpy(wrong.data() + at, &many, sizeof many);
    EXPECT_NE(refused(wrong).find("promises 4611686018427387904"), std::string::npos) << at;
  }
}

TEST(CacheNotes, TakeNoMoreThanIsSaid) {
  const test::ScratchDirectory folder;
  const models::ModelFile file(
      folder.write("m.gguf", test::tiny_gguf(models::Architecture::gemma3).build()));
  const models::ModelConfig& config = file.config();
  std::vector<LayerFrames> frames;
  for (const models::LayerGeometry& layer : config.layers) {
    const auto full = [&](std::int64_t dim) {
      const auto heads = static_cast<std::size_t>(layer.kv_heads),
                 of = static_cast<std::size_t>(dim);
      const std::vector<float> each(heads * of, 1.0f);
      return CodeFrame{each, each, std::vector<float>(heads * of * of), each};
    };
    frames.push_back({full(layer.head_dim), full(layer.value_dim)});
  }
  EXPECT_EQ(std::ssize(notes_of(frames)), models::most_note_bytes(config));
}

}  // namespace
}  // namespace polyhead
