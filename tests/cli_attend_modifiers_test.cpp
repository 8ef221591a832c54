// polyhead attend with modifiers and lengths from files and lists; numbers that a type cannot hold.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "models/formats/npy.hpp"
#include "polyhead/attention.h"
#include "support/attend_arrays.hpp"
#include "support/run_program.hpp"

namespace polyhead {
namespace {

using test::AttendArrays;
using test::expect_refused;
using test::run_program;

TEST(AttendModifiers, ABiasComesFromAFile) {
  const AttendArrays arrays;
  std::vector<float> bias = AttendArrays::values(36, 5);
  bias[7] = -std::numeric_limits<float>::infinity();
  const std::string file = arrays.directory.file("bias.npy");
  formats::write_npy(file, ConstView(bias.data(), {6, 6}));
  EXPECT_EQ(run_program(arrays.command({"--bias", file})).status, 0);
  Modifiers modifiers;
  modifiers.bias = {bias.data(), {1, 1, 6, 6}};
  EXPECT_EQ(arrays.output(), arrays.expected({}, modifiers));
}

TEST(AttendModifiers, QueriesPastALengthAreNobodys) {
  const AttendArrays arrays;
  EXPECT_EQ(run_program(arrays.command({"--lengths", "5", "--q-lengths", "4"})).status, 0);
  const std::int64_t keys[] = {5}, queries[] = {4};
  const std::vector<float> wanted = arrays.expected(lengths({keys, {1}}, {queries, {1}}));
  EXPECT_EQ(arrays.output(), wanted);
  EXPECT_EQ(wanted.back(), 0.0f);
  EXPECT_EQ(run_program(arrays.command({"--q-lengths", "4"})).status, 0);
  EXPECT_EQ(arrays.output(), arrays.expected(lengths({}, {queries, {1}}))) << "of all keys";
  EXPECT_NE(arrays.output(), wanted);
}

TEST(AttendModifiers, SequenceIdsNameTheDropoutsNumbers) {
  const AttendArrays arrays;
  Modifiers modifiers;
  modifiers.dropout.probability = 0.5f;
  modifiers.dropout.seed = 3;
  const std::vector<std::string> dropped{"--dropout", "0.5", "--seed", "3"};
  EXPECT_EQ(run_program(arrays.command(dropped)).status, 0);
  const std::vector<float> plain = arrays.output();
  EXPECT_EQ(plain, arrays.expected({}, modifiers));
  const std::int64_t ids[] = {17};
  modifiers.dropout.sequence_ids = {ids, {1}};
  std::vector<std::string> named = dropped;
  named.insert(named.end(), {"--sequence-ids", "17"});
  EXPECT_EQ(run_program(arrays.command(named)).status, 0);
  EXPECT_EQ(arrays.output(), arrays.expected({}, modifiers));
  EXPECT_NE(arrays.output(), plain);
}

// Silently infinite, a bias for padding would hide its keys, and a key would leave the softmax.
TEST(AttendModifiers, NumbersThatATypeCannotHoldAreRefused) {
  const AttendArrays arrays;
  std::vector<double> bias(36, 0.0);
  bias[8] = std::numeric_limits<double>::lowest();
  std::string header = "{'descr': '<f8', 'fortran_order': False, 'shape': (6, 6), }\n";
  std::string bytes("\x93NUMPY\1\0", 8);
  bytes += static_cast<char>(header.size());
  bytes += '\0';
  bytes += header + std::string(reinterpret_cast<const char*>(bias.data()), 36 * sizeof(double));
  const std::string file = arrays.directory.write("bias.npy", bytes);
  expect_refused(arrays.command({"--bias", file}), 1,
                 file + ": holds -1.79769e+308, too large for float32");
  std::vector<float> large = arrays.v;
  large[3] = 70000.0f;
  formats::write_npy(arrays.directory.file("v.npy"), ConstView(large.data(), {6, 2, 8}));
  EXPECT_EQ(run_program(arrays.command()).status, 0);
  expect_refused(arrays.command({"--type", "float16"}), 1,
                 "v.npy: holds 70000, too large for float16");
}

TEST(AttendModifiers, CausalBesideAPrefixIsRefused) {
  const AttendArrays arrays;
  expect_refused(arrays.command({"--causal", "--prefix", "3"}), 2,
                 "--causal changes nothing here: --prefix is causal, but for the first keys");
}

}  // namespace
}  // namespace polyhead
