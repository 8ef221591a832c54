// GGUF files: what is accepted comes out right, what lies is refused with the reason.
#include "models/formats/gguf.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "models/formats/file_error.hpp"
#include "support/gguf_builder.hpp"

namespace polyhead {
namespace {

using formats::FileError;
using formats::Gguf;
using test::GgufBuilder;
using test::raw;

Gguf parse(const std::string& file) {
  auto owner = std::make_shared<std::string>(file);
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(owner->data()),
                                         owner->size());
  return Gguf("x.gguf", bytes, owner);
}

void expect_refused(const std::function<void()>& call, const std::string& message) {
  try {
    call();
    ADD_FAILURE() << "accepted, where this was expected: " << message;
  } catch (const FileError& error) {
    EXPECT_EQ(std::string(error.what()), "x.gguf: " + message);
  }
}

void expect_file_refused(const std::string& file, const std::string& message) {
  expect_refused([&] { parse(file); }, message);
}

GgufBuilder everything() {
  GgufBuilder file;
  file.set("general.architecture", std::string("llama")).set("n", 7u).set("x", 0.5f);
  file.set("yes", true).set("no", false);
  file.value("small", GgufBuilder::i8, raw<std::int8_t>(-3));
  file.value("wide", GgufBuilder::u64, raw<std::uint64_t>(1));
  file.value("exact", GgufBuilder::f64, raw(0.1));
  file.list(
      "words", GgufBuilder::string, 3,
      GgufBuilder::text("a") + GgufBuilder::text("") + GgufBuilder::text(std::string("\0b", 2)));
  file.list("counts", GgufBuilder::i32, 2, raw<std::int32_t>(-1) + raw<std::int32_t>(5));
  file.list("scores", GgufBuilder::f32, 2, raw(0.25f) + raw(-2.0f));
  file.list("flags", GgufBuilder::boolean, 2, std::string("\1\0", 2));
  file.list("none", GgufBuilder::u8, 0, "");
  file.tensor("a", 0, {2, 3}, std::string(24, 'a'));
  file.tensor("b", 8, {1, 2, 32}, std::string(68, 'b'));
  file.tensor("c", 1, {}, "cc");
  return file;
}

TEST(Gguf, ReadsEveryKindOfValue) {
  const Gguf file = parse(everything().build());
  EXPECT_EQ(file.text("general.architecture"), "llama");
  EXPECT_EQ(file.integer("n"), 7);
  EXPECT_EQ(file.real("n"), 7.0);
  EXPECT_EQ(file.real("x"), 0.5);
  EXPECT_EQ(file.boolean("yes"), true);
  EXPECT_EQ(file.boolean("no"), false);
  EXPECT_EQ(file.integer("small"), -3);
  EXPECT_EQ(file.integer("wide"), 1);
  EXPECT_EQ(file.real("exact"), 0.1);
  const std::vector<std::string_view> words{"a", "", std::string_view("\0b", 2)};
  EXPECT_EQ(file.texts("words"), words);
  EXPECT_EQ(file.integers("counts"), (std::vector<std::int64_t>{-1, 5}));
  EXPECT_EQ(file.integers("flags"), (std::vector<std::int64_t>{1, 0}));
  EXPECT_EQ(file.reals("scores"), (std::vector<float>{0.25f, -2.0f}));
  EXPECT_EQ(file.integers("none"), std::vector<std::int64_t>{});
  EXPECT_TRUE(file.is_array("none"));
  EXPECT_FALSE(file.is_array("n"));
  EXPECT_EQ(file.text("absent"), std::nullopt);
  EXPECT_EQ(file.texts("absent"), std::nullopt);
  EXPECT_TRUE(file.has("x"));
  EXPECT_EQ(file.keys().size(), 13u);
}

TEST(Gguf, FindsTensorsWhereTheyLie) {
  const Gguf file = parse(everything().build());
  ASSERT_EQ(file.tensors().size(), 3u);
  const formats::GgufTensor& a = file.tensors()[0];
  EXPECT_EQ(a.name, "a");
  EXPECT_EQ(a.shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(a.data.size(), 24u);
  EXPECT_EQ(a.data[23], std::byte{'a'});
  const formats::GgufTensor* b = file.tensor("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->type, WeightType::q8_0);
  EXPECT_EQ(b->shape, (std::vector<std::int64_t>{1, 2, 32}));
  EXPECT_EQ(b->data.size(), 68u);
  EXPECT_EQ(b->data[0], std::byte{'b'});
  EXPECT_EQ(file.tensor("c")->shape, std::vector<std::int64_t>{});
  EXPECT_EQ(file.tensor("c")->data.size(), 2u);
  EXPECT_EQ(file.tensor("d"), nullptr);
}

TEST(Gguf, HonoursItsAlignment) {
  GgufBuilder file;
  file.alignment = 128;
  file.set("general.alignment", 128u).tensor("a", 0, {1}, "aaaa").tensor("b", 0, {1}, "bbbb");
  const Gguf parsed = parse(file.build());
  EXPECT_EQ(parsed.tensor("b")->data[0], std::byte{'b'});
  EXPECT_EQ(parsed.tensor("b")->data.data() - parsed.tensor("a")->data.data(), 128);
}

TEST(Gguf, RefusesOtherTypesThanAskedFor) {
  const Gguf file = parse(everything().build());
  expect_refused([&] { file.text("n"); }, "metadata 'n' is uint32 (expected text)");
  expect_refused([&] { file.integer("x"); }, "metadata 'x' is float32 (expected a whole number)");
  expect_refused([&] { file.integer("yes"); }, "metadata 'yes' is bool (expected a whole number)");
  expect_refused([&] { file.real("yes"); }, "metadata 'yes' is bool (expected a number)");
  expect_refused([&] { file.boolean("n"); }, "metadata 'n' is uint32 (expected a bool)");
  expect_refused([&] { file.text("words"); },
                 "metadata 'words' is an array of text (expected a value)");
  expect_refused([&] { file.texts("n"); }, "metadata 'n' is uint32 (expected an array)");
  expect_refused([&] { file.texts("counts"); },
                 "metadata 'counts' is an array of int32 (expected an array of text)");
  expect_refused([&] { file.integers("scores"); },
                 "metadata 'scores' is an array of float32 (expected whole numbers)");
  expect_refused([&] { file.reals("words"); },
                 "metadata 'words' is an array of text (expected numbers)");
  GgufBuilder wide;
  wide.value("n", GgufBuilder::u64, raw(~std::uint64_t{0}));
  expect_refused([&] { parse(wide.build()).integer("n"); },
                 "metadata 'n' is 18446744073709551615 (expected at most 2^63 - 1)");
}

TEST(Gguf, RefusesWhatIsNoGguf) {
  expect_file_refused("", "is not a GGUF file: it does not begin with 'GGUF'");
  expect_file_refused("GGU", "is not a GGUF file: it does not begin with 'GGUF'");
  expect_file_refused("GGML....", "is not a GGUF file: it does not begin with 'GGUF'");
  GgufBuilder file;
  file.version = 1;
  expect_file_refused(file.build(), "has GGUF version 1 (expected 3 or 2)");
  file.version = 0x03000000;
  expect_file_refused(file.build(), "is a big-endian GGUF file (expected little-endian)");
}

TEST(Gguf, RefusesEveryTruncation) {
  const std::string whole = everything().build();
  ASSERT_NO_THROW(parse(whole));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THROW(parse(whole.substr(0, size)), FileError) << size << " bytes of " << whole.size();
  }
}

TEST(Gguf, RefusesCountsThatTheFileCannotHold) {
  GgufBuilder file;
  file.extra_values = ~std::uint64_t{0};
  expect_file_refused(file.build(),
                      "promises 18446744073709551615 metadata values and 0 tensors, "
                      "more than its 24 bytes can hold");
  file.extra_values = 0;
  file.extra_tensors = std::uint64_t{1} << 62;
  expect_file_refused(file.build(),
                      "promises 0 metadata values and 4611686018427387904 tensors, more "
                      "than its 24 bytes can hold");
  GgufBuilder list;
  list.list("k", GgufBuilder::f64, std::uint64_t{1} << 61, "");
  expect_file_refused(list.build(),
                      "metadata 'k' promises 2305843009213693952 elements of type "
                      "float64, the file has 0 bytes left");
  GgufBuilder text;
  text.value("k", GgufBuilder::string, raw(~std::uint64_t{0} - 7));
  expect_file_refused(text.build(),
                      "ends within a metadata text: 18446744073709551608 bytes expected "
                      "at byte 45, 0 are left");
}

TEST(Gguf, RefusesBadValues) {
  GgufBuilder type;
  type.value("k", 13, "x");
  expect_file_refused(type.build(), "metadata 'k' has type 13 (expected 0 to 12)");
  GgufBuilder nested;
  nested.list("k", GgufBuilder::array, 1, raw(0u) + raw<std::uint64_t>(0));
  expect_file_refused(nested.build(), "metadata 'k' is an array of arrays");
  GgufBuilder boolean;
  boolean.value("k", GgufBuilder::boolean, "\2");
  expect_file_refused(boolean.build(), "metadata 'k' holds a bool that is neither 0 nor 1");
  GgufBuilder twice;
  twice.set("k", 1u).set("k", 2u);
  expect_file_refused(twice.build(), "metadata key 'k' stands twice");
  GgufBuilder empty;
  empty.set("", 1u);
  expect_file_refused(empty.build(), "has a metadata key of 0 bytes (expected 1 to 65535)");
  GgufBuilder escape;
  escape.value("\x1b]0;owned\x07\xc2\x9b", 99, "x");
  expect_file_refused(escape.build(),
                      "metadata '\\x1b]0;owned\\x07\\xc2\\x9b' has type 99 (expected 0 to 12)");
}

TEST(Gguf, RefusesBadTensors) {
  const std::string data(64, 'x');
  const auto refused = [](const GgufBuilder& file, const std::string& message) {
    expect_file_refused(file.build(), "tensor 'a' " + message);
  };
  refused(GgufBuilder().tensor("a", 0, {1, 1, 1, 1, 1}, data), "has 5 axes (at most 4)");
  refused(GgufBuilder().tensor("a", 0, {0}, data), "has an axis of 0 elements");
  refused(GgufBuilder().tensor("a", 0, {~std::uint64_t{0}}, data),
          "has an axis of 18446744073709551615 elements");
  refused(GgufBuilder().tensor("a", 20, {32}, data),
          "has type number 20 (expected one of F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, "
          "Q3_K, Q4_K, Q5_K, Q6_K)");
  refused(GgufBuilder().tensor("a", 2, {2, 16}, data),
          "of shape [2, 16] has rows that are not whole blocks of 32 (Q4_0)");
  const std::uint64_t half = std::uint64_t{1} << 32;
  refused(GgufBuilder().tensor("a", 0, {half, half}, data),
          "of shape [4294967296, 4294967296] has more elements than can be addressed");
  refused(GgufBuilder().tensor("a", 0, {half, half / 4}, data),
          "of shape [4294967296, 1073741824] and type F32 at byte 0 lies outside the file's 64 "
          "bytes of data");
  refused(GgufBuilder().tensor("a", 0, {17}, data),
          "of shape [17] and type F32 at byte 0 lies outside the file's 64 bytes of data");
  refused(GgufBuilder().tensor_at("a", 0, {1}, 16, data),
          "begins at byte 16 of the data, no multiple of the alignment 32");
  refused(GgufBuilder().tensor_at("a", 0, {1}, std::uint64_t{0} - 32, data),
          "of shape [1] and type F32 at byte 18446744073709551584 lies outside the file's 64 bytes "
          "of data");
  refused(GgufBuilder().tensor("a", 0, {1}, data).tensor("a", 0, {1}, data), "stands twice");
  expect_file_refused(GgufBuilder().tensor("", 0, {1}, data).build(),
                      "tensor '' has a name of 0 bytes (expected 1 to 65535)");
  expect_file_refused(
      GgufBuilder().tensor("a", 0, {9}, data).tensor_at("b", 0, {1}, 32, "").build(),
      "tensors 'a' and 'b' overlap");
}

TEST(Gguf, RefusesBadAlignments) {
  for (const std::uint32_t alignment : {0u, 3u, 48u, 1u << 21}) {
    GgufBuilder file;
    file.set("general.alignment", alignment);
    expect_file_refused(file.build(), "general.alignment is " + std::to_string(alignment) +
                                          " (expected a power of two up to 1048576)");
  }
}

/// A header of 4 MB is read in far less than a second whatever it holds; quadratic reading of its
/// hundred thousand entries would take minutes.
TEST(Gguf, TimeIsLinearInTheHeader) {
  GgufBuilder file;
  const std::string prefix(20, 'k');
  for (int i = 0; i < 60000; ++i) file.set(prefix + std::to_string(i), 1u);
  std::string file_bytes = file.build();
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(parse(file_bytes).keys().size(), 60000u);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

}  // namespace
}  // namespace polyhead
