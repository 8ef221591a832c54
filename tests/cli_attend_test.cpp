// polyhead attend, run in this process: that it writes what the library computes, and refuses the
// rest by name.
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/exit_codes.hpp"
#include "models/formats/npy.hpp"
#include "polyhead/attention.h"
#include "polyhead/inspect.h"
#include "support/attend_arrays.hpp"
#include "support/run_program.hpp"
#include "support/scratch_directory.hpp"

namespace polyhead {
namespace {

using nlohmann::json;
using test::AttendArrays;
using test::expect_refused;
using test::Outcome;
using test::run_program;
using test::run_program_json;
using test::ScratchDirectory;

TEST(Attend, WritesWhatTheLibraryComputes) {
  const AttendArrays arrays;
  const json summary = run_program_json(arrays.command({"--causal"}));
  EXPECT_EQ(summary["results"][0]["shape"], json::array({6, 4, 8}));
  EXPECT_EQ(arrays.output(), arrays.expected(causal()));
  EXPECT_EQ(run_program(arrays.command({"--window", "2,1", "--soft-cap", "2", "--scale", "0.5",
                                        "--alibi", "--sink", "1,2,3,4"}))
                .status,
            0);
  const std::vector<float> sink{1, 2, 3, 4};
  Modifiers modifiers;
  modifiers.soft_cap = 2.0f;
  modifiers.scale = 0.5f;
  modifiers.alibi.use_default_slopes = true;
  modifiers.sink = {sink.data(), {4}};
  EXPECT_EQ(arrays.output(), arrays.expected(window(2, 1), modifiers));
}

TEST(Attend, WeightsAndStatisticsAgreeWithTheOutput) {
  const AttendArrays arrays;
  const auto file = [&](const char* name) { return arrays.directory.file(name); };
  EXPECT_EQ(run_program(arrays.command({"--causal", "--weights", file("w.npy"), "--weights-heads",
                                        "3,1", "--weights-queries", "2:3", "--lse", file("lse.npy"),
                                        "--max-weight", file("m.npy"), "--max-key", file("key.npy"),
                                        "--entropy", file("e.npy")}))
                .status,
            0);
  const std::vector<float> weights = arrays.output("w.npy");  // [2 heads, 3 queries, 6 keys]
  ASSERT_EQ(weights.size(), 36u);
  const std::vector<float> largest = arrays.output("m.npy");  // [6, 4]
  for (std::size_t h = 0; h < 2; ++h) {
    for (std::size_t i = 0; i < 3; ++i) {
      double sum = 0.0;
      float most = 0.0f;
      for (std::size_t j = 0; j < 6; ++j) {
        sum += weights[(h * 3 + i) * 6 + j];
        most = std::max(most, weights[(h * 3 + i) * 6 + j]);
      }
      // Each weight is within a few float32 roundings of its share of the row.
      EXPECT_NEAR(sum, 1.0, 1e-5);
      EXPECT_NEAR(largest[(i + 2) * 4 + (h == 0 ? 3 : 1)], most, 1e-5);
    }
  }
  EXPECT_EQ(formats::shape_text(formats::read_npy(file("lse.npy")).view.layout), "[6, 4]");
  EXPECT_EQ(formats::read_npy(file("key.npy")).view.type, ElementType::int64);
}

TEST(Attend, LayoutsAndTypes) {
  const AttendArrays arrays;
  const std::vector<float> wanted = arrays.expected({});
  // The same arrays as [heads, tokens, dim].
  for (const auto& [name, data, heads] :
       {std::tuple("q.npy", &arrays.q, 4), std::tuple("k.npy", &arrays.k, 2),
        std::tuple("v.npy", &arrays.v, 2)}) {
    formats::write_npy(arrays.directory.file(name),
                       ConstView(data->data(), {heads, 6, 8}, {8, heads * 8, 1}));
  }
  const json summary = run_program_json(arrays.command({"--layout", "bhtd"}));
  EXPECT_EQ(summary["results"][0]["shape"], json::array({4, 6, 8}));
  const std::vector<float> out = arrays.output();
  for (std::size_t h = 0; h < 4; ++h) {
    for (std::size_t i = 0; i < 48; ++i)
      EXPECT_EQ(out[h * 48 + i], wanted[(i / 8) * 32 + h * 8 + i % 8]);
  }
  const json half = run_program_json(
      arrays.command({"--layout", "bhtd", "--type", "float16", "--out-type", "float16"}));
  EXPECT_EQ(half["q"]["type"], "float16");
  EXPECT_EQ(half["results"][0]["type"], "float16");
}

TEST(Attend, DescribesWhatItWouldRun) {
  const AttendArrays arrays;
  const auto file = [&](const char* name) { return arrays.directory.file(name); };
  std::vector<float16> v;
  for (const float value : arrays.v) v.push_back(to_float16(value));
  formats::write_npy(file("v.npy"), ConstView(v.data(), {6, 2, 8}));
  const std::vector<std::string> described{"attend",      file("q.npy"), file("k.npy"),
                                           file("v.npy"), "--causal",    "--describe"};
  ASSERT_EQ(run_program(arrays.command({"--causal"})).status, 0);
  EXPECT_NE(run_program(described).out.find("q float32, k float32, v float16, head_dim 8"),
            std::string::npos)
      << run_program(described).err;
  EXPECT_NE(run_program_json(described)["plan"].get<std::string>().find("work items"),
            std::string::npos);
  for (const char* option :
       {"-o", "--lse", "--weights", "--entropy", "--max-weight", "--max-key"}) {
    std::vector<std::string> with = described;
    with.insert(with.end(), {option, file("more.npy")});
    expect_refused(with, 2,
                   std::string(option == std::string("-o") ? "--output" : option) +
                       " changes nothing here: --describe");
  }
}

TEST(Attend, TheOutputMayBeLeftOut) {
  const AttendArrays arrays;
  const auto file = [&](const char* name) { return arrays.directory.file(name); };
  const auto written = [&](const char* name) { return ScratchDirectory::read(file(name)); };
  ASSERT_EQ(run_program(arrays.command({"--lse", file("lse.npy")})).status, 0);
  const std::vector<std::string> inputs{"attend", file("q.npy"), file("k.npy"), file("v.npy")};
  std::vector<std::string> alone = inputs;
  alone.insert(alone.end(), {"--lse", file("alone.npy")});
  const json summary = run_program_json(alone);
  ASSERT_EQ(summary["results"].size(), 1u);
  EXPECT_EQ(summary["results"][0]["file"], file("alone.npy"));
  EXPECT_EQ(written("alone.npy"), written("lse.npy"));
  expect_refused(inputs, 2, "-o FILE is needed, another result's file or --describe");
  alone.insert(alone.end(), {"--out-type", "float16"});
  expect_refused(alone, 2, "--out-type needs --output");
}

TEST(Attend, RefusesListsThatAreNone) {
  const AttendArrays arrays;
  expect_refused(arrays.command({"--prefix", "1,000"}), 2,
                 "--prefix: '000' is not a whole number of 64 bits");
  expect_refused(arrays.command({"--prefix", "1 2"}), 2,
                 "--prefix: '1 2' is not a whole number of 64 bits");
  expect_refused(arrays.command({"--lengths", "6,"}), 2,
                 "--lengths: '' is not a whole number of 64 bits");
  expect_refused(arrays.command({"--sink", "1,2,3 4,5"}), 2,
                 "--sink: '3 4' is not a number of 32 bits");
  EXPECT_EQ(run_program(arrays.command({"--sink", " 1, 2 ,3,4"})).status, 0);
}

TEST(Attend, ListsInFilesHaveOneAxis) {
  const AttendArrays arrays;
  const std::int32_t none = 0;
  const std::string list = arrays.directory.file("list.npy");
  // More entries than the file has bytes, and not one of them in it.
  formats::write_npy(list, ConstView(&none, {std::int64_t{5000000000}, std::int64_t{0}}));
  const std::string shape = list + ": has shape [5000000000, 0] (";
  expect_refused(arrays.command({"--q-offsets", "0,6", "--kv-offsets", list}), 1,
                 shape + "--kv-offsets takes one axis)");
  expect_refused(arrays.command({"--weights", "w.npy", "--weights-heads", list}), 1,
                 shape + "--weights-heads takes one axis)");
  formats::write_npy(list, ConstView(arrays.q.data(), {1, 4}));
  expect_refused(arrays.command({"--sink", list}), 1, "has shape [1, 4] (--sink takes one axis)");
}

TEST(Attend, ANumberThatIsTooSmallIsNotNone) {
  const AttendArrays arrays;
  for (const char* option : {"--scale", "--soft-cap", "--dropout"}) {
    expect_refused(arrays.command({option, "1e-60"}), 2,
                   std::string(option) + ": 1e-60 is too small for a number of 32 bits");
    expect_refused(arrays.command({option, "1e400"}), 2, "1e400 is too large for a number of 32");
    expect_refused(arrays.command({option, "1x"}), 2, std::string(option) + ": 1x is not a number");
  }
}

TEST(Attend, ResultsThatCannotBeAddressedAreRefused) {
  const AttendArrays arrays;
  const auto keys = std::int64_t{1} << 61;  // of no numbers: a file of a few bytes
  for (const auto& [name, tokens] :
       {std::pair("q.npy", std::int64_t{1}), std::pair("k.npy", keys), std::pair("v.npy", keys)}) {
    formats::write_npy(arrays.directory.file(name),
                       ConstView(arrays.q.data(), {tokens, std::int64_t{1}, std::int64_t{0}}));
  }
  expect_refused(arrays.command({"--weights", arrays.directory.file("w.npy")}), 1,
                 "an array of float32 [1, 1, 1, 2305843009213693952] cannot be addressed");
}

TEST(Attend, RefusesPositionsThatNothingUses) {
  const AttendArrays arrays;
  const char* const unused = " changes nothing here: no mask and no modifier";
  expect_refused(arrays.command({"--align", "end"}), 2, std::string("--align") + unused);
  expect_refused(arrays.command({"--q-start", "3", "--lengths", "5"}), 2,
                 std::string("--q-start") + unused);
  for (const std::vector<std::string>& uses :
       std::vector<std::vector<std::string>>{{"--causal"},
                                             {"--window", "1,0"},
                                             {"--prefix", "2"},
                                             {"--alibi"},
                                             {"--alibi-slopes", "1,1,1,1"},
                                             {"--dropout", "0.5"}}) {
    std::vector<std::string> options{"--align", "end"};
    options.insert(options.end(), uses.begin(), uses.end());
    EXPECT_EQ(run_program(arrays.command(options)).status, 0) << uses[0];
  }
}

TEST(Attend, FortranOrderDoublesAndTwoAxes) {
  const AttendArrays arrays;
  const auto file = [&](const char* name) { return arrays.directory.file(name); };
  // q of one head as [tokens, dim] in Fortran order and float64; k and v plain.
  std::vector<double> q;
  for (std::size_t d = 0; d < 8; ++d) {
    for (std::size_t i = 0; i < 6; ++i) q.push_back(arrays.q[i * 8 + d]);
  }
  std::string header = "{'descr': '<f8', 'fortran_order': True, 'shape': (6, 8), }\n";
  std::string bytes("\x93NUMPY\1\0", 8);
  bytes += static_cast<char>(header.size());
  bytes += '\0';
  bytes += header + std::string(reinterpret_cast<const char*>(q.data()), q.size() * sizeof(double));
  arrays.directory.write("q.npy", bytes);
  formats::write_npy(file("k.npy"), ConstView(arrays.k.data(), {6, 8}));
  formats::write_npy(file("v.npy"), ConstView(arrays.v.data(), {6, 8}));
  EXPECT_EQ(run_program_json(arrays.command())["results"][0]["shape"], json::array({6, 8}));
  std::vector<float> wanted(48);
  AttentionArguments call;
  call.q = {arrays.q.data(), {1, 6, 1, 8}};
  call.k = {arrays.k.data(), {1, 6, 1, 8}};
  call.v = {arrays.v.data(), {1, 6, 1, 8}};
  call.out = {wanted.data(), {1, 6, 1, 8}};
  attention(call);
  EXPECT_EQ(arrays.output(), wanted);
}

TEST(Attend, RaggedBatches) {
  const AttendArrays arrays;
  EXPECT_EQ(
      run_program(arrays.command({"--q-offsets", "0,2,6", "--kv-offsets", "0,3,6", "--causal",
                                  "--align", "end", "--lse", arrays.directory.file("lse.npy")}))
          .status,
      0);
  std::vector<float> wanted(arrays.q.size());
  const std::vector<std::int64_t> q_offsets{0, 2, 6}, kv_offsets{0, 3, 6};
  AttentionArguments call;
  call.q = {arrays.q.data(), {6, 4, 8}};
  call.k = {arrays.k.data(), {6, 2, 8}};
  call.v = {arrays.v.data(), {6, 2, 8}};
  call.out = {wanted.data(), {6, 4, 8}};
  call.q_offsets = {q_offsets.data(), {3}};
  call.kv_offsets = {kv_offsets.data(), {3}};
  call.mask = causal(Align::end);
  attention(call);
  EXPECT_EQ(arrays.output(), wanted);
  EXPECT_EQ(arrays.output("lse.npy").size(), 24u);
  const std::string lse = arrays.directory.file("lse.npy"), key = arrays.directory.file("key.npy");
  EXPECT_EQ(run_program(arrays.command({"--q-offsets", "0,2,5", "--kv-offsets", "0,3,6", "--lse",
                                        lse, "--max-key", key}))
                .status,
            0);
  EXPECT_EQ(arrays.output("lse.npy")[5 * 4], -std::numeric_limits<float>::infinity())
      << "the last query is nobody's";
  EXPECT_GT(arrays.output("lse.npy")[5 * 4 - 1], -std::numeric_limits<float>::infinity());
  const formats::Array keys = formats::read_npy(key);
  EXPECT_EQ(static_cast<const std::int64_t*>(keys.view.data)[5 * 4], -1);
  expect_refused(arrays.command({"--q-offsets", "0,6", "--kv-offsets", "0,6", "--layout", "bhtd"}),
                 2, "--layout bhtd: a ragged batch is [tokens, heads, dim]");
}

TEST(Attend, WeightsOfRaggedBatches) {
  const AttendArrays arrays;
  const std::string file = arrays.directory.file("weights.npy");
  EXPECT_EQ(run_program(arrays.command({"--q-offsets", "0,2,6", "--kv-offsets", "0,1,6",
                                        "--weights", file, "--weights-heads", "2,0"}))
                .status,
            0);
  const formats::Array found = formats::read_npy(file);
  ASSERT_EQ(formats::shape_text(found.view.layout), "[2, 2, 4, 5]");
  std::vector<float> out(arrays.q.size()), lse(24), wanted(2 * 2 * 4 * 5);
  const std::vector<std::int64_t> q_offsets{0, 2, 6}, kv_offsets{0, 1, 6}, heads{2, 0};
  AttentionArguments call;
  call.q = {arrays.q.data(), {6, 4, 8}};
  call.k = {arrays.k.data(), {6, 2, 8}};
  call.v = {arrays.v.data(), {6, 2, 8}};
  call.out = {out.data(), {6, 4, 8}};
  call.lse = {lse.data(), {6, 4}};
  call.q_offsets = {q_offsets.data(), {3}};
  call.kv_offsets = {kv_offsets.data(), {3}};
  attention(call);
  inspect(call, {.weights = {wanted.data(), {2, 2, 4, 5}}, .heads = {heads.data(), {2}}});
  EXPECT_EQ(arrays.output("weights.npy"), wanted);
  expect_refused(arrays.command({"--q-offsets", "0,2,6", "--kv-offsets", "0,1,6", "--weights", file,
                                 "--weights-queries", "2:3"}),
                 1, "--weights-queries 2:3 (q has 4 queries");
}

TEST(Attend, EachResultHasAFileOfItsOwn) {
  const AttendArrays arrays;
  const std::string out = arrays.directory.file("out.npy");
  std::filesystem::create_symlink("out.npy", arrays.directory.file("link.npy"));
  arrays.directory.write("out.npy", "old");
  expect_refused(arrays.command({"--lse", out}), 2, "--output and --lse name one file");
  expect_refused(arrays.command({"--lse", arrays.directory.file("./out.npy")}), 2, "--lse");
  expect_refused(arrays.command({"--entropy", arrays.directory.file("link.npy")}), 2, "--entropy");
  std::filesystem::create_symlink("fresh.npy", arrays.directory.file("dangling.npy"));
  expect_refused(arrays.command({"--lse", arrays.directory.file("fresh.npy"), "--entropy",
                                 arrays.directory.file("dangling.npy")}),
                 2, "--lse and --entropy name one file");
  const std::string key = arrays.directory.file("key.npy");
  expect_refused(arrays.command({"--max-key", key, "--max-weight", key}), 2,
                 "--max-weight and --max-key name one file");
  expect_refused(arrays.command({"--lse", "-"}), 2, "--lse: '-' is not a file");
  expect_refused(arrays.command({"--lse", "lse.safetensors"}), 2,
                 "--lse: 'lse.safetensors' is named as a safetensors file, expected a name for an");
  expect_refused(arrays.command({"--lse", arrays.directory.file("missing/lse.npy")}), 1,
                 "lse.npy: cannot be written");
  expect_refused(arrays.command({"--lse", arrays.directory.file(std::string(256, 'l'))}), 1,
                 "cannot be written: File name too long");
  EXPECT_EQ(ScratchDirectory::read(out), "old") << "refused before anything was computed";
}

TEST(Attend, RefusalsNameOptions) {
  const AttendArrays arrays;
  formats::write_npy(arrays.directory.file("q.npy"), ConstView(arrays.q.data(), {3, 4, 8}));
  expect_refused(arrays.command({"--causal"}), 1,
                 "--align is not given, but a causal mask depends on it where q_len (3) and kv_len "
                 "(6) or their valid lengths may differ; expected --align end, "
                 "--align start or --q-start");
  const std::string q = arrays.directory.file("q.npy");
  expect_refused(arrays.command({"--mask", q}), 1,
                 "--mask is float32, expected boolean or bit (an additive mask is --bias)");
  expect_refused({"explain", "--q", q, "--k", q, "--v", q, "--batch", "3"}, 1,
                 "--batch (3) is not within 0 .. 0");
  expect_refused(arrays.command({"--lengths", "9"}), 1, "--lengths[0] (9) is not within 0 .. 6");
  expect_refused(arrays.command({"--soft-cap", "-1"}), 2,
                 "--soft-cap: -1 is not a number from 1e-30 to 1e30, or 0");
  expect_refused(arrays.command({"--alibi", "--align", "end", "--alibi-slopes", "1,1,1,1"}), 2,
                 "--alibi-slopes and --alibi are both given");
  expect_refused(arrays.command({"--causal", "--q-start", "0", "--align", "end"}), 2,
                 "--q-start and --align are both given");
  expect_refused(arrays.command({"--causal", "--q-start", "0,1"}), 1, ": --q-start: batch is 2");
  expect_refused(arrays.command({"--prefix=-3", "--align", "end"}), 2,
                 "--prefix: -3 is not at least 0");
  expect_refused(arrays.command({"--weights", "w.npy", "--weights-heads", "99"}), 1,
                 ": --weights-heads[0] (99) is not within 0 .. 3");
  expect_refused(arrays.command({"--weights", "w.npy", "--weights-heads=-1"}), 2,
                 "--weights-heads: -1 is not at least 0");
  expect_refused(arrays.command({"--documents", "1,1,1,2,2,2"}), 1,
                 "--documents: q has 3 tokens and k 6, so --q-documents is needed");
  expect_refused(arrays.command({"--documents", "1,1,1,2,2", "--q-documents", "1,1,1"}), 1,
                 "--documents: tokens is 5, expected 6");
}

TEST(Attend, FilesKeepTheirNames) {
  const AttendArrays arrays;
  const std::string path = arrays.directory.file("my_q_offsets.npy");
  formats::write_npy(path, ConstView(arrays.q.data(), {192}));
  expect_refused(arrays.command({"--mask", path}), 1, path + ": has shape [192]");
  expect_refused(arrays.command({"--mask", path, "--packed-mask"}), 1, path + ": has shape [192]");
  formats::write_npy(path, ConstView(arrays.q.data(), {6, 32}));
  expect_refused(arrays.command({"--mask", path, "--packed-mask"}), 1,
                 path + ": a packed mask of 6 keys is uint8 with 1 bytes a row");
}

TEST(Attend, QueriesBeyondTheLastAreNamed) {
  const AttendArrays arrays;
  for (const char* queries : {"0:99999999999", "6:1", "9223372036854775807:1", "0:7"}) {
    expect_refused(
        arrays.command({"--weights", "w.npy", std::string("--weights-queries=") + queries}), 1,
        std::string("--weights-queries ") + queries + " (q has 6 queries");
  }
}

TEST(Attend, SafetensorsBfloat16) {
  const AttendArrays arrays;
  std::string header = "{", data;
  for (const auto& [name, values, heads] :
       {std::tuple("q", &arrays.q, 4), std::tuple("k", &arrays.k, 2),
        std::tuple("v", &arrays.v, 2)}) {
    const std::size_t begin = data.size();
    for (const float value : *values) {
      const std::uint16_t bits = to_bfloat16(value).bits;
      data.append(reinterpret_cast<const char*>(&bits), 2);
    }
    header += std::string(begin == 0 ? "" : ",") + "\"" + name +
              "\":{\"dtype\":\"BF16\",\"shape\":[6," + std::to_string(heads) +
              ",8],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(data.size()) +
              "]}";
  }
  header += "}";
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> (8 * i) & 0xff);
  const std::string path = arrays.directory.write("m.safetensors", file + header + data);
  const std::string out = arrays.directory.file("out.npy");
  const json summary =
      run_program_json({"attend", path + ":q", path + ":k", path + ":v", "-o", out});
  EXPECT_EQ(summary["q"]["type"], "bfloat16");
  EXPECT_EQ(summary["results"][0]["type"], "float32");
  const std::vector<float> brain = arrays.output();
  EXPECT_EQ(run_program(arrays.command({"--type", "bfloat16"})).status, 0);
  EXPECT_EQ(arrays.output(), brain) << "converted on the way in is the same";
  expect_refused({"attend", path, path, path, "-o", out}, 1, "which tensor?");
  expect_refused({"attend", path + ":x", path + ":k", path + ":v", "-o", out}, 1,
                 "has no tensor 'x' (it has 'k', 'q', 'v')");
  const json shown = run_program_json(
      {"explain", "--q", path + ":q", "--k", path + ":k", "--v", path + ":v", "--query", "5"});
  EXPECT_EQ(shown["heads"].size(), 4u);
  EXPECT_EQ(shown["heads"][3]["kv_head"], 1);
}

TEST(Attend, RefusesAndLeavesTheOutputAlone) {
  const AttendArrays arrays;
  arrays.directory.write("out.npy", "old");
  expect_refused(arrays.command({"--window", "-2,0"}), 2, "window");
  expect_refused(arrays.command({"--sink", "1,2"}), 1, "sink");
  expect_refused(arrays.command({"--mask", arrays.directory.file("q.npy")}), 1, "");
  expect_refused(arrays.command({"--lengths", "1,2"}), 1, "");
  expect_refused(arrays.command({"--dropout", "1.5"}), 2, "dropout");
  expect_refused(arrays.command({"--prefix", "x.npy"}), 1, "x.npy: cannot be opened");
  expect_refused(arrays.command({"--q-offsets", "0,6"}), 2, "come together");
  expect_refused(arrays.command({"--weights", "w.npy", "--weights-queries", "3"}), 2,
                 "FIRST:COUNT");
  formats::write_npy(arrays.directory.file("k.npy"), ConstView(arrays.k.data(), {6, 16}));
  expect_refused(arrays.command(), 1, "q has 3 axes, k 2");
  formats::write_npy(arrays.directory.file("k.npy"), ConstView(arrays.k.data(), {3, 4, 8}));
  expect_refused(arrays.command(), 1, "attention: ");
  arrays.directory.write("k.npy", "nonsense");
  expect_refused(arrays.command(), 1, "k.npy: is not a .npy file");
  EXPECT_EQ(ScratchDirectory::read(arrays.directory.file("out.npy")), "old");
}

TEST(Attend, RefusesALayoutOfHeadsForArraysWithout) {
  const AttendArrays arrays;
  for (const char* name : {"q.npy", "k.npy", "v.npy"})
    formats::write_npy(arrays.directory.file(name), ConstView(arrays.k.data(), {6, 16}));
  EXPECT_EQ(run_program(arrays.command({"--layout", "bthd"})).status, cli::kSuccess);
  expect_refused(arrays.command({"--layout", "bhtd"}), 1,
                 "q has 2 axes [6, 16] (--layout bhtd expects [heads, tokens, dim]");
}

}  // namespace
}  // namespace polyhead
