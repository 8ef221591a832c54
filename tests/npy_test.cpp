// .npy files: what is accepted comes out right, what is not is refused with the reason.
#include "models/formats/npy.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "models/formats/file_error.hpp"
#include "models/formats/output_file.hpp"
#include "support/refusal.h"
#include "support/scratch_directory.hpp"

namespace polyhead {
namespace {

using formats::Array;
using formats::FileError;
using test::ScratchDirectory;

/// A version 1.0 file with this header text and this data.
std::string npy(const std::string& header, const std::string& data, int major = 1) {
  std::string file = "\x93NUMPY";
  file += static_cast<char>(major);
  file += '\0';
  for (int i = 0; i < (major == 1 ? 2 : 4); ++i)
    file += static_cast<char>(header.size() >> (8 * i) & 0xff);
  return file + header + data;
}

std::string dictionary(const std::string& descr, const std::string& shape,
                       const std::string& order = "False") {
  return "{'descr': '" + descr + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }\n";
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

Array parse(const std::string& file) {
  auto owner = std::make_shared<std::string>(file);
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(owner->data()),
                                         owner->size());
  return formats::parse_npy("x.npy", bytes, owner);
}

std::string refusal(const std::string& file) {
  return test::refusal_of<FileError>([&] { parse(file); });
}

void expect_refused(const std::string& file, const std::string& because) {
  const std::string message = refusal(file);
  EXPECT_TRUE(message.starts_with("x.npy: ")) << message;
  EXPECT_NE(message.find(because), std::string::npos) << message;
}

template <class T>
T at(const Array& array, std::int64_t i, std::int64_t j) {
  const auto& layout = array.view.layout;
  return static_cast<const T*>(array.view.data)[i * layout.strides[0] + j * layout.strides[1]];
}

TEST(Npy, ReadsEveryTypeAndVersion) {
  const std::string floats = bytes_of<float>({1, 2, 3, 4, 5, 6});
  for (const int major : {1, 2, 3}) {
    const Array array = parse(npy(dictionary("<f4", "(2, 3)"), floats, major));
    EXPECT_EQ(array.view.type, ElementType::float32);
    EXPECT_EQ(formats::shape_text(array.view.layout), "[2, 3]");
    EXPECT_EQ(at<float>(array, 1, 0), 4.0f);
  }
  EXPECT_EQ(parse(npy(dictionary("<f2", "(3,)"), "123456")).view.type, ElementType::float16);
  EXPECT_EQ(parse(npy(dictionary("<i4", "(1,)"), "1234")).view.type, ElementType::int32);
  EXPECT_EQ(parse(npy(dictionary("<i8", "(1,)"), "12345678")).view.type, ElementType::int64);
  EXPECT_EQ(parse(npy(dictionary("|b1", "(2,)"), "12")).view.type, ElementType::boolean);
  EXPECT_EQ(parse(npy(dictionary("|u1", "(2,)"), "12")).view.type, ElementType::boolean);
  const Array converted = parse(npy(dictionary("<f8", "(1, 2)"), bytes_of<double>({0.5, -3.25})));
  EXPECT_EQ(converted.view.type, ElementType::float32);
  EXPECT_EQ(at<float>(converted, 0, 1), -3.25f);
  const double infinity = std::numeric_limits<double>::infinity();
  const Array infinite = parse(npy(dictionary("<f8", "(1, 2)"), bytes_of<double>({1, -infinity})));
  EXPECT_EQ(at<float>(infinite, 0, 1), -std::numeric_limits<float>::infinity());
}

TEST(Npy, ReadsFortranOrderScalarsAndEmptyArrays) {
  const Array array =
      parse(npy(dictionary("<f4", "(2, 3)", "True"), bytes_of<float>({1, 4, 2, 5, 3, 6})));
  EXPECT_EQ(at<float>(array, 0, 1), 2.0f);
  EXPECT_EQ(at<float>(array, 1, 2), 6.0f);
  EXPECT_EQ(parse(npy(dictionary("<f4", "()"), "1234")).view.layout.axes, 0);
  EXPECT_EQ(formats::shape_text(parse(npy(dictionary("<f4", "(0, 3)"), "")).view.layout), "[0, 3]");
}

TEST(Npy, MisalignedDataIsCopied) {
  for (int pad = 0; pad < 4; ++pad) {
    const std::string header =
        dictionary("<f4", "(2,)") + std::string(static_cast<std::size_t>(pad), ' ');
    const Array array = parse(npy(header, bytes_of<float>({7, 8})));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(array.view.data) % alignof(float), 0u);
    EXPECT_EQ(static_cast<const float*>(array.view.data)[1], 8.0f);
  }
}

TEST(Npy, HeaderMayBeWrittenOtherwise) {
  EXPECT_EQ(refusal(npy("{\"shape\":(2,),\"descr\":\"<f4\",\"fortran_order\":False}", "12345678")),
            "accepted");
  EXPECT_EQ(
      refusal(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2L,)}  \n", "12345678")),
      "accepted");
}

TEST(Npy, RefusesTypesByName) {
  expect_refused(npy(dictionary("|O", "(1,)"), "12345678"), "nothing in a file is evaluated");
  expect_refused(npy(dictionary(">f4", "(1,)"), "1234"), "big-endian");
  expect_refused(npy(dictionary("|V2", "(1,)"), "12"), "bfloat16");
  for (const char* descr :
       {"<c8", "<U4", "|S3", "<M8[ns]", "<f16", "<u4", "f4", "<f4 ", "", "=f4"}) {
    expect_refused(npy(dictionary(descr, "(1,)"), "1234"), "is not supported");
  }
  expect_refused(npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", "1234"),
                 "record arrays");
}

TEST(Npy, RefusesHeadersThatAreNotTheOneDictionary) {
  const std::string four = "1234";
  for (const char* header :
       {"",
        "{",
        "{}",
        "[]",
        "{'descr': '<f4'}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'x': 1}",
        "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} + 1",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1 1)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': [1]}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1.0,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (01,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (0x1,)}",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': false, 'shape': (1,)}",
        "{'descr': '\\x3cf4', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': __import__('os').system('true'), 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
        "{'descr': '<f4' 'fortran_order': False, 'shape': (1,)}",
        "{'descr: 1"}) {
    expect_refused(npy(header, four), ".npy header: ");
  }
  expect_refused(npy(dictionary("<f4", "(" + std::string(200, ',') + ")"), four), ".npy header: ");
  std::string axes;
  for (int i = 0; i < 70; ++i) axes += "1,";
  expect_refused(npy(dictionary("<f4", "(" + axes + ")"), four), "more than 64 axes");
  expect_refused(npy(dictionary("<f4", "(1,1,1,1,1,1)"), four), "6 axes");
}

TEST(Npy, RefusesLyingSizes) {
  const std::string good = npy(dictionary("<f4", "(2, 3)"), std::string(24, 'x'));
  expect_refused(good + "x", "24 bytes, the file has 25 (trailing bytes)");
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_NE(refusal(good.substr(0, size)), "accepted") << size;
  }
  expect_refused(good.substr(0, good.size() - 1), "cut short");
  expect_refused(npy(dictionary("<f4", "(9223372036854775807,)"), "1234"),
                 "more bytes than can be addressed");
  expect_refused(npy(dictionary("<f4", "(4611686018427387904, 4)"), "1234"),
                 "more bytes than can be addressed");
  expect_refused(npy(dictionary("<f4", "(4294967296, 4294967296, 0)"), ""),
                 "more bytes than can be addressed");
  expect_refused(npy(dictionary("<f4", "(1000000000000,)"), "1234"), "cut short");
  std::string lying = good;
  lying[8] = '\xff';
  lying[9] = '\x7f';
  expect_refused(lying, "promises a header of 32767 bytes");
  std::string huge = npy(dictionary("<f4", "(2, 3)"), "", 2);
  huge[11] = '\x7f';
  expect_refused(huge, "has a header of");
}

TEST(Npy, RefusesOtherFiles) {
  expect_refused("", "is not a .npy file");
  expect_refused("PK\x03\x04 a zip archive, as .npz files are", "is not a .npy file");
  std::string version = npy(dictionary("<f4", "(1,)"), "1234", 4);
  expect_refused(version, "version 4.0");
  version[6] = 1;
  version[7] = 1;
  expect_refused(version, "version 1.1");
}

TEST(Npy, FilesThatCannotBeReadAreRefused) {
  const ScratchDirectory directory;
  EXPECT_THROW(formats::read_npy(directory.file("missing.npy")), FileError);
  EXPECT_THROW(formats::read_npy(directory.file("")), FileError);  // a directory
  EXPECT_THROW(formats::read_npy(directory.write("empty.npy", "")), FileError);
  EXPECT_THROW(formats::read_npy("/dev/zero"), FileError);
}

TEST(Npy, WritesWhatItReads) {
  const ScratchDirectory directory;
  const std::vector<float> values{1, 2, 3, 4, 5, 6};
  const std::string path = directory.file("a.npy");
  formats::write_npy(path, ConstView(values.data(), {2, 3}));
  const std::string file = ScratchDirectory::read(path);
  EXPECT_EQ(file.size(), 128u + 24u);  // the header padded so that data begins on 64 bytes
  EXPECT_NE(file.find("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"),
            std::string::npos);
  const Array array = formats::read_npy(path);
  EXPECT_EQ(at<float>(array, 1, 2), 6.0f);

  formats::write_npy(path, ConstView(values.data(), {3, 2}, {1, 3}));  // transposed
  EXPECT_EQ(at<float>(formats::read_npy(path), 2, 0), 3.0f);
  EXPECT_EQ(at<float>(formats::read_npy(path), 0, 1), 4.0f);
  EXPECT_EQ(at<float>(array, 1, 2), 6.0f) << "a mapped file that is replaced stays as it was";
  EXPECT_EQ(directory.file_count(), 1u);
}

TEST(Npy, WritesEveryShapeAndType) {
  const ScratchDirectory directory;
  const std::string path = directory.file("a.npy");
  const std::vector<std::int64_t> whole{1, 2, 3};
  formats::write_npy(path, ConstView(whole.data(), {3}));
  EXPECT_EQ(formats::shape_text(formats::read_npy(path).view.layout), "[3]");
  EXPECT_EQ(formats::read_npy(path).view.type, ElementType::int64);
  formats::write_npy(path, ConstView(whole.data(), {0, 4}));
  EXPECT_EQ(formats::shape_text(formats::read_npy(path).view.layout), "[0, 4]");
  formats::write_npy(path, ConstView(whole.data(), ElementType::int64, {}));
  EXPECT_EQ(formats::read_npy(path).view.layout.axes, 0);
  const std::vector<float16> halves(6);
  formats::write_npy(path, ConstView(halves.data(), {1, 2, 3}));
  EXPECT_EQ(formats::read_npy(path).view.type, ElementType::float16);
  const std::vector<bfloat16> brain(6);
  EXPECT_THROW(formats::write_npy(path, ConstView(brain.data(), {6})), FileError);
  EXPECT_EQ(directory.file_count(), 1u);
}

TEST(OutputFile, AppearsOnlyWhenComplete) {
  const ScratchDirectory directory;
  const std::string path = directory.write("out.npy", "old");
  {
    formats::OutputFile file(path);
    file.write("new", 3);
    EXPECT_EQ(ScratchDirectory::read(path), "old");
  }
  EXPECT_EQ(ScratchDirectory::read(path), "old");
  EXPECT_EQ(directory.file_count(), 1u) << "the part is removed";
  {
    formats::OutputFile file(path);
    file.write("new", 3);
    base::remove_unfinished_parts();  // what a signal handler does
    EXPECT_EQ(directory.file_count(), 1u);
    EXPECT_THROW(file.commit(), FileError);
  }
  EXPECT_EQ(ScratchDirectory::read(path), "old");
  EXPECT_THROW(formats::OutputFile("/dev/null"), FileError);
  std::filesystem::create_symlink("/dev/null", directory.file("link"));
  EXPECT_EQ(
      test::refusal_of<FileError>([&] { const formats::OutputFile file(directory.file("link")); }),
      directory.file("link") + ": cannot be written: not a regular file");
  EXPECT_THROW(formats::OutputFile(directory.file("missing/out.npy")), FileError);
  EXPECT_THROW(formats::OutputFile("-"), FileError) << "a file of that name is ./-";
}

// Its name can be foreseen, and links to other files may stand there.
TEST(OutputFile, NeverOpensWhatIsAlreadyThere) {
  const ScratchDirectory directory;
  const std::string path = directory.file("out.npy"), other = directory.write("other", "mine");
  std::string part;
  {
    const formats::OutputFile first(path);
    for (const auto& entry : std::filesystem::directory_iterator(directory.file(""))) {
      if (entry.path() != other) part = entry.path().string();
    }
  }
  const std::size_t dash = part.rfind('-');
  ASSERT_NE(dash, std::string::npos);
  const int number = std::stoi(part.substr(dash + 1));
  for (int next = 1; next <= 3; ++next)
    std::filesystem::create_symlink(other,
                                    part.substr(0, dash + 1) + std::to_string(number + next));
  formats::OutputFile file(path);
  file.write("new", 3);
  file.commit();
  EXPECT_EQ(ScratchDirectory::read(path), "new");
  EXPECT_FALSE(std::filesystem::is_symlink(path));
  EXPECT_EQ(ScratchDirectory::read(other), "mine");
}

TEST(OutputFile, FinishedFilesWaitForTheirName) {
  const ScratchDirectory directory;
  const std::string path = directory.write("out.npy", "old");
  {
    formats::OutputFile file(path);
    file.write("new", 3);
    file.finish();
    EXPECT_EQ(ScratchDirectory::read(path), "old");
    EXPECT_EQ(directory.file_count(), 2u);
  }
  EXPECT_EQ(directory.file_count(), 1u) << "the part is removed";
  formats::OutputFile file(path);
  file.write("new", 3);
  file.finish();
  file.commit();
  EXPECT_EQ(ScratchDirectory::read(path), "new");
  EXPECT_EQ(directory.file_count(), 1u);
}

void write_new(const std::string& path) {
  formats::OutputFile file(path);
  file.write("new", 3);
  file.commit();
}

TEST(OutputFile, HasANameOfAnyLength) {
  const ScratchDirectory directory;
  const std::string path = directory.file(std::string(255, 'x'));
  const std::string other = directory.file(std::string(254, 'x') + "y");
  formats::OutputFile beside(other);  // begins alike
  write_new(path);
  beside.write("other", 5);
  beside.commit();
  EXPECT_EQ(ScratchDirectory::read(path), "new");
  EXPECT_EQ(ScratchDirectory::read(other), "other");
  EXPECT_EQ(directory.file_count(), 2u);
}

TEST(OutputFile, KeepsThePermissionsOfWhatItReplaces) {
  namespace fs = std::filesystem;
  const ScratchDirectory directory;
  const std::string path = directory.write("out.npy", "old");
  for (const fs::perms mode : {fs::perms(0600), fs::perms(0666), fs::perms(0444)}) {
    fs::permissions(path, mode);
    write_new(path);
    EXPECT_EQ(ScratchDirectory::read(path), "new");
    EXPECT_EQ(fs::status(path).permissions(), mode);
  }
}

TEST(OutputFile, WritesWhereASymbolicLinkPoints) {
  namespace fs = std::filesystem;
  const ScratchDirectory directory, elsewhere;
  const std::string link = directory.file("out.npy");
  fs::create_symlink(elsewhere.write("data.npy", "old"), directory.file("near.npy"));
  fs::create_symlink("near.npy", link);  // relative, and a link to a link
  write_new(link);
  EXPECT_EQ(ScratchDirectory::read(elsewhere.file("data.npy")), "new");
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(directory.file_count(), 2u);
  EXPECT_EQ(elsewhere.file_count(), 1u);

  fs::create_symlink(elsewhere.file("fresh.npy"), directory.file("dangling.npy"));
  write_new(directory.file("dangling.npy"));
  EXPECT_EQ(ScratchDirectory::read(elsewhere.file("fresh.npy")), "new");

  fs::create_symlink("circle.npy", directory.file("circle.npy"));
  EXPECT_THROW(formats::OutputFile(directory.file("circle.npy")), FileError);
}

}  // namespace
}  // namespace polyhead
