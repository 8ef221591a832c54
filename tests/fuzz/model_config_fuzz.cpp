// Any text as a checkpoint's config.json, and after a NUL any text as its index of shards: a
// configuration that can be, or a FileError.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "models/formats/file_error.hpp"
#include "models/model_file.hpp"
#include "models/read_config.hpp"
#include "support/tiny_models.hpp"

namespace {

using polyhead::formats::FileError;
namespace models = polyhead::models;
namespace test = polyhead::test;

template <class Read>
void may_be_refused(const Read& read) {
  try {
    read();
  } catch (const FileError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const test::CheckpointOfText checkpoint;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::string_view config = text.substr(0, text.find('\0'));
  may_be_refused([&] { models::pooling_from_json("fuzz", config); });
  may_be_refused([&] {
    constexpr models::Reading kReading = models::Reading::described;
    const models::ModelConfig read = models::config_from_json("fuzz", config, kReading);
    models::check_config("fuzz", read, kReading);
    models::expected_tensors(read);
  });
  may_be_refused([&] {
    const models::ModelConfig read = models::config_from_json("fuzz", config);
    models::check_config("fuzz", read);
    models::expected_tensors(read);
    models::ModelFile(checkpoint.write_text(text));  // files are slow: only where they matter
  });
  return 0;
}
