// The seeds of the fuzzers (tests/make/hostile_files.py): honest files are read, every other is
// refused in words that carry no control characters, soon.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>

#include "models/formats/file_error.hpp"
#include "models/formats/gguf.hpp"
#include "models/model_file.hpp"
#include "models/read_config.hpp"
#include "support/refusal.h"
#include "support/tiny_models.hpp"

namespace polyhead {
namespace {

namespace fs = std::filesystem;
using formats::FileError;

int read_corpus(const char* name, const std::function<void(const fs::path&)>& read) {
  int files = 0;
  for (const auto& entry :
       fs::directory_iterator(POLYHEAD_SOURCE_DIR "/tests/fuzz/corpus/" + std::string(name))) {
    const std::string file = entry.path().filename().string();
    const std::string message = test::refusal_of<FileError>([&] { read(entry.path()); });
    if (file.starts_with("ok_")) {
      EXPECT_EQ(message, "accepted") << file;
    } else {
      EXPECT_NE(message, "accepted") << file << " was believed";
    }
    EXPECT_TRUE(
        std::none_of(message.begin(), message.end(), [](char c) { return c >= 0 && c < ' '; }))
        << file << ": " << message;
    ++files;
  }
  return files;
}

TEST(HostileFiles, Gguf) {
  EXPECT_GE(read_corpus("gguf",
                        [](const fs::path& path) {
                          const formats::Gguf file(path.string());
                          if (file.text("general.architecture") == "none") return;
                          const models::ModelFile model(path.string());
                        }),
            60);
}

TEST(HostileFiles, Checkpoints) {
  const test::CheckpointOfText checkpoint;
  EXPECT_GE(read_corpus("model_config",
                        [&](const fs::path& path) {
                          const std::string text = test::ScratchDirectory::read(path.string());
                          const models::ModelFile model(checkpoint.write_text(text));
                        }),
            45);
}

}  // namespace
}  // namespace polyhead
