// polyhead look, prune and explain MODEL: what they print of real models, and what they refuse.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cli/command.hpp"
#include "cli/curve_svg.hpp"
#include "cli/exit_codes.hpp"
#include "cli/look_data.hpp"
#include "cli/probe.hpp"
#include "cli/prune_run.hpp"
#include "polyhead/error.h"
#include "support/effort.h"
#include "support/golden_model.hpp"
#include "support/run_program.hpp"
#include "support/scratch_directory.hpp"
#include "support/tiny_llama.hpp"

namespace polyhead {
namespace {

using nlohmann::json;
using test::Outcome;
using test::run_program;
using test::run_program_json;

bool fetched(const std::string& name) {
  return test::effort() != test::Effort::smoke && !test::fetched_model(name).empty();
}

class LookAtModel : public testing::TestWithParam<const char*> {};

TEST_P(LookAtModel, PrintsTheFiguresOfTransformers) {
  const std::string name = GetParam();
  if (!fetched(name)) GTEST_SKIP() << "scripts/get-model " << name << " was not run";
  const json golden = test::golden_model(name);
  std::string rows;
  for (const auto& [query, row] : golden["heads"][0]["rows"].items()) {
    rows += (rows.empty() ? "" : ",") + query;
  }
  const json found =
      run_program_json({"look", name, "--text", golden["text"].get<std::string>(), "--rows", rows});
  EXPECT_EQ(found["ids"], golden["ids"]);
  ASSERT_EQ(found["heads"].size(), golden["heads"].size());
  for (std::size_t i = 0; i < golden["heads"].size(); ++i) {
    const json &head = found["heads"][i], &expected = golden["heads"][i];
    EXPECT_EQ(head["layer"], expected["layer"]);
    EXPECT_EQ(head["head"], expected["head"]);
    EXPECT_NEAR(head["mean_entropy"].get<double>(), expected["mean_entropy"].get<double>(), 1e-4);
    for (const auto& [query, row] : expected["rows"].items()) {
      const json& weights = head["rows"][query];
      ASSERT_EQ(weights.size(), row.size());
      for (std::size_t key = 0; key < row.size(); ++key) {
        ASSERT_NEAR(weights[key].get<double>(), row[key].get<double>(), 1e-4) << i;
      }
    }
  }
  if (golden.contains("embedding")) {
    for (std::size_t i = 0; i < golden["embedding"].size(); ++i) {
      EXPECT_NEAR(found["embedding"][i].get<double>(), golden["embedding"][i].get<double>(), 1e-4);
    }
    return;
  }
  EXPECT_NEAR(found["nll"].get<double>(), golden["nll"].get<double>(), 1e-4);
  for (std::size_t i = 0; i < 10; ++i) {
    EXPECT_EQ(found["top"][i][0], golden["top"][i][0]);
    const double logit = golden["top"][i][1].get<double>();
    EXPECT_NEAR(found["top"][i][1].get<double>(), logit, 2e-3 * std::abs(logit));
  }
}

INSTANTIATE_TEST_SUITE_P(Fetched, LookAtModel, testing::Values("smollm2", "gemma3", "minilm"));

TEST(Look, TablesNameRolesHeadsAndNextWords) {
  if (!fetched("smollm2")) GTEST_SKIP() << "scripts/get-model smollm2 was not run";
  const Outcome made = run_program({"look", "smollm2", "--text",
                                    "When Mary and John went to the store, John gave a drink to",
                                    "--layers", "10-11", "--heads", "17.4", "--probe"});
  ASSERT_EQ(made.status, cli::kSuccess) << made.err;
  for (const char* part : {"19 heads in 3 of 30 layers", "Heads by role in this text", "resting",
                           "induction", "The most telling heads", "Each head", "17.4",
                           "What comes next", "' Mary'", "On repeated random tokens"}) {
    EXPECT_NE(made.out.find(part), std::string::npos) << part << "\n" << made.out;
  }
}

TEST(Look, RowsMayBeRanges) {
  const test::ScratchDirectory folder;
  const std::string model = test::tiny_llama(folder);
  const auto rows = [&](const char* list) {
    const json made =
        run_program_json({"look", model, "--text", "abcdefg", "--layers", "1", "--rows", list});
    EXPECT_EQ(made["heads"].size(), 4u);
    return made["heads"][2]["rows"];
  };
  EXPECT_EQ(rows("0,2-4"), rows("2,3,4,0"));
  EXPECT_EQ(rows("2-4").size(), 3u);
  EXPECT_TRUE(rows("2-4").contains("3"));
}

TEST(Look, SaysHowManyLayersItLooksAt) {
  const test::ScratchDirectory folder;
  const std::string model = test::tiny_llama(folder);
  const auto told = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = {"look", model, "--text", "abcd"};
    all.insert(all.end(), more.begin(), more.end());
    return run_program(all).out;
  };
  EXPECT_NE(told({}).find(" 8 heads in 2 layers,"), std::string::npos) << told({});
  EXPECT_NE(told({"--layers", "1"}).find(" 4 heads in 1 of 2 layers,"), std::string::npos);
  EXPECT_NE(told({"--heads", "0.1,1.1"}).find(" 2 heads in 2 layers,"), std::string::npos);
}

TEST(Look, WritesThePage) {
  if (!fetched("minilm")) GTEST_SKIP() << "scripts/get-model minilm was not run";
  const test::ScratchDirectory folder;
  const std::string path = folder.file("heads.html");
  const json found =
      run_program_json({"look", "minilm", "--text", "The cat sat on the mat.", "-o", path});
  EXPECT_EQ(found["heads"].size(), 72u);
  const std::string page = test::ScratchDirectory::read(path);
  EXPECT_NE(page.find("</html>"), std::string::npos);
}

TEST(Look, RefusesWhatItCannotShow) {
  if (!fetched("minilm")) GTEST_SKIP() << "scripts/get-model minilm was not run";
  const auto refused = [](std::vector<std::string> options, const std::string& because) {
    options.insert(options.begin(), {"look", "minilm"});
    const Outcome made = run_program(options);
    EXPECT_NE(made.status, cli::kSuccess);
    EXPECT_EQ(made.out, "");
    EXPECT_NE(made.err.find(because), std::string::npos) << made.err;
  };
  refused({}, "--text, --file or - is needed");
  refused({"--text", "a", "--open"}, "--open needs -o");
  refused({"--text", "a", "-o", "/nowhere/page.html"}, "/nowhere/page.html: cannot be written");
  refused({"--file", POLYHEAD_TEST_DATA}, "is a folder, expected a file");
  refused({"--text", "a", "--rows", "1"}, "--rows goes with --json");
  refused({"--text", "a", "--rows", "9", "--json"}, "--rows 9 is not one of 3 tokens");
  refused({"--text", "a", "--layers", "3-1"}, "3-1 runs backwards");
  refused({"--text", "a", "--layers", "6"}, "6 is not within 0 .. 5");
  refused({"--text", "a", "--heads", "7"}, "'7' is not LAYER.HEAD");
  std::string words;
  for (int i = 0; i < 600; ++i) words += "a ";
  refused({"--text", words}, "tokens, the model's context 512");
}

// The trace of a real head is attention()'s own row, under the model's names of heads.
TEST(Look, ExplainsAHeadOfAModel) {
  if (!fetched("smollm2")) GTEST_SKIP() << "scripts/get-model smollm2 was not run";
  const json golden = test::golden_model("smollm2");
  const json found =
      run_program_json({"explain", "smollm2", "--layer", "16", "--head", "4", "--query", "14",
                        "--text", golden["text"].get<std::string>()});
  const json& expected = golden["heads"][16 * 9 + 4]["rows"]["14"];
  const json& weights = found["heads"][0]["weights"][0];
  for (std::size_t key = 0; key < expected.size(); ++key) {
    EXPECT_NEAR(weights[key].get<double>(), expected[key].get<double>(), 1e-4);
  }
  const Outcome text = run_program({"explain", "smollm2", "--layer", "16", "--head", "4", "--query",
                                    "14", "--text", golden["text"].get<std::string>()});
  EXPECT_NE(text.out.find("Head 4"), std::string::npos) << text.out;
  EXPECT_NE(run_program({"explain", "smollm2", "--layer", "30", "--text", "a"})
                .err.find("--layer 30 (the model has 0 to 29)"),
            std::string::npos);
  EXPECT_NE(run_program({"explain", "smollm2", "--layer", "0"})
                .err.find("--layer needs --text or --file"),
            std::string::npos);
}

TEST(Prune, ChangesAreOfEachHeadAlone) {
  const models::ModelFile file(POLYHEAD_TEST_DATA "/tiny/llama3");
  const models::Model model(file);
  const std::vector<std::int32_t> ids{3, 1, 4, 1, 5, 9, 2, 6, 5, 3};
  std::ostringstream out, err;
  const cli::Pruning made = cli::prune_heads(model, ids, 3, {out, err});
  EXPECT_EQ(made.nll, model.negative_log_likelihood(ids));
  models::HeadMask mask;
  for (const auto& layer : model.config().layers) {
    mask.off.emplace_back(static_cast<std::size_t>(layer.q_heads), false);
  }
  const auto nll = [&] { return model.negative_log_likelihood(ids, {nullptr, &mask}); };
  for (const cli::HeadLoss& head : made.heads) {
    auto flag = mask.off[static_cast<std::size_t>(head.layer)][static_cast<std::size_t>(head.head)];
    flag = true;
    EXPECT_EQ(head.nll, nll());
    EXPECT_EQ(head.change, head.nll - made.nll);
    flag = false;
  }
  EXPECT_TRUE(std::is_sorted(
      made.heads.begin(), made.heads.end(),
      [](const cli::HeadLoss& a, const cli::HeadLoss& b) { return a.change < b.change; }));
  ASSERT_EQ(made.curve.size(), 4u);
  EXPECT_EQ(made.curve.front().nll, made.nll);
  for (const cli::CurvePoint& point : made.curve) {
    for (std::size_t i = 0; i < made.heads.size(); ++i) {
      mask.off[static_cast<std::size_t>(made.heads[i].layer)]
              [static_cast<std::size_t>(made.heads[i].head)] = i < point.off;
    }
    EXPECT_EQ(point.nll, nll());
  }
  EXPECT_EQ(made.curve.back().off, made.heads.size());
}

TEST(Prune, LayersBeforeTheFirstHeadOffAreNotRunAgain) {
  const models::ModelFile file(POLYHEAD_TEST_DATA "/tiny/llama3");
  const models::Model model(file);
  std::vector<std::int32_t> ids(1100);  // several chunks
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i * i % 61);
  ids.resize(std::min(ids.size(), static_cast<std::size_t>(model.config().context_length)));
  struct : models::Observer {
    std::vector<std::int64_t> layers;
    void attended(const models::AttentionSeen& seen) override { layers.push_back(seen.layer); }
  } seen;
  models::HeadMask mask;
  for (const auto& layer : model.config().layers)
    mask.off.emplace_back(static_cast<std::size_t>(layer.q_heads), false);
  const std::size_t last = mask.off.size() - 1;
  ASSERT_GT(last, 0u);
  mask.off[last][1] = true;
  models::LayerInputs inputs;
  EXPECT_THROW(model.negative_log_likelihood(ids, {nullptr, &mask}, &inputs), InvalidArgument);
  EXPECT_EQ(model.negative_log_likelihood(ids, {}, &inputs), model.negative_log_likelihood(ids));
  EXPECT_EQ(model.negative_log_likelihood(ids, {&seen, &mask}, &inputs),
            model.negative_log_likelihood(ids, {nullptr, &mask}));
  ASSERT_FALSE(seen.layers.empty());
  for (const std::int64_t layer : seen.layers) EXPECT_EQ(layer, static_cast<std::int64_t>(last));
  const std::span<const std::int32_t> shorter = std::span(ids).first(ids.size() - 1);
  EXPECT_THROW(model.negative_log_likelihood(shorter, {nullptr, &mask}, &inputs), InvalidArgument);
}

// Half of them would be taken for all.
TEST(Prune, InputsOfARunThatFailedAreNone) {
  const models::Model model{models::ModelFile(POLYHEAD_TEST_DATA "/tiny/llama3")};
  const std::vector<std::int32_t> ids = {1, 2, 3, 4, 5};
  struct : models::Observer {
    void attended(const models::AttentionSeen&) override { throw std::runtime_error("not today"); }
  } failing;
  models::HeadMask mask;
  for (const auto& layer : model.config().layers)
    mask.off.emplace_back(static_cast<std::size_t>(layer.q_heads), false);
  mask.off.back()[0] = true;
  models::LayerInputs inputs;
  EXPECT_THROW(model.negative_log_likelihood(ids, {&failing, nullptr}, &inputs),
               std::runtime_error);
  EXPECT_TRUE(inputs.of_layer.empty());
  EXPECT_THROW(model.negative_log_likelihood(ids, {nullptr, &mask}, &inputs), InvalidArgument);
}

TEST(Prune, RefusesEncoders) {
  if (!fetched("minilm")) GTEST_SKIP() << "scripts/get-model minilm was not run";
  EXPECT_NE(run_program({"prune", "minilm", "--text", "a b"}).err.find("the model is an encoder"),
            std::string::npos);
}

TEST(Delimiters, ArePunctuationOfTextThatIsUtf8) {
  models::TokenizerSpec spec;
  spec.source = "pieces";
  spec.kind = models::TokenizerKind::word_piece;
  spec.unknown = 0;
  const std::vector<std::pair<std::string, bool>> flagged{
      {"[UNK]", true},          // no text, as control tokens are none
      {"##...", true},          // joined to what is before it
      {"$", true},              // a symbol of ASCII
      {"\xe3\x80\x82", true},   // U+3002, the full stop of East Asia
      {"a,", false},            // more than punctuation
      {"\xe2\x82\xac", false},  // U+20AC, a symbol beyond ASCII
      {"\xe0\x80\xac", false},  // a comma in three bytes, which is no UTF-8
  };
  std::vector<std::int32_t> ids;
  for (const auto& [piece, expected] : flagged) {
    ids.push_back(static_cast<std::int32_t>(ids.size()));
    spec.pieces.push_back(piece);
    spec.kinds.push_back(models::TokenKind::normal);
  }
  spec.kinds[0] = models::TokenKind::unknown;
  const std::vector<std::uint8_t> found = cli::delimiters_of(models::Tokenizer(spec), ids);
  for (std::size_t i = 0; i < flagged.size(); ++i) EXPECT_EQ(found[i] != 0, flagged[i].second) << i;
}

TEST(CurveSvg, DrawsEveryPointWithinItsAxes) {
  const cli::Curve curve{"a <b> & c", "x", "y", {{0, 3.5}, {135, 3.75}, {270, 11.2}}};
  const std::string svg = cli::curve_svg(curve);
  EXPECT_NE(svg.find("a &lt;b&gt; &amp; c"), std::string::npos);
  std::size_t circles = 0;
  for (std::size_t at = 0; (at = svg.find("<circle", at)) != std::string::npos; ++at) ++circles;
  EXPECT_EQ(circles, curve.points.size());
  for (std::size_t at = 0; (at = svg.find("cx=\"", at)) != std::string::npos; ++at) {
    const double x = std::stod(svg.substr(at + 4));
    EXPECT_GE(x, 72);
    EXPECT_LE(x, 696);
  }
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(cli::curve_svg({"t", "x", "y", {}}).find("nan"), std::string::npos);
  EXPECT_EQ(cli::curve_svg({"t", "x", "y", {{1, 2}}}).find("inf"), std::string::npos);
}

}  // namespace
}  // namespace polyhead
