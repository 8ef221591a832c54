// polyhead attend: masks in files and lists.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "models/formats/npy.hpp"
#include "polyhead/mask.h"
#include "support/attend_arrays.hpp"
#include "support/run_program.hpp"

namespace polyhead {
namespace {

using test::AttendArrays;
using test::expect_refused;
using test::Outcome;
using test::run_program;

TEST(Attend, MasksComeFromFilesAndLists) {
  const AttendArrays arrays;
  std::vector<std::uint8_t> visible(36), packed(6);
  for (std::size_t i = 0; i < 36; ++i) {
    visible[i] = i % 5 != 0;
    if (visible[i]) packed[i / 6] = static_cast<std::uint8_t>(packed[i / 6] | 1u << (i % 6));
  }
  formats::write_npy(arrays.directory.file("mask.npy"), ConstView(visible.data(), {6, 6}));
  formats::write_npy(arrays.directory.file("bits.npy"), ConstView(packed.data(), {6, 1}));
  EXPECT_EQ(run_program(arrays.command({"--mask", arrays.directory.file("mask.npy")})).status, 0);
  const std::vector<float> wanted = arrays.expected(boolean({visible.data(), {1, 1, 6, 6}}));
  EXPECT_EQ(arrays.output(), wanted);
  EXPECT_EQ(
      run_program(arrays.command({"--mask", arrays.directory.file("bits.npy"), "--packed-mask"}))
          .status,
      0);
  EXPECT_EQ(arrays.output(), wanted);
  std::vector<std::uint8_t> hides(36);
  for (std::size_t i = 0; i < 36; ++i) hides[i] = !visible[i];
  formats::write_npy(arrays.directory.file("hides.npy"), ConstView(hides.data(), {6, 6}));
  EXPECT_EQ(run_program(arrays.command({"--hide", arrays.directory.file("hides.npy")})).status, 0);
  EXPECT_EQ(arrays.output(), wanted);
  EXPECT_EQ(run_program(arrays.command({"--hide", arrays.directory.file("bits.npy"),
                                        "--packed-mask", "--lengths", "5"}))
                .status,
            0);
  const std::vector<std::int64_t> five{5};
  EXPECT_EQ(arrays.output(),
            arrays.expected(hidden({visible.data(), {1, 1, 6, 6}}) & lengths({five.data(), {1}})));
  expect_refused(arrays.command({"--packed-mask"}), 2, "--packed-mask needs --mask or --hide");
  expect_refused(arrays.command({"--mask", arrays.directory.file("bits.npy")}), 1,
                 "some are above 1 (bits of keys need --packed-mask)");
  EXPECT_EQ(run_program(arrays.command({"--documents", "0, 0,0,1,1 ,1", "--lengths", "5"})).status,
            0);
  const std::vector<std::int64_t> ids{0, 0, 0, 1, 1, 1}, length{5};
  const Mask mask =
      documents({ids.data(), {1, 6}}, {ids.data(), {1, 6}}) & lengths({length.data(), {1}});
  EXPECT_EQ(arrays.output(), arrays.expected(mask));
  EXPECT_EQ(run_program(arrays.command({"--prefix", "3"})).status, 0);
  EXPECT_EQ(arrays.output(), arrays.expected(prefix(3)));
  EXPECT_EQ(run_program(arrays.command({"--window", "1,0", "--first-tokens", "2"})).status, 0);
  EXPECT_EQ(arrays.output(), arrays.expected(window_and_first(1, 0, 2)));
  EXPECT_NE(arrays.output(), arrays.expected(window(1, 0)));
}

TEST(Attend, PackedMasksOfRaggedBatches) {
  const AttendArrays arrays;
  // Two sequences, of 2 and 4 queries, 1 and 5 keys: more keys than there are heads in k.
  const std::vector<std::string> ragged{"--q-offsets", "0,2,6", "--kv-offsets", "0,1,6", "--mask"};
  std::vector<std::uint8_t> visible(2 * 4 * 5), packed(2 * 4);
  for (std::size_t i = 0; i < visible.size(); ++i) {
    visible[i] = i % 3 != 0;
    if (visible[i]) packed[i / 5] = static_cast<std::uint8_t>(packed[i / 5] | 1u << (i % 5));
  }
  const std::string mask = arrays.directory.file("mask.npy");
  const auto made_with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> options = ragged;
    options.insert(options.end(), more.begin(), more.end());
    const Outcome made = run_program(arrays.command(options));
    EXPECT_EQ(made.status, 0) << made.err;
    return arrays.output();
  };
  formats::write_npy(mask, ConstView(visible.data(), {2, 1, 4, 5}));
  const std::vector<float> wanted = made_with({mask});
  formats::write_npy(mask, ConstView(packed.data(), {2, 1, 4, 1}));
  EXPECT_EQ(made_with({mask, "--packed-mask"}), wanted);
}

}  // namespace
}  // namespace polyhead
