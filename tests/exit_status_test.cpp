// Which status a refusal has: 2 where the command line is wrong by itself, which is found before
// any file is looked into, and 1 for what files hold, or that there are none.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "models/formats/npy.hpp"
#include "support/run_program.hpp"
#include "support/scratch_directory.hpp"
#include "support/tiny_llama.hpp"

namespace polyhead {
namespace {

using Arguments = std::vector<std::string>;

struct Row {
  Arguments arguments;
  const char* because;
};

Arguments with(Arguments first, const Arguments& more) {
  first.insert(first.end(), more.begin(), more.end());
  return first;
}

const Arguments kAttend = {"attend", "no-q.npy", "no-k.npy", "no-v.npy", "-o", "no-folder/o.npy"};
const Arguments kExplain = {"explain", "--q", "no-q.npy", "--k", "no-k.npy", "--v", "no-v.npy"};
const Arguments kGenerate = {"generate", "no-model.gguf", "--prompt", "a"};
const Arguments kMany = {"generate", "no-model.gguf", "--prompts", "no-prompts.txt"};
const Arguments kScore = {"score", "no-model.gguf", "--file", "no-text.txt"};
const Arguments kLook = {"look", "no-model.gguf", "--file", "no-text.txt"};
const Arguments kPrune = {"prune", "no-model.gguf", "--file", "no-text.txt"};
const Arguments kPlan = {"plan", "no-model.gguf"};

// None of the files is there, so that who looks for one first says 1.
TEST(ExitStatus, TwoWhereTheCommandLineIsWrongByItself) {
  const std::vector<Row> rows = {
      {{}, "subcommand is required"},
      {{"nonsense"}, "is not a subcommand"},
      {with(kAttend, {"--isa", "avx3"}), "is no instruction set"},
      {with(kAttend, {"--threads", "0"}), "--threads"},
      {with(kAttend, {"--window", "3"}), "is not LEFT,RIGHT"},
      {with(kAttend, {"--window", "-2,0"}), "is not LEFT,RIGHT"},
      {with(kAttend, {"--first-tokens", "4"}), "--first-tokens requires --window"},
      {with(kAttend, {"--window", "3,0", "--first-tokens", "0"}), "of at least 1"},
      {with(kAttend, {"--window=-1,0", "--first-tokens", "2"}), "--first-tokens changes nothing"},
      {with(kAttend, {"--scale", "nan"}), "--scale"},
      {with(kAttend, {"--soft-cap", "-1"}), "--soft-cap"},
      {with(kAttend, {"--soft-cap", "1e-35"}), "--soft-cap"},
      {with(kAttend, {"--dropout", "1"}), "--dropout"},
      {with(kAttend, {"--lengths", "1,,2"}), "--lengths"},
      {with(kAttend, {"--lengths=-1"}), "--lengths: -1 is not at least 0"},
      {with(kAttend, {"--documents", "1,2.5"}), "--documents"},
      {with(kAttend, {"--sink", "nan"}), "--sink"},
      {with(kAttend, {"--alibi", "--alibi-slopes", "1"}), "both given"},
      {with(kAttend, {"--align", "end"}), "--align changes nothing here"},
      {with(kAttend, {"--q-offsets", "0,6"}), "come together"},
      {with(kAttend, {"--q-offsets", "0,6", "--kv-offsets", "0,-6"}), "--kv-offsets"},
      {with(kAttend, {"--weights-queries", "0:1"}), "need --weights"},
      {with(kAttend, {"--weights", "w.npy", "--weights-queries=-1:2"}), "is not FIRST:COUNT"},
      {with(kAttend, {"--weights", "w.npy", "--weights-heads", "1,,2"}), "--weights-heads"},
      {with(kExplain, {"--columns", "1-0"}), "runs backwards"},
      {with(kExplain, {"--prune", "1,x"}), "--prune"},
      {with(kExplain, {"--query", "99999999999999999999"}), "--query"},
      {with(kExplain, {"--seed", "1"}), "--seed needs --dropout"},
      {with(kExplain, {"--exercises", "--causal"}), "--causal changes nothing here"},
      {{"explain", "--batch", "1"}, "rows are one sequence"},
      {{"explain", "no.json", "--layout", "bhtd"}, "have no axis of heads"},
      {{"explain", "--q", "no-q.npy"}, "come together"},
      {{"explain", "no.json", "--text", "a"}, "need --layer"},
      {{"explain", "no.gguf", "--layer", "0"}, "--layer needs --text or --file"},
      {with(kGenerate, {"--isa", "avx3"}), "is no instruction set"},
      {with(kGenerate, {"--max-tokens", "-1"}), "--max-tokens"},
      {with(kGenerate, {"--save-cache", "-"}), "--save-cache: '-' is not a file"},
      {with(kGenerate, {"--chat", "--chat-template", "x"}), "--chat-template: x not in"},
      {{"embed", "no.gguf", "--file", "no.txt", "--out", "-"}, "--output: '-' is not a file"},
      {{"look", "no.gguf", "--text", "a", "-o", "-"}, "--output: '-' is not a file"},
      {{"prune", "no.gguf", "--text", "a", "-o", "-"}, "--output: '-' is not a file"},
      {{"plan", "no.json", "--html", "-"}, "--html: '-' is not a file"},
      {with(kGenerate, {"--temperature", "nan"}), "--temperature"},
      {with(kGenerate, {"--top-p", "2"}), "--top-p"},
      {with(kGenerate, {"--top-k", "2"}), "needs --temperature"},
      {with(kGenerate, {"--kv-keys", "channel"}), "needs --kv-type"},
      {with(kGenerate, {"--page-tokens", "8"}), "--page-tokens needs"},
      {with(kMany, {"--page-tokens", "9"}), "is not a power of two"},
      {with(kMany, {"--kv-type", "int8", "--kv-keys", "channel"}), "needs --kv-text"},
      {with(kGenerate, {"--min-p", "0.1"}), "--min-p needs --temperature"},
      {with(kGenerate, {"--repeat-last", "9"}), "--repeat-last needs --repeat-penalty"},
      {with(kGenerate, {"--repeat-penalty", "0"}), "0 is not a number above 0"},
      {with(kGenerate, {"--min-p", "1.5"}), "1.5 is not a number from 0 to 1"},
      {with(kGenerate, {"--stop", ""}), "--stop: the value is empty"},
      {with(kGenerate, {"--stop", "a", "--stop", ""}), "--stop: the value is empty"},
      {with(kGenerate, {"--file", "no-text.txt"}), "excludes"},
      {with(kMany, {"--file", "no-text.txt"}), "excludes"},
      {with(kMany, {"--save-cache", "x.kv"}), "--save-cache needs --prompt or --file"},
      {{"generate", "no-model.gguf"}, "expected --prompt, --file or --prompts"},
      {with(kScore, {"--context", "3"}), "--context"},
      {{"score", "no-model.gguf"}, "--file or --text"},
      {{"embed", "no-model.gguf"}, "--file or --text is needed"},
      {{"embed", "no-model.gguf", "--text", "a", "--file", "b"}, "excludes"},
      {{"embed", "no-model.gguf", "--text", "a", "--json", "-o", "b"}, "excludes"},
      {{"tokenize", "no-model.gguf"}, "--file, --text or --ids is needed"},
      {{"info"}, "model is required"},
      {{"look", "no-model.gguf"}, "--text, --file or - is needed"},
      {{"look", "no-model.gguf", "a"}, "'a' was not expected; --text, --file or - says"},
      {{"look", "no-model.gguf", "--text", "a", "-"}, "'-' was not expected"},
      {{"look", "no-model.gguf", "--text", "a", "--contxt", "5"}, "--contxt"},
      {with(kLook, {"--layers", "3-1"}), "runs backwards"},
      {with(kLook, {"--layers", "x"}), "'x' is not a whole number from 0, nor a range such as 3-7"},
      {with(kLook, {"--layers", "-1"}), "'-1' is not a whole number from 0, nor a range"},
      {with(kLook, {"--layers", "1-"}), "'1-' is not a whole number from 0, nor a range"},
      {with(kLook, {"--layers", "1-2-3"}), "'1-2-3' is not a whole number from 0, nor a range"},
      {with(kLook, {"--layers", "99999999999999999999"}), "is not a whole number from 0, nor"},
      {with(kLook, {"--layers", "1,0,1"}), "--layers: 1 stands in the list twice"},
      {with(kLook, {"--layers", "0-3,2-5"}), "--layers: 2 stands in the list twice"},
      {with(kLook, {"--heads", "1.2,1.2"}), "--heads: 1.2 stands in the list twice"},
      {with(kLook, {"--json", "--rows", "1,0-4"}), "--rows: 1 stands in the list twice"},
      {with(kLook, {"--json", "--rows", "1,-2"}), "--rows: '-2' is not a whole number from 0, nor"},
      {with(kExplain, {"--prune", "1,1"}), "--prune: 1 stands in the list twice"},
      {with(kExplain, {"--columns", "-1"}), "'-1' is not a whole number from 0, nor a range"},
      {with(kLook, {"--heads", "3"}), "is not LAYER.HEAD"},
      {with(kLook, {"--heads", "1.-2"}), "is not a whole number"},
      {with(kLook, {"--rows", "1"}), "--rows goes with --json"},
      {with(kLook, {"--open"}), "--open needs -o"},
      {{"prune", "no-model.gguf"}, "--file or --text"},
      {with(kPrune, {"--tokens", "1"}), "--tokens"},
      {with(kPrune, {"--points", "0"}), "--points"},
      {with(kPlan, {"--context", "1.5"}), "--context"},
      {with(kPlan, {"--context", "0"}), "--context (0)"},
      {with(kPlan, {"--batch", "0"}), "--batch (0)"},
      {with(kPlan, {"--kv-heads", "0"}), "--kv-heads (0)"},
      {with(kPlan, {"--devices", "0"}), "--devices (0)"},
      {with(kPlan, {"--chunk", "x"}), "--chunk"},
      {with(kPlan, {"--page", "x"}), "--page"},
      {with(kPlan, {"--generate", "9", "--context", "8"}), "--generate (9)"},
      {with(kPlan, {"--kv-type", "fp9"}), "--kv-type"},
      {with(kPlan, {"--weight-type", "fp9"}), "--weight-type"},
      {with(kPlan, {"--machine", "b20"}), "--machine"},
      {with(kPlan, {"--machine", "a100", "--compute", "fp8"}), "no fp8 peak"},
      {with(kPlan, {"--machine", "h100", "--memory", "0"}), "--memory"},
      {with(kPlan, {"--memory", "8GB"}), "together"},
      {with(kPlan, {"--compute", "fp9"}), "--compute"},
      {with(kPlan, {"--here", "--compute", "fp8"}), "--compute fp8 with --here needs --flops"},
      {with(kPlan, {"--split", "x"}), "--split"},
      {with(kPlan, {"--count", "x"}), "--count"},
      {with(kPlan, {"--latent-form", "x"}), "--latent-form"},
      {with(kPlan, {"--compare", "no.gguf,"}), "--compare"},
      {with(kPlan, {"--here", "--measure", "--batch", "2"}), "--batch (2)"},
      {with(kPlan, {"--layers", "2"}), "exclude each other"},
      {{"plan", "--layers", "0", "--q-heads", "4", "--head-dim", "8"}, "--layers (0)"},
      {{"plan", "--layers", "2", "--q-heads", "4", "--head-dim", "0"}, "(0) is not from 1"},
      {{"plan", "--layers", "2", "--q-heads", "4", "--head-dim", "8", "--kv-heads", "3"},
       "kv_heads (3) does not divide q_heads (4)"},
      {{"plan", "--layers", "2", "--q-heads", "4", "--head-dim", "8", "--devices", "3"},
       "is not a multiple of devices (3)"},
      {{"plan", "--layers", "2", "--q-heads", "4", "--kv-rank", "8", "--nope-dim", "8",
        "--kv-heads", "2"},
       "--kv-heads changes nothing here"},
      {{"plan", "--layers", "2", "--q-heads", "4", "--head-dim", "8", "--latent-form", "absorbed"},
       "--latent-form changes nothing here"},
      {{"plan", "--list", "--json"}, "changes nothing here"},
      {{"bench", "--filter", "("}, "is not a regular expression"},
      {{"bench", "--isa", "avx3"}, "is no instruction set"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(testing::PrintToString(row.arguments));
    test::expect_refused(row.arguments, cli::kBadUsage, row.because);
  }
}

TEST(ExitStatus, OneForWhatFilesHoldOrThatThereAreNone) {
  const test::ScratchDirectory folder;
  const std::string model = test::tiny_llama(folder);
  const std::string empty = folder.write("empty.txt", ""), one = folder.write("one.txt", "a");
  const std::string array = folder.file("rows.npy");
  const std::vector<float> numbers(12, 1.0f);
  formats::write_npy(array, ConstView(numbers.data(), {3, 4}));
  const std::vector<Row> rows = {
      {kAttend, "no-q.npy: cannot be opened"},
      {kExplain, "no-q.npy: cannot be opened"},
      {{"explain", "no.json"}, "no.json: cannot be opened"},
      {{"explain", "--query", "9"}, "queries are 0 to 4"},
      {{"explain", "--q", array, "--k", array, "--v", array, "--batch", "1"},
       "rows are one sequence"},
      {{"explain", "--q", array, "--k", array, "--v", array, "--layout", "bhtd"},
       "have no axis of"},
      {{"explain", "--prune", "3"}, "--prune 3"},
      {{"explain", "--documents", "1,2"}, "--documents"},
      {kGenerate, "no-model.gguf"},
      {{"generate", model, "--prompt", "-x"}, "--prompt: the text has no token"},
      {{"generate", model, "--prompts", empty}, "has no prompt"},
      {kMany, "no-prompts.txt"},
      {{"generate", model, "--prompt", "a", "--kv-type", "int8", "--kv-keys", "channel",
        "--kv-text", empty},
       "has no token to calibrate on"},
      {kScore, "no-model.gguf"},
      {{"score", model, "--file", empty}, "fewer than two tokens"},
      {{"score", model, "--text", "ab", "--context", "65"}, "is more than the model's, 64"},
      {{"look", model, "--file", empty}, "has no tokens"},
      {{"look", model, "--text", "ab", "--layers", "0-2"}, "--layers: 2 is not within 0 .. 1"},
      {{"look", model, "--text", "ab", "--heads", "0.4"}, "--heads: 4 is not within 0 .. 3"},
      {{"look", model, "--text", "ab", "--rows", "2", "--json"}, "--rows 2"},
      {{"look", model, "--text", "ab", "--rows", "0-9", "--json"}, "--rows 9 is not one of 2"},
      {{"look", model, "--text", "ab", "--tokens", "65"}, "is more than the model's context, 64"},
      {{"prune", model, "--file", one}, "fewer than two tokens"},
      {{"prune", model, "--text", "ab", "--tokens", "65"}, "is more than the model's context, 64"},
      {{"embed", model, "--file", one}, "expected an encoder"},
      {{"tokenize", "no-model.gguf", "--text", "a"}, "no-model.gguf"},
      {{"info", "no-model.gguf"}, "no-model.gguf"},
      {kPlan, "no-model.gguf"},
      {with(kPlan, {"--html", "/nowhere/plan.html"}), "/nowhere/plan.html: cannot be written"},
      {{"plan", "no-preset"}, "no-preset"},
      {{"plan", "gpt2", "--context", "4k"}, "table of 1024 positions"},
      {{"plan", "gpt2", "--kv-heads", "7"}, "kv_heads (7)"},
      {{"plan", "gpt2", "--latent-form", "absorbed"}, "no model has latent attention"},
      {{"plan", "bert", "--chunk", "8"}, "no model keeps a cache"},
      {{"plan", "llama-3-8b", "--devices", "3"}, "devices (3)"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(testing::PrintToString(row.arguments));
    test::expect_refused(row.arguments, cli::kFailure, row.because);
  }
}

}  // namespace
}  // namespace polyhead
