// Safetensors files: what is accepted comes out right, what is not is refused with the reason.
#include "models/formats/safetensors.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "models/formats/file_error.hpp"
#include "support/refusal.h"
#include "support/scratch_directory.hpp"

namespace polyhead {
namespace {

using formats::Array;
using formats::FileError;
using formats::Safetensors;

std::string file_of(const std::string& header, const std::string& data, std::uint64_t length) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(length >> (8 * i) & 0xff);
  return file + header + data;
}

std::string file_of(const std::string& header, const std::string& data) {
  return file_of(header, data, header.size());
}

Safetensors parse(const std::string& file) {
  auto owner = std::make_shared<std::string>(file);
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(owner->data()),
                                         owner->size());
  return Safetensors("x.safetensors", bytes, owner);
}

std::string refusal(const std::string& file) {
  return test::refusal_of<FileError>([&] { parse(file); });
}

void expect_refused(const std::string& file, const std::string& because) {
  const std::string message = refusal(file);
  EXPECT_TRUE(message.starts_with("x.safetensors: ")) << message;
  EXPECT_NE(message.find(because), std::string::npos) << message;
}

std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   int begin, int end) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(end) + "]}";
}

TEST(Safetensors, ReadsDoublesAsFloat32) {
  const auto file_with = [](const std::vector<double>& values) {
    const int bytes = static_cast<int>(8 * values.size());
    return parse(
        file_of("{" + tensor("a", "F64", "[" + std::to_string(values.size()) + "]", 0, bytes) + "}",
                std::string(reinterpret_cast<const char*>(values.data()),
                            static_cast<std::size_t>(bytes))));
  };
  const Array a = file_with({0.1, -INFINITY, 3e-320}).tensor("a");
  ASSERT_EQ(a.view.type, ElementType::float32);
  EXPECT_EQ(formats::shape_text(a.view.layout), "[3]");
  const auto* values = static_cast<const float*>(a.view.data);
  EXPECT_EQ(values[0], 0.1f);
  EXPECT_EQ(values[1], -INFINITY);
  EXPECT_EQ(values[2], 0.0f);
  const std::string refused = test::refusal_of<FileError>([&] { file_with({1e39}).tensor("a"); });
  EXPECT_TRUE(refused.starts_with("x.safetensors:a: ")) << refused;
}

TEST(Safetensors, ReadsEveryType) {
  const std::vector<float> values{1, 2, 3, 4, 5, 6};
  const std::string data(reinterpret_cast<const char*>(values.data()), 24);
  const Safetensors file = parse(file_of(
      "{\"__metadata__\":{\"format\":\"pt\"}," + tensor("a", "F32", "[2,3]", 0, 24) + "," +
          tensor("b", "BF16", "[1]", 24, 26) + "," + tensor("c", "F16", "[]", 26, 28) + "," +
          tensor("d", "I64", "[0,7]", 28, 28) + "," + tensor("e", "I32", "[1]", 28, 32) + "," +
          tensor("f", "BOOL", "[3]", 32, 35) + "," + tensor("g", "I8", "[1]", 35, 36) + "," +
          tensor("h", "U8", "[1]", 36, 37) + "}   ",
      data + std::string(13, '\1')));
  EXPECT_EQ(file.names(), (std::vector<std::string>{"a", "b", "c", "d", "e", "f", "g", "h"}));
  const Array a = file.tensor("a");
  EXPECT_EQ(formats::shape_text(a.view.layout), "[2, 3]");
  EXPECT_EQ(a.view.type, ElementType::float32);
  EXPECT_EQ(static_cast<const float*>(a.view.data)[5], 6.0f);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.view.data) % alignof(float), 0u)
      << "wherever the header ended";
  EXPECT_EQ(file.tensor("b").view.type, ElementType::bfloat16);
  EXPECT_EQ(file.tensor("c").view.type, ElementType::float16);
  EXPECT_EQ(file.tensor("d").view.type, ElementType::int64);
  EXPECT_EQ(file.tensor("e").view.type, ElementType::int32);
  EXPECT_EQ(file.tensor("f").view.type, ElementType::boolean);
  EXPECT_THROW(file.tensor("g"), FileError) << "known to the format, not to the library";
  EXPECT_EQ(file.tensor("h").view.type, ElementType::boolean);
  EXPECT_THROW(file.tensor("i"), FileError);
  EXPECT_EQ(parse(file_of("{}", "")).names().size(), 0u);
}

TEST(Safetensors, NamesAreListedWhenOneIsMissing) {
  const Safetensors file =
      parse(file_of("{" + tensor("weight\\u001b[31m", "F32", "[1]", 0, 4) + "}", "1234"));
  try {
    file.tensor("bias");
    FAIL();
  } catch (const FileError& error) {
    EXPECT_STREQ(error.what(), "x.safetensors: has no tensor 'bias' (it has 'weight\\x1b[31m')")
        << "no escape gets through";
  }
}

TEST(Safetensors, RefusesLyingLengths) {
  const std::string header = "{" + tensor("a", "F32", "[1]", 0, 4) + "}";
  const std::string good = file_of(header, "1234");
  EXPECT_EQ(refusal(good), "accepted");
  for (std::size_t size = 0; size < good.size(); ++size)
    EXPECT_NE(refusal(good.substr(0, size)), "accepted") << size;
  expect_refused(good + "x", "trailing bytes");
  expect_refused(good.substr(0, good.size() - 1), "cut short");
  expect_refused(file_of(header, "1234", ~std::uint64_t{0}), "promises a safetensors header");
  expect_refused(file_of(header, "1234", header.size() + 5), "promises a safetensors header");
  expect_refused(file_of(std::string(17 << 20, ' '), ""), "at most 16 MiB");
}

TEST(Safetensors, RefusesHeadersThatAreNotOne) {
  for (const char* header :
       {"",
        "[]",
        "null",
        " {}",
        "{",
        "{\"a\":",
        "{\"a\":1}",
        "{\"a\":{}}",
        "{'a':1}",
        "{} {}",
        "{}\n",
        "{\"a\":{\"dtype\":1,\"shape\":[],\"data_offsets\":[0,4]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":{},\"data_offsets\":[0,4]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"more\":1}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,18446744073709551615]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,1e999]}}",
        "{\"__metadata__\":{\"a\":1}}",
        "{\"__metadata__\":[]}",
        "{\"a\":[[[[[[]]]]]]}",
        "{\"\xff\":1}"}) {
    EXPECT_NE(refusal(file_of(header, "1234")), "accepted") << header;
  }
  const std::string header = "{" + tensor("a", "F32", "[1]", 0, 4) + "}";
  for (const char* behind : {"garbage{\"q\":1}", "}", "", "    "}) {
    const std::string text = header + '\0' + behind;
    EXPECT_NE(refusal(file_of(text, "1234")), "accepted") << "a byte 0, then " << behind;
  }
  EXPECT_EQ(refusal(file_of(header + "    ", "1234")), "accepted") << "spaces align the data";
  // A header nested a million deep must not overflow the stack, in parsing or in letting go.
  expect_refused(file_of("{\"a\":" + std::string(1 << 20, '['), ""), "nested too deeply");
}

TEST(Safetensors, RefusesDuplicates) {
  expect_refused(
      file_of("{" + tensor("a", "F32", "[1]", 0, 4) + "," + tensor("a", "F32", "[1]", 4, 8) + "}",
              "12345678"),
      "'a' stands twice");
  expect_refused(
      file_of("{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
              "1234"),
      "'dtype' stands twice");
}

TEST(Safetensors, RefusesShapesThatDoNotFillTheirBytes) {
  expect_refused(file_of("{" + tensor("a", "F32", "[2]", 0, 4) + "}", "1234"), "does not fill");
  expect_refused(file_of("{" + tensor("a", "F32", "[4611686018427387905]", 0, 4) + "}", "1234"),
                 "does not fill");
  expect_refused(file_of("{" + tensor("a", "F32", "[4294967296,4294967296,4]", 0, 4) + "}", "1234"),
                 "more elements than can be addressed");
}

TEST(Safetensors, RefusesOverlapsHolesAndTrailingBytes) {
  const auto two = [](int a_begin, int a_end, int b_begin, int b_end) {
    return "{" + tensor("a", "F32", "[1]", a_begin, a_end) + "," +
           tensor("b", "F32", "[1]", b_begin, b_end) + "}";
  };
  EXPECT_EQ(refusal(file_of(two(4, 8, 0, 4), "12345678")), "accepted") << "in any order";
  expect_refused(file_of(two(0, 4, 0, 4), "1234"), "overlap or leave a hole");
  expect_refused(file_of(two(0, 4, 2, 6), "123456"), "overlap or leave a hole");
  expect_refused(file_of(two(0, 4, 5, 9), "123456789"), "overlap or leave a hole");
  expect_refused(file_of(two(1, 5, 5, 9), "123456789"), "overlap or leave a hole");
  expect_refused(file_of(two(0, 4, 4, 8), "123456789"), "trailing bytes");
  expect_refused(file_of(two(0, 4, 4, 8), "1234567"), "cut short");
}

TEST(Safetensors, UnknownTypesAndManyAxesAreRefusedWhenAskedFor) {
  const Safetensors file = parse(file_of("{" + tensor("a", "F4_E2M1", "[8]", 0, 4) + "," +
                                             tensor("b", "F32", "[1,1,1,1,1,1]", 4, 8) + "}",
                                         "12345678"));
  EXPECT_THROW(file.tensor("a"), FileError);
  EXPECT_THROW(file.tensor("b"), FileError);
}

TEST(Safetensors, IsMappedFromAFile) {
  const test::ScratchDirectory directory;
  const std::string path = directory.write(
      "m.safetensors", file_of("{" + tensor("a", "F32", "[1]", 0, 4) + "}", "1234"));
  Array kept;
  {
    const Safetensors file(path);
    kept = file.tensor("a");
  }
  EXPECT_EQ(std::memcmp(kept.view.data, "1234", 4), 0) << "the array keeps the mapping alive";
}

}  // namespace
}  // namespace polyhead
