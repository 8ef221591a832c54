// No command writes its result over a file that it has read.
#include <gtest/gtest.h>

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "cli/exit_codes.hpp"
#include "support/attend_arrays.hpp"
#include "support/run_program.hpp"
#include "support/tiny_llama.hpp"

namespace polyhead::test {
namespace {

void expect_kept(const std::vector<std::string>& arguments, const std::string& output) {
  const std::string before = ScratchDirectory::read(output);
  const Outcome made = run_program(arguments);
  EXPECT_EQ(made.status, cli::kFailure) << arguments[0];
  EXPECT_NE(made.err.find(output + ": cannot be written: it is read by this command"),
            std::string::npos)
      << made.err;
  EXPECT_EQ(ScratchDirectory::read(output), before) << arguments[0];
}

TEST(OwnInput, OfAModelsCommandsIsKept) {
  const ScratchDirectory folder;
  const std::string model = tiny_llama(folder), text = folder.write("text.txt", "abcabc");
  const std::string weights = folder.file("model.safetensors");
  for (const char* command : {"look", "prune"}) {
    expect_kept({command, model, "--file", text, "-o", text}, text);
    expect_kept({command, model, "--file", text, "-o", weights}, weights);
  }
  const std::string config = folder.file("config.json");
  expect_kept({"look", model, "--text", "abc", "-o", config}, config);
  expect_kept({"plan", config, "--html", config}, config);
}

// Standard input that the shell took from a file.
TEST(OwnInput, OfStandardInputIsKept) {
  const ScratchDirectory folder;
  const std::string model = tiny_llama(folder), text = folder.write("text.txt", "abcabc");
  const auto kept = [&](const std::vector<std::string>& arguments) {
    const int before = dup(STDIN_FILENO), file = open(text.c_str(), O_RDONLY);
    dup2(file, STDIN_FILENO);
    expect_kept(arguments, text);
    dup2(before, STDIN_FILENO);
    close(file), close(before);
    std::cin.clear();
    std::clearerr(stdin);
  };
  kept({"look", model, "--file", "-", "-o", text});
  kept({"generate", model, "--prompt", "-", "--max-tokens", "1", "--save-cache", text});
}

TEST(OwnInput, OfASavedCacheIsKept) {
  const ScratchDirectory folder;
  const std::string model = tiny_llama(folder), text = folder.write("text.txt", "abcabc"),
                    weights = folder.file("model.safetensors"), link = folder.file("link");
  std::filesystem::create_symlink("model.safetensors", link);
  const std::vector<std::string> generate = {"generate", model, "--prompt", "abc"};
  for (const std::string& output : {weights, link, folder.file("config.json")}) {
    std::vector<std::string> saving = generate;
    saving.insert(saving.end(), {"--save-cache", output});
    expect_kept(saving, output);
  }
  std::vector<std::string> by_channel = generate;
  by_channel.insert(by_channel.end(), {"--kv-type", "int8", "--kv-keys", "channel", "--kv-text",
                                       text, "--save-cache", text});
  expect_kept(by_channel, text);
}

TEST(OwnInput, OfArraysIsKeptUnderAnyName) {
  const AttendArrays arrays;
  const std::string q = arrays.directory.file("q.npy"), k = arrays.directory.file("k.npy"),
                    v = arrays.directory.file("v.npy"), link = arrays.directory.file("link.npy");
  std::filesystem::create_symlink("k.npy", link);
  std::filesystem::create_hard_link(v, arrays.directory.file("hard.npy"));
  expect_kept({"attend", q, k, v, "-o", q}, q);
  expect_kept({"attend", q, k, v, "-o", link}, link);
  expect_kept({"attend", q, k, v, "-o", arrays.directory.file("o.npy"), "--lse",
               arrays.directory.file("hard.npy")},
              arrays.directory.file("hard.npy"));
  const std::string out = arrays.directory.file("out.npy");
  for (int again = 0; again < 2; ++again)  // a result of before is no input
    EXPECT_EQ(run_program({"attend", q, k, v, "-o", out}).status, cli::kSuccess);
  EXPECT_EQ(run_program({"attend", out, k, v, "-o", q}).status, cli::kSuccess);
}

}  // namespace
}  // namespace polyhead::test
