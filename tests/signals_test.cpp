// An input that another program cuts while it is mapped.
#include "cli/signals.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "models/formats/mapped_file.hpp"
#include "models/formats/output_file.hpp"
#include "support/scratch_directory.hpp"

namespace polyhead {
namespace {

using formats::MappedFile;

TEST(Signals, AFileIsKnownByItsAddress) {
  const test::ScratchDirectory folder;
  const void* address = nullptr;
  {
    const MappedFile file(folder.write("a", "0123456789"));
    address = file.data() + 9;
    EXPECT_EQ(formats::mapped_file_at(address), folder.file("a"));
    EXPECT_EQ(formats::mapped_file_at(file.data() + 10), nullptr);
    EXPECT_EQ(formats::mapped_file_at(&file), nullptr);
  }
  EXPECT_EQ(formats::mapped_file_at(address), nullptr);
}

TEST(SignalsDeathTest, AFileThatShrinksEndsTheProgramWithAMessage) {
  const test::ScratchDirectory folder;
  const std::string path = folder.write("model.gguf", std::string(1 << 20, 'x'));
  const auto read_what_is_gone = [&] {
    cli::handle_signals();
    const MappedFile file(path);
    formats::OutputFile half(folder.file("out"));
    if (::truncate(path.c_str(), 10) != 0) return;
    const volatile std::byte* data = file.data();
    static_cast<void>(data[file.size() - 1]);
  };
  EXPECT_EXIT(read_what_is_gone(), testing::ExitedWithCode(1),
              "polyhead: .*model.gguf: became shorter while it was being read");
  EXPECT_EQ(folder.file_count(), 1u) << "nothing half-written is left";
}

}  // namespace
}  // namespace polyhead
