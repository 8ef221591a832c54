// polyhead explain: every number of a call of attention, as a textbook prints them.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/call_options.hpp"
#include "cli/command.hpp"
#include "cli/explain_model.hpp"
#include "cli/explain_print.hpp"
#include "cli/explain_rows.hpp"
#include "cli/explain_text.hpp"
#include "cli/five_tokens.hpp"
#include "cli/json_text.hpp"
#include "cli/list_text.hpp"
#include "cli/model_options.hpp"
#include "cli/option_checks.hpp"
#include "models/formats/file_error.hpp"
#include "models/model_path.hpp"
#include "polyhead/error.h"

namespace polyhead::cli {
namespace {

using formats::FileError;
using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kFiveTokensFile = "examples/five_tokens.json";  // what the program has inside
constexpr std::int64_t kMaxRows = 256;  // queries traced at once: every pair of every head is kept

constexpr const char* kExample =
    "Without files it shows five tokens, \"The cat sat on mat\", model_dim 4.\n\n"
    "Examples:\n"
    "  polyhead explain                                   one head of 4 dimensions\n"
    "  polyhead explain --heads 2 --causal                two heads, causal\n"
    "  polyhead explain --heads 2 --query cat             one row, the products written out\n"
    "  polyhead explain --columns 0-1,0-1                 both heads on the same columns\n"
    "  polyhead explain --heads 2 --wo examples/swap_heads.json\n"
    "  polyhead explain --heads 2 --prune 0               what the output loses without head 0\n"
    "  polyhead explain --q q.npy --k k.npy --v v.npy --query 17 --json\n"
    "  polyhead explain --q q.npy --k k.npy --v v.npy --causal --q-start 12    queries from key 12 "
    "on\n"
    "  polyhead explain --q m.safetensors:q --k m.safetensors:k --v m.safetensors:v --heads 8 "
    "--query 0\n"
    "  polyhead explain smollm2 --layer 17 --head 4 --query 3 --text 'Mary and John went'";

class Explain : public Command {
 public:
  const char* name() const override { return "explain"; }
  const char* summary() const override { return "Show every number of a call, as a textbook does"; }
  void add_options(CLI::App& app) override;
  void run(const Console& console) override;

 private:
  void take_only(std::initializer_list<const char*> options, const std::string& reason) const;
  void check_companions() const;
  void read_example(const std::string& text, const std::string& path);
  void read_arrays();
  void convert_arrays();
  void run_model(const Console& console);
  ExplainInput input_of(const std::vector<Columns>& columns,
                        const std::vector<Columns>& value_columns) const;
  ExplainInput cut_in(std::int64_t heads) const;
  std::pair<std::vector<Columns>, std::vector<Columns>> chosen_columns() const;
  std::vector<std::int64_t> pruned_heads() const;
  void check_arrays() const;
  void check_values() const;
  std::optional<std::int64_t> chosen_query(const ExplainInput& input) const;
  ordered_json exercises(const Options& options);
  Array output_projection(std::int64_t in) const;

  std::string example_, q_, k_, v_, tokens_text_, query_, columns_, value_columns_, w_o_, pruned_;
  std::string order_ = "bthd", w_o_order_ = "out-in", type_;
  std::string text_, text_file_;
  const CLI::App* app_ = nullptr;  ///< knows which options were given
  std::int64_t heads_ = 0, batch_ = 0, layer_ = -1, head_ = 0;
  bool json_ = false, exercises_ = false;
  CallOptions call_;
  RunOptions run_;

  Array rows_q_, rows_k_, rows_v_;  ///< as read, or converted
  std::vector<std::string> tokens_;
};

void Explain::add_options(CLI::App& app) {
  const char* arrays = "Arrays instead (.npy, or FILE.safetensors:NAME)";
  const auto option = [&](const char* name, auto& value, const char* type, const char* text) {
    return app.add_option(name, value, text)->type_name(type)->check(not_empty());
  };
  app_ = &app;
  option("example", example_, "FILE.json|MODEL",
         "{tokens, q, k, v}: rows of all heads side by side; with --layer, a model");
  option("--heads", heads_, "N", "Cut rows into that many heads (default 1)")->transform(count(1));
  auto* columns = option("--columns", columns_, "LIST",
                         "Columns of each head, e.g. 0-1,2-3; heads may share columns");
  option("--value-columns", value_columns_, "LIST", "Columns of v, where they are others")
      ->needs(columns);
  option("--query", query_, "TOKEN|INDEX", "One query row, with every product written out");
  option("--wo", w_o_, "FILE", "Output projection W_O: .npy, .safetensors:NAME or a JSON matrix");
  option("--wo-order", w_o_order_, "out-in|in-out",
         "W_O's axes: out-in, as layers keep it (default), or in-out, as textbooks\nwrite it")
      ->check(CLI::IsMember({"out-in", "in-out"}).description(""));
  option("--prune", pruned_, "LIST", "Also show the output without each of these heads, e.g. 0,1");
  option("--type", type_, "TYPE", "Convert q, k and v first: float32, float16 or bfloat16")
      ->check(CLI::IsMember(float_types()).description(""));
  app.add_flag("--exercises", exercises_,
               "Every case of the textbook at once, as JSON: 1, 2 and 4 heads, causal, both\n"
               "heads on the same columns, an output projection, each head pruned");
  app.add_flag("--json", json_, "Print JSON, every number in full");
  option("--q", q_, "FILE", "[tokens, model_dim], or with axes for heads and batch")->group(arrays);
  option("--k", k_, "FILE", "The same for keys")->group(arrays);
  option("--v", v_, "FILE", "The same for values")->group(arrays);
  option("--layout", order_, "bthd|bhtd",
         "Axes: [batch, tokens, heads, dim] or [batch, heads, tokens, dim]")
      ->check(CLI::IsMember({"bthd", "bhtd"}).description(""))
      ->group(arrays);
  option("--batch", batch_, "N", "Which sequence to show (default 0)")
      ->check(whole_number(0))
      ->group(arrays);
  option("--tokens", tokens_text_, "LIST", "Names of the tokens, separated by commas")
      ->group(arrays);
  const char* model = "A head of a real model";
  auto* layer = option("--layer", layer_, "N", "The layer, counted from 0")
                    ->check(whole_number(0))
                    ->group(model);
  option("--head", head_, "N", "Its query head (default 0)")
      ->check(whole_number(0))
      ->needs(layer)
      ->group(model);
  auto* text = option("--text", text_, "TEXT", "What the model reads")->group(model);
  option("--file", text_file_, "FILE", "The same from a file")->excludes(text)->group(model);
  call_.add_mask_options(app);
  call_.add_modifier_options(app);
  run_.add_options(app);
  app.footer(kExample);
}

void Explain::read_example(const std::string& text, const std::string& path) {
  const json example = parse_example(path, text);
  if (!example.is_object()) throw FileError(path, "is not a table with tokens, q, k and v");
  for (const char* key : {"q", "k", "v"}) {
    if (!example.contains(key)) throw FileError(path, std::string("has no '") + key + "'");
  }
  rows_q_ = matrix_of(example["q"], path, "q");
  rows_k_ = matrix_of(example["k"], path, "k");
  rows_v_ = matrix_of(example["v"], path, "v");
  if (example.contains("tokens")) {
    try {
      tokens_ = example["tokens"].get<std::vector<std::string>>();
    } catch (const json::exception&) {
      throw FileError(path, "tokens is not a list of strings");
    }
  }
}

/// By its name alone no file of rows.
bool is_model_name(const std::string& place) {
  return place.ends_with(".gguf") ||
         std::ranges::any_of(models::known_models(),
                             [&](const models::KnownModel& model) { return place == model.name; });
}

/// Rows of all heads side by side have no place for these.
template <class Refusal>
void check_rows(std::int64_t batch, const std::string& order, const std::string& call) {
  if (batch != 0) {
    throw Refusal(call + "--batch " + std::to_string(batch) + ": rows are one sequence, number 0");
  }
  if (order == "bhtd")
    throw Refusal(call + "--layout bhtd: rows [tokens, model_dim] have no axis of heads");
}

void Explain::read_arrays() {
  if (q_.empty()) {
    if (example_.empty()) return read_example(kFiveTokens, kFiveTokensFile);
    std::error_code failed;  // what cannot be looked at is refused when it is opened
    if (std::filesystem::is_directory(example_, failed))
      throw FileError(example_,
                      "is a folder; if of a model, --layer is needed, and --text or --file");
    return read_example(read_text(example_), example_);
  }
  rows_q_ = load_float_array(q_, "q");
  rows_k_ = load_float_array(k_, "k");
  rows_v_ = load_float_array(v_, "v");
}

void Explain::convert_arrays() {
  if (type_.empty()) return;
  const std::string example = example_.empty() ? kFiveTokensFile : example_;
  for (const auto& [rows, file] : {std::pair{&rows_q_, &q_}, {&rows_k_, &k_}, {&rows_v_, &v_}}) {
    *rows = converted(*rows, float_type(type_), file->empty() ? example : *file);
  }
}

/// Columns of q and k, and of v, of each head; of none where arrays have an axis of heads.
std::pair<std::vector<Columns>, std::vector<Columns>> Explain::chosen_columns() const {
  const std::vector<Columns> columns = columns_of("--columns", columns_);
  if (value_columns_.empty()) return {columns, columns};
  const std::vector<Columns> value_columns = columns_of("--value-columns", value_columns_);
  if (value_columns.size() != columns.size()) {
    throw UsageError("--value-columns are of " + std::to_string(value_columns.size()) +
                     " heads, expected " + std::to_string(columns.size()) + " as --columns");
  }
  return {columns, value_columns};
}

/// The rows cut into so many heads: q and k alike, v by its own width.
ExplainInput Explain::cut_in(std::int64_t heads) const {
  const std::int64_t model_dim = rows_q_.view.layout.extents[1],
                     k_dim = rows_k_.view.layout.extents[1];
  if (k_dim != model_dim) {
    throw InvalidArgument("explain: k has " + std::to_string(k_dim) + " columns (expected " +
                          std::to_string(model_dim) + " as q)");
  }
  const std::vector<Columns> columns = equal_columns(model_dim, "model_dim", heads);
  return input_of(columns, equal_columns(rows_v_.view.layout.extents[1], "v's width", heads));
}

Array Explain::output_projection(std::int64_t in) const {
  if (w_o_.empty()) return {};
  Array w_o = w_o_.ends_with(".json") ? matrix_of(parse_example(w_o_, read_text(w_o_)), w_o_, "W_O")
                                      : load_float_array(w_o_, "--wo");
  detail::Layout& layout = w_o.view.layout;
  if (layout.axes != 2) {
    throw InvalidArgument("explain: --wo has shape " + formats::shape_text(layout) +
                          " (expected two axes, " + w_o_order_ + ")");
  }
  if (w_o_order_ == "in-out") {
    std::swap(layout.extents[0], layout.extents[1]);
    std::swap(layout.strides[0], layout.strides[1]);
  }
  if (layout.extents[1] != in) {
    throw InvalidArgument("explain: --wo has shape " + formats::shape_text(layout) +
                          " as [out, in] (expected [out, " + std::to_string(in) + "])");
  }
  return w_o;
}

/// Heads cut from rows, or, without columns, arrays that have an axis of them.
ExplainInput Explain::input_of(const std::vector<Columns>& columns,
                               const std::vector<Columns>& value_columns) const {
  ExplainInput input;
  if (!columns.empty()) {
    input = cut_heads(rows_q_, rows_k_, rows_v_, columns, value_columns);
  } else {
    const AxisOrder order = order_ == "bhtd" ? AxisOrder::bhtd : AxisOrder::bthd;
    input.q = {as_batch_tokens_heads_dim(rows_q_.view, order, "explain: q"), rows_q_.owner};
    input.k = {as_batch_tokens_heads_dim(rows_k_.view, order, "explain: k"), rows_k_.owner};
    input.v = {as_batch_tokens_heads_dim(rows_v_.view, order, "explain: v"), rows_v_.owner};
    input.batch = batch_;
  }
  check_tokens_hold_numbers(input.q, "q");
  check_tokens_hold_numbers(input.k, "k");
  const detail::Layout &q = input.q.view.layout, &k = input.k.view.layout;
  input.k_tokens = names_of(tokens_, k.extents[1], "k");
  input.q_tokens = q.extents[1] == k.extents[1] ? input.k_tokens : names_of({}, q.extents[1], "q");
  input.w_o = output_projection(q.extents[2] * input.v.view.layout.extents[3]);
  return input;
}

std::optional<std::int64_t> Explain::chosen_query(const ExplainInput& input) const {
  const auto count = static_cast<std::int64_t>(input.q_tokens.size());
  if (query_.empty()) {
    if (count <= kMaxRows) return std::nullopt;
    throw InvalidArgument("explain: " + std::to_string(count) +
                          " queries are too many to show at once (at most " +
                          std::to_string(kMaxRows) + "); choose one with --query");
  }
  if (query_.find_first_not_of("0123456789") == std::string::npos) {
    const std::int64_t index = whole(query_, "--query");
    if (index < count) return index;
    throw InvalidArgument("explain: --query " + query_ +
                          (count == 0 ? " (there are no queries)"
                                      : " (queries are 0 to " + std::to_string(count - 1) + ")"));
  }
  // A model's tokens begin with the space before their word, which nobody writes.
  for (const std::string& name : {query_, " " + query_}) {
    const auto found = std::find(input.q_tokens.begin(), input.q_tokens.end(), name);
    if (found == input.q_tokens.end()) continue;
    if (std::find(found + 1, input.q_tokens.end(), name) != input.q_tokens.end()) {
      throw InvalidArgument("explain: --query: more than one token is '" + name +
                            "'; choose one by its index");
    }
    return found - input.q_tokens.begin();
  }
  throw InvalidArgument("explain: --query: no token is '" + query_ +
                        "' (expected one of q's, or an index below " + std::to_string(count) + ")");
}

/// The textbook's exercises on rows of four columns and more: every block in one object.
ordered_json Explain::exercises(const Options& options) {
  const std::int64_t model_dim = rows_q_.view.layout.extents[1];
  const std::int64_t value_dim = rows_v_.view.layout.extents[1];
  if (value_dim != model_dim) {
    throw InvalidArgument("explain: v has " + std::to_string(value_dim) +
                          " columns (--exercises expects " + std::to_string(model_dim) + " as q)");
  }
  const auto one = [&](ExplainInput input, bool causal, bool swapped,
                       const std::vector<std::int64_t>& heads) {
    if (swapped) {  // the permutation that swaps the two halves
      const std::int64_t extents[] = {model_dim, model_dim};
      const OwnedArray w_o = allocate(ElementType::float32, extents);
      auto* weights = static_cast<float*>(w_o.view.data);
      for (std::int64_t i = 0; i < model_dim; ++i)
        weights[i * model_dim + (i + model_dim / 2) % model_dim] = 1.0f;
      input.w_o = w_o.array;
    }
    AttentionArguments call;
    if (causal) {
      call.mask = polyhead::causal();
      call_.place(call);
    }
    const Case made =
        call_.in_own_words([&] { return explain_case(input, call, std::nullopt, options); });
    std::vector<Pruned> pruned;
    pruned.reserve(heads.size());
    for (const std::int64_t head : heads) pruned.push_back(prune(made, head));
    return case_json(made, input, pruned);
  };
  ordered_json all;
  all["tokens"] = names_of(tokens_, rows_q_.view.layout.extents[0], "q");
  all["q"] = rows_json(rows_q_);
  all["k"] = rows_json(rows_k_);
  all["v"] = rows_json(rows_v_);
  for (const std::int64_t heads : {1, 2, 4})
    all["cases"].push_back(one(cut_in(heads), false, false, {}));
  all["cases"].push_back(one(cut_in(2), true, false, {}));
  const std::vector<Columns> half(2, {0, model_dim / 2 - 1});
  all["identical_subspaces"] = one(input_of(half, half), false, false, {});
  all["output_projection"] = one(cut_in(2), false, true, {})["output_projection"];
  all["pruning"] = one(cut_in(2), false, false, {0, 1})["pruning"];
  return all;
}

/// Refuses every option given that is none of `options`: it would change nothing.
void Explain::take_only(std::initializer_list<const char*> options,
                        const std::string& reason) const {
  for (const CLI::Option* given : app_->get_options()) {
    const std::string name = given->get_name();
    if (given->count() > 0 && std::find(options.begin(), options.end(), name) == options.end())
      throw UsageError(std::string(name).append(" changes nothing here: ").append(reason));
  }
}

/// Arrays that are there in part, or twice.
void Explain::check_arrays() const {
  const bool any = !(q_.empty() && k_.empty() && v_.empty());
  if (any && !example_.empty())
    throw UsageError("an example file and --q, --k, --v exclude each other");
  if (any && (q_.empty() || k_.empty() || v_.empty()))
    throw UsageError("--q, --k and --v come together");
  if (is_model_name(example_))
    throw UsageError("'" + example_ + "' is a model: --layer is needed, and --text or --file");
}

/// Lists and indices that are no such thing, whatever the files hold.
void Explain::check_values() const {
  chosen_columns();
  pruned_heads();
  const bool index = query_.find_first_not_of("0123456789") == std::string::npos;
  if (!query_.empty() && index) whole(query_, "--query");
  if (q_.empty()) check_rows<UsageError>(batch_, order_, "");  // an example has no other arrays
}

std::vector<std::int64_t> Explain::pruned_heads() const {
  std::vector<std::int64_t> heads;
  if (pruned_.empty()) return heads;
  // As far as options say how many there are.
  const std::int64_t all = columns_.empty() ? heads_ : std::ssize(chosen_columns().first);
  for (const std::string& head : full_pieces_of("--prune", pruned_)) {
    heads.push_back(whole(head, "--prune"));
    if (std::count(heads.begin(), heads.end(), heads.back()) > 1) refuse_twice("--prune", head);
    if (all > 0 && heads.back() >= all) {
      throw UsageError("--prune names head " + head + ", expected heads 0 to " +
                       std::to_string(all - 1));
    }
  }
  return heads;
}

/// Options that say something only beside others.
void Explain::check_companions() const {
  if (!text_.empty() || !text_file_.empty()) throw UsageError("--text and --file need --layer");
  if (app_->count("--wo-order") > 0 && w_o_.empty()) throw UsageError("--wo-order needs --wo");
  if (heads_ != 0 && !columns_.empty())
    throw UsageError("--heads and --columns exclude each other");
  if (exercises_) {
    take_only({"example", "--exercises", "--json", "--q", "--k", "--v", "--type", "--tokens",
               "--align", "--q-start", "--isa", "--threads"},
              "--exercises shows cases of its own");
  }
}

/// A head of a real model: its q, k and v are what the run gave to attention().
void Explain::run_model(const Console& console) {
  take_only({"example", "--layer", "--head", "--text", "--file", "--query", "--json", "--isa",
             "--threads"},
            "--layer shows what the model did");
  check_values();
  if (example_.empty()) throw UsageError("--layer needs a model");
  if (text_.empty() && text_file_.empty()) throw UsageError("--layer needs --text or --file");
  const std::string text = text_file_.empty() ? text_ : read_text(text_file_);
  const Options options = run_.options();
  const ModelHead head = head_of_model(example_, layer_, head_, text, options);
  const std::optional<std::int64_t> query = chosen_query(head.input);
  Case shown = explain_case(head.input, head.call, query, options);
  shown.modified = head.call.modifiers.soft_cap != 0.0f;
  name_head(shown, head);
  if (json_) {
    ordered_json result;
    result["tokens"] = head.input.k_tokens;
    result.update(case_json(shown, head.input, {}));
    console.out << json_text(result);
  } else if (query) {
    print_row(console, shown, head.input, {});
  } else {
    print_matrices(console, shown, head.input, {});
  }
}

void Explain::run(const Console& console) {
  if (layer_ >= 0) return run_model(console);
  check_companions();
  check_arrays();
  check_values();
  if (!exercises_) call_.check();
  read_arrays();
  convert_arrays();
  if (!tokens_text_.empty()) tokens_ = pieces_of(tokens_text_);
  const Options options = run_.options();
  const bool whole_rows = rows_q_.view.layout.axes == 2 && rows_k_.view.layout.axes == 2 &&
                          rows_v_.view.layout.axes == 2;
  if (exercises_) {
    if (!whole_rows) throw InvalidArgument("explain: --exercises needs rows [tokens, model_dim]");
    console.out << json_text(exercises(options));
    return;
  }
  if (!whole_rows && (heads_ != 0 || !columns_.empty())) {
    throw InvalidArgument(
        "explain: --heads and --columns cut rows [tokens, model_dim]; these arrays have an axis of "
        "heads already");
  }
  if (whole_rows) check_rows<InvalidArgument>(batch_, order_, "explain: ");
  const auto [columns, value_columns] = chosen_columns();
  const ExplainInput input = whole_rows && columns.empty() ? cut_in(heads_ == 0 ? 1 : heads_)
                                                           : input_of(columns, value_columns);
  AttentionArguments call;
  call.q = input.q.view;
  call.k = input.k.view;
  call.v = input.v.view;
  call_.apply(call);
  const std::optional<std::int64_t> query = chosen_query(input);
  Case shown = call_.in_own_words([&] { return explain_case(input, call, query, options); });
  shown.modified = call_.modifies();
  std::vector<Pruned> pruned;
  for (const std::int64_t head : pruned_heads()) pruned.push_back(prune(shown, head));
  if (json_) {
    ordered_json result;
    result["tokens"] = input.k_tokens;
    if (whole_rows) {
      result["q"] = rows_json(rows_q_);
      result["k"] = rows_json(rows_k_);
      result["v"] = rows_json(rows_v_);
    }
    result.update(case_json(shown, input, pruned));
    console.out << json_text(result);
  } else if (query) {
    print_row(console, shown, input, pruned);
  } else {
    print_matrices(console, shown, input, pruned);
  }
}

}  // namespace

std::unique_ptr<Command> make_explain() { return std::make_unique<Explain>(); }

}  // namespace polyhead::cli
