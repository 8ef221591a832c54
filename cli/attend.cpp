// polyhead attend: attention over arrays in files.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "attention/describe.hpp"
#include "base/link_target.hpp"
#include "cli/call_options.hpp"
#include "cli/command.hpp"
#include "cli/json_text.hpp"
#include "cli/option_checks.hpp"
#include "cli/stopwatch.hpp"
#include "cli/table.hpp"
#include "models/formats/npy.hpp"
#include "models/formats/output_file.hpp"
#include "polyhead/error.h"
#include "polyhead/inspect.h"

namespace polyhead::cli {
namespace {

using nlohmann::ordered_json;

constexpr const char* kExample =
    "q, k and v are .npy files, or FILE.safetensors:NAME, of 2 axes [tokens, dim], 3 [tokens, "
    "heads, dim] or 4\n"
    "[batch, tokens, heads, dim]; float16, bfloat16, float32, or float64, which becomes "
    "float32. Files are\n"
    "mapped, not copied: do not write to them meanwhile. Results appear under their names when "
    "they are complete.\n\n"
    "Examples:\n"
    "  polyhead attend q.npy k.npy v.npy -o out.npy --causal\n"
    "  polyhead attend q.npy k.npy v.npy -o out.npy --window 511,0 --align end --lse lse.npy\n"
    "  polyhead attend q.npy k.npy v.npy -o out.npy --weights weights.npy --weights-heads 0,3 "
    "--weights-queries 0:16\n"
    "  polyhead attend q.npy k.npy v.npy --entropy entropy.npy\n"
    "  polyhead attend q.npy k.npy v.npy --describe";

/// A result: its array in the order of the axes that the files have, and the view the library
/// writes to.
struct Result {
  std::string path;
  OwnedArray array;
  View view;
};

class Attend : public Command {
 public:
  const char* name() const override { return "attend"; }
  const char* summary() const override { return "Attention over arrays in files"; }
  void add_options(CLI::App& app) override;
  void run(const Console& console) override;

 private:
  void add_result_options(CLI::App& app);
  void load(AttentionArguments& call);
  ConstView input(const std::string& place, const char* what);
  View rows_result(const std::string& path, ElementType type, const AttentionArguments& call,
                   std::int64_t dim);
  std::vector<std::pair<const char*, std::string>> asked_files() const;
  void check_files() const;
  void check_companions() const;
  void check_values() const;
  void describe(const Console& console, const AttentionArguments& call,
                const Options& options) const;
  void make_results(AttentionArguments& call);
  std::pair<std::int64_t, std::int64_t> asked_queries() const;
  std::int64_t choose_queries(std::int64_t q_len);
  void choose_weights(const AttentionArguments& call);
  void write_results(Progress& progress) const;
  ElementType out_type(const AttentionArguments& call) const;
  void report(const Console& console, const AttentionArguments& call, const Options& options,
              double seconds) const;

  std::string q_, k_, v_, out_, type_, out_type_, q_offsets_, kv_offsets_;
  std::string lse_, weights_, weights_heads_, weights_queries_, entropy_, max_weight_, max_key_;
  std::string layout_ = "bthd";
  bool json_ = false, describe_ = false;
  CallOptions call_;
  RunOptions run_;

  int axes_ = 0;  ///< of q's file: results have as many
  std::vector<Array> kept_;
  std::vector<Result> results_;
  InspectArguments inspected_;  ///< --weights
};

void Attend::add_options(CLI::App& app) {
  const auto option = [&](const char* name, std::string& value, const char* type,
                          const char* text) {
    return app.add_option(name, value, text)->type_name(type)->check(not_empty());
  };
  const auto one_of = [](std::set<std::string> names) {
    return CLI::IsMember(std::move(names)).description("");
  };
  option("q", q_, "FILE", "Queries")->required();
  option("k", k_, "FILE", "Keys")->required();
  option("v", v_, "FILE", "Values")->required();
  option(kOutputOption, out_, "FILE", "Where the output goes: a .npy file with the axes of q")
      ->check(output_name());
  option("--layout", layout_, "bthd|bhtd",
         "Axes: [batch, tokens, heads, dim] or [batch, heads, tokens, dim]")
      ->check(one_of({"bthd", "bhtd"}));
  option("--type", type_, "TYPE", "Convert q, k and v first: float32, float16 or bfloat16")
      ->check(one_of(float_types()));
  option("--out-type", out_type_, "TYPE",
         "float32 or float16 (default: float16 where q's file is, without --type)")
      ->check(one_of({"float32", "float16"}));
  option(
      "--q-offsets", q_offsets_, "LIST|FILE",
      "Ragged batch: where each sequence begins in [tokens, heads, dim], and\nwhere the last ends");
  option("--kv-offsets", kv_offsets_, "LIST|FILE", "The same for keys and values");
  add_result_options(app);
  call_.add_mask_options(app);
  call_.add_modifier_options(app);
  run_.add_options(app);
  app.add_flag("--describe", describe_, "Say how the call would be cut and run, and do not run it");
  app.add_flag("--json", json_, "Print the summary as JSON");
  app.footer(kExample);
}

void Attend::add_result_options(CLI::App& app) {
  const auto option = [&](const char* name, std::string& value, const char* type,
                          const char* text) {
    return app.add_option(name, value, text)
        ->type_name(type)
        ->group("More results (.npy files)")
        ->check(not_empty());
  };
  const auto result = [&](const char* name, std::string& value, const char* text) {
    option(name, value, "FILE", text)->check(output_name());
  };
  result("--lse", lse_, "Natural logarithm of each row's sum of exp(score)");
  result("--weights", weights_,
         "Exact weights [heads, queries, keys], with a batch in front where q has one.\n"
         "Ragged: with a batch, the longest's queries and keys, 0 past a sequence's own");
  option("--weights-heads", weights_heads_, "LIST|FILE", "Of these heads (default: all)");
  option("--weights-queries", weights_queries_, "FIRST:COUNT",
         "Of these queries of each sequence (default: all)");
  result("--entropy", entropy_, "Entropy of each row's weights, nats");
  result("--max-weight", max_weight_, "Largest weight of each row");
  result("--max-key", max_key_, "The key of the largest weight of each row");
}

ConstView Attend::input(const std::string& place, const char* what) {
  Array array = load_float_array(place, what);
  if (!type_.empty()) array = converted(array, float_type(type_), place);
  kept_.push_back(array);
  return array.view;
}

void Attend::load(AttentionArguments& call) {
  const AxisOrder order = layout_ == "bhtd" ? AxisOrder::bhtd : AxisOrder::bthd;
  const ConstView q = input(q_, "q"), k = input(k_, "k"), v = input(v_, "v");
  axes_ = q.layout.axes;
  if (k.layout.axes != axes_ || v.layout.axes != axes_) {
    throw InvalidArgument("attend: q has " + std::to_string(axes_) + " axes, k " +
                          std::to_string(k.layout.axes) + " and v " +
                          std::to_string(v.layout.axes) + " (expected the same number)");
  }
  if (!q_offsets_.empty()) {
    if (axes_ != 3) {
      throw InvalidArgument("attend: a ragged batch has 3 axes [tokens, heads, dim], q has " +
                            formats::shape_text(q.layout));
    }
    call.q = q;
    call.k = k;
    call.v = v;
    for (const auto& [text, offsets, what] :
         {std::tuple(&q_offsets_, &call.q_offsets, "--q-offsets"),
          std::tuple(&kv_offsets_, &call.kv_offsets, "--kv-offsets")}) {
      kept_.push_back(load_integers(*text, what));
      *offsets = kept_.back().view;
    }
  } else {
    call.q = as_batch_tokens_heads_dim(q, order, "attend: q");
    call.k = as_batch_tokens_heads_dim(k, order, "attend: k");
    call.v = as_batch_tokens_heads_dim(v, order, "attend: v");
  }
}

ElementType Attend::out_type(const AttentionArguments& call) const {
  if (!out_type_.empty()) return float_type(out_type_);
  return type_.empty() && call.q.type == ElementType::float16 ? ElementType::float16
                                                              : ElementType::float32;
}

void drop_axis(detail::Layout& layout, int axis) {
  for (int i = axis; i + 1 < layout.axes; ++i) {
    layout.extents[i] = layout.extents[i + 1];
    layout.strides[i] = layout.strides[i + 1];
  }
  --layout.axes;
}

/// A result with a row for each query and head, `dim` numbers each (-1: one, without an axis), laid
/// out as q's file.
View Attend::rows_result(const std::string& path, ElementType type, const AttentionArguments& call,
                         std::int64_t dim) {
  const detail::Layout& q = call.q.layout;
  const bool ragged = call.q_offsets.given(), heads_first = layout_ == "bhtd";
  const std::int64_t batch = ragged ? 1 : q.extents[0], tokens = q.extents[ragged ? 0 : 1],
                     heads = q.extents[ragged ? 1 : 2];
  std::vector<std::int64_t> extents{batch, heads_first ? heads : tokens,
                                    heads_first ? tokens : heads};
  if (dim >= 0) extents.push_back(dim);
  OwnedArray array = allocate(type, extents);
  View view = array.view;
  if (heads_first) {
    std::swap(view.layout.extents[1], view.layout.extents[2]);
    std::swap(view.layout.strides[1], view.layout.strides[2]);
  }
  if (ragged) drop_axis(view.layout, 0);
  // The file has the axes of q's: no batch where that has none, no heads where that has two axes.
  if (axes_ == 2) drop_axis(array.array.view.layout, 2);
  if (axes_ <= 3) drop_axis(array.array.view.layout, 0);
  results_.push_back({path, array, view});
  return view;
}

/// The files that are asked for, and the options that ask.
std::vector<std::pair<const char*, std::string>> Attend::asked_files() const {
  std::vector<std::pair<const char*, std::string>> asked{{"--output", out_},
                                                         {"--lse", lse_},
                                                         {"--weights", weights_},
                                                         {"--entropy", entropy_},
                                                         {"--max-weight", max_weight_},
                                                         {"--max-key", max_key_}};
  std::erase_if(asked, [](const auto& file) { return file.second.empty(); });
  return asked;
}

/// Every result has a file of its own: the last of two under one name would be all that is left.
void Attend::check_files() const {
  namespace fs = std::filesystem;
  std::map<fs::path, std::string> taken;
  for (const auto& [option, path] : asked_files()) {
    if (path.ends_with(".safetensors")) {
      throw UsageError(std::string(option) + ": '" + path +
                       "' is named as a safetensors file, expected a name for an .npy file");
    }
    std::error_code failed;  // what cannot be followed is refused when it is opened
    const fs::path target = base::link_target(path, failed);  // where nothing need be yet
    const fs::path file = fs::weakly_canonical(fs::absolute(target, failed), failed);
    const auto [other, fresh] = taken.emplace(failed ? fs::path(path) : file, option);
    if (!fresh) {
      throw UsageError(other->second + " and " + option + " name one file, " + path +
                       " (expected one for each)");
    }
  }
}

/// Every element of a new array, or none. Rows of q past the last offset are nobody's: they read as
/// rows that see no key.
template <class T>
void fill(const View& view, T value) {
  if (!view.given()) return;
  std::int64_t count = 1;
  for (int axis = 0; axis < view.layout.axes; ++axis) count *= view.layout.extents[axis];
  std::fill_n(static_cast<T*>(view.data), count, value);
}

void Attend::make_results(AttentionArguments& call) {
  const int last = call.v.layout.axes - 1;
  call.out = rows_result(out_, out_type(call), call, call.v.layout.extents[last]);
  if (!lse_.empty() || !weights_.empty())
    call.lse = rows_result(lse_, ElementType::float32, call, -1);
  fill(call.lse, -std::numeric_limits<float>::infinity());
  if (!entropy_.empty())
    call.statistics.entropy = rows_result(entropy_, ElementType::float32, call, -1);
  if (!max_weight_.empty())
    call.statistics.max_weight = rows_result(max_weight_, ElementType::float32, call, -1);
  if (!max_key_.empty())
    call.statistics.max_key = rows_result(max_key_, ElementType::int64, call, -1);
  fill(call.statistics.max_key, std::int64_t{-1});
}

/// What --weights-queries says: the first and how many.
std::pair<std::int64_t, std::int64_t> Attend::asked_queries() const {
  const std::size_t colon = weights_queries_.find(':');
  std::size_t used = 0, used_count = 0;
  std::int64_t first = -1, count = -1;
  try {
    if (colon != std::string::npos) {
      first = std::stoll(weights_queries_.substr(0, colon), &used);
      count = std::stoll(weights_queries_.substr(colon + 1), &used_count);
    }
  } catch (const std::logic_error&) {
    count = -1;
  }
  if (used != colon || used_count != weights_queries_.size() - colon - 1 || first < 0 || count < 0)
    throw UsageError("--weights-queries: '" + weights_queries_ + "' is not FIRST:COUNT");
  return {first, count};
}

/// Sets the first query whose weights are wanted and returns how many.
std::int64_t Attend::choose_queries(std::int64_t q_len) {
  if (weights_queries_.empty()) return q_len;
  const auto [first, count] = asked_queries();
  if (first > q_len || count > q_len - first) {
    throw InvalidArgument("attend: --weights-queries " + weights_queries_ + " (q has " +
                          std::to_string(q_len) + " queries, counted from 0)");
  }
  inspected_.first_query = first;
  return count;
}

/// inspect() would refuse them too, after attention() has run.
void check_heads(const ConstView& list, std::int64_t heads) {
  for (std::int64_t i = 0; i < list.layout.extents[0]; ++i) {
    const std::int64_t index[] = {i};
    const std::int64_t head = integer_element(list, index);
    if (head >= 0 && head < heads) continue;
    throw InvalidArgument("attend: --weights-heads[" + std::to_string(i) + "] (" +
                          std::to_string(head) + ") is not within 0 .. " +
                          std::to_string(heads - 1));
  }
}

void Attend::choose_weights(const AttentionArguments& call) {
  if (weights_.empty()) return;
  const detail::Layout& q = call.q.layout;
  const bool ragged = call.q_offsets.given();
  std::int64_t heads = q.extents[ragged ? 1 : 2];
  if (!weights_heads_.empty()) {
    kept_.push_back(load_integers(weights_heads_, "--weights-heads"));
    inspected_.heads = kept_.back().view;
    check_heads(inspected_.heads, heads);
    heads = inspected_.heads.layout.extents[0];
  }
  const std::int64_t batch =
      ragged ? std::max<std::int64_t>(1, call.q_offsets.layout.extents[0]) - 1 : q.extents[0];
  const std::int64_t extents[] = {batch, heads, choose_queries(longest_queries(call)),
                                  longest_keys(call)};
  OwnedArray weights = allocate(ElementType::float32, extents);
  inspected_.weights = weights.view;
  if (axes_ < 4 && !ragged) drop_axis(weights.array.view.layout, 0);
  results_.push_back({weights_, weights, weights.view});
}

void Attend::report(const Console& console, const AttentionArguments& call, const Options& options,
                    double seconds) const {
  ordered_json summary;
  summary["isa"] = isa_name(resolve_isa(options.isa));
  summary["seconds"] = seconds;
  for (const auto& [what, view] :
       {std::pair("q", call.q), std::pair("k", call.k), std::pair("v", call.v)}) {
    const auto begin = view.layout.extents.begin();
    summary[what] = {{"type", element_name(view.type)},
                     {"shape", std::vector<std::int64_t>(begin, begin + view.layout.axes)}};
  }
  summary["results"] = ordered_json::array();
  for (const Result& result : results_) {
    if (result.path.empty()) continue;
    const ConstView& view = result.array.array.view;
    const auto begin = view.layout.extents.begin();
    summary["results"].push_back(
        {{"file", result.path},
         {"type", element_name(view.type)},
         {"shape", std::vector<std::int64_t>(begin, begin + view.layout.axes)}});
  }
  if (json_) {
    console.out << json_text(summary);
    return;
  }
  Table table({Table::Align::left, Table::Align::left, Table::Align::left});
  for (const Result& result : results_) {
    if (result.path.empty()) continue;
    const ConstView& view = result.array.array.view;
    table.row({printable(result.path), element_name(view.type), formats::shape_text(view.layout)});
  }
  table.print(console);
  console.out << console.styled(Style::faint, "  " + fixed(seconds * 1e3, 3) + " ms on " +
                                                  isa_name(resolve_isa(options.isa)))
              << '\n';
}

/// Lists and ranges that are no such thing, whatever the files hold.
void Attend::check_values() const {
  if (!weights_queries_.empty()) asked_queries();
  for (const auto& [text, option] : {std::pair(&weights_heads_, "--weights-heads"),
                                     {&q_offsets_, "--q-offsets"},
                                     {&kv_offsets_, "--kv-offsets"}})
    check_integers(*text, option, 0);
}

/// Options that say something only beside others, or without them.
void Attend::check_companions() const {
  if (weights_.empty() && !(weights_heads_.empty() && weights_queries_.empty()))
    throw UsageError("--weights-heads and --weights-queries need --weights");
  const auto asked = asked_files();
  if (asked.empty() && !describe_)
    throw UsageError("-o FILE is needed, another result's file or --describe");
  if (out_.empty() && !out_type_.empty()) throw UsageError("--out-type needs --output");
  if (q_offsets_.empty() != kv_offsets_.empty())
    throw UsageError("--q-offsets and --kv-offsets come together");
  if (!q_offsets_.empty() && layout_ == "bhtd")
    throw UsageError("--layout bhtd: a ragged batch is [tokens, heads, dim]");
  if (describe_ && !asked.empty()) {
    throw UsageError(std::string(asked.front().first) +
                     " changes nothing here: --describe computes and writes nothing");
  }
}

void Attend::describe(const Console& console, const AttentionArguments& call,
                      const Options& options) const {
  const std::string text = call_.in_own_words([&] { return describe_call(call, options); });
  if (json_)
    console.out << json_text(ordered_json{{"plan", text}});
  else
    console.out << text << '\n';
}

/// All of them or, where one cannot be written, none.
void Attend::write_results(Progress& progress) const {
  std::vector<std::unique_ptr<formats::OutputFile>> files;
  for (const Result& result : results_) {
    if (result.path.empty()) continue;
    progress.show("writing " + printable(result.path) + " ...");
    files.push_back(std::make_unique<formats::OutputFile>(result.path));
    formats::write_npy(*files.back(), result.array.array.view);
    files.back()->finish();
  }
  for (const auto& file : files) file->commit();
}

void Attend::run(const Console& console) {
  check_companions();
  call_.check();
  check_values();
  check_files();
  const Options options = run_.options();
  AttentionArguments call;
  load(call);
  call_.apply(call);
  make_results(call);
  if (describe_) return describe(console, call, options);
  choose_weights(call);
  for (const Result& result : results_) {
    if (!result.path.empty()) formats::check_writable(result.path);
  }
  Progress progress(console);
  progress.show("attending ...");
  const double seconds = seconds_of([&] { call_.in_own_words([&] { attention(call, options); }); });
  if (!weights_.empty()) call_.in_own_words([&] { inspect(call, inspected_, options); });
  write_results(progress);
  progress.clear();
  report(console, call, options, seconds);
}

}  // namespace

std::unique_ptr<Command> make_attend() { return std::make_unique<Attend>(); }

}  // namespace polyhead::cli
