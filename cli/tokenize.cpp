// polyhead tokenize: a text as a model's tokens, and ids as a text.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/command.hpp"
#include "cli/json_text.hpp"
#include "cli/list_text.hpp"
#include "cli/model_options.hpp"
#include "cli/option_checks.hpp"
#include "cli/stream_text.hpp"
#include "cli/table.hpp"
#include "models/model_path.hpp"
#include "models/tokenizers/read_tokenizer.hpp"
#include "models/tokenizers/tokenizer.hpp"
#include "polyhead/error.h"

namespace polyhead::cli {
namespace {

using nlohmann::ordered_json;

constexpr const char* kExample =
    "Examples:\n"
    "  polyhead tokenize smollm2 --text 'The cat sat on the mat'\n"
    "  polyhead tokenize smollm2 --ids 504,2644,2643";

/// What --ids lists, which may stand in brackets as JSON has it. Throws UsageError.
std::vector<std::int64_t> listed_ids(const std::string& list) {
  const bool brackets = list.size() > 1 && list.front() == '[' && list.back() == ']';
  const std::string listed = brackets ? list.substr(1, list.size() - 2) : list;
  std::vector<std::int64_t> ids;
  if (brackets && listed.find_first_not_of(' ') == listed.npos) return ids;
  for (const std::string& piece : full_pieces_of("--ids", listed))
    ids.push_back(whole(piece, "--ids"));
  return ids;
}

/// The same as ids of this vocabulary. Throws InvalidArgument naming one that is none.
std::vector<std::int32_t> known_ids(const models::Tokenizer& tokenizer,
                                    const std::vector<std::int64_t>& ids) {
  for (const std::int64_t id : ids) {
    if (id < tokenizer.size()) continue;
    throw InvalidArgument("tokenize: --ids: " + std::to_string(id) +
                          " is no token's, expected 0 to " + std::to_string(tokenizer.size() - 1));
  }
  return {ids.begin(), ids.end()};
}

class Tokenize : public Command {
 public:
  const char* name() const override { return "tokenize"; }
  const char* summary() const override {
    return "A text as a model's tokens, or token ids as their text";
  }

  void add_options(CLI::App& app) override {
    app.add_option("model", model_, "A model's name, file or folder; its weights are not read")
        ->required()
        ->type_name("MODEL")
        ->check(not_empty());
    auto* const file = app.add_option("--file", file_, "The text; - reads standard input");
    file->type_name("FILE")->check(not_empty());
    text_option_ = app.add_option("--text", text_, "The text itself");
    text_option_->type_name("TEXT")->excludes(file);
    auto* const ids = app.add_option("--ids", ids_,
                                     "The other way: print the text of these token ids, in which "
                                     "control tokens are\nnothing");
    ids->type_name("LIST")->check(not_empty())->excludes(file)->excludes(text_option_);
    app.add_flag("--parse-special", parse_special_,
                 "\"<|im_start|>\" in the text is that token, not its letters")
        ->excludes(ids);
    app.add_flag("--bare", bare_, "Without the tokens that the model puts around each text")
        ->excludes(ids);
    app.add_flag("--json", json_, "Print ids and pieces as JSON; of --ids the text, too");
    app.footer(kExample);
  }

  void run(const Console& console) override {
    if (file_.empty() && text_option_->empty() && ids_.empty())
      throw UsageError("--file, --text or --ids is needed");
    const std::vector<std::int64_t> listed =
        ids_.empty() ? std::vector<std::int64_t>() : listed_ids(ids_);
    const models::Tokenizer tokenizer(models::read_tokenizer(models::model_path(model_)));
    if (!ids_.empty()) return print_text(console, tokenizer, known_ids(tokenizer, listed));
    const std::vector<std::int32_t> ids =
        tokenizer.encode(file_.empty() ? text_ : read_text(file_), {!bare_, parse_special_});
    if (json_) {
      console.out << json_text(json_of(tokenizer, ids));
    } else {
      print(console, tokenizer, ids);
    }
  }

 private:
  static ordered_json json_of(const models::Tokenizer& tokenizer,
                              const std::vector<std::int32_t>& ids) {
    ordered_json json{{"ids", ids}, {"pieces", ordered_json::array()}};
    for (const std::int32_t id : ids)
      json["pieces"].push_back(tokenizer.spec().pieces[static_cast<std::size_t>(id)]);
    return json;
  }

  void print_text(const Console& console, const models::Tokenizer& tokenizer,
                  const std::vector<std::int32_t>& ids) const {
    TextStream text = json_ ? TextStream() : TextStream(console.out, console.out_terminal);
    text.write(tokenizer.decode(ids));
    text.finish();
    if (!json_) {
      console.out << '\n';
      return;
    }
    ordered_json json = json_of(tokenizer, ids);
    json["text"] = text.text();
    console.out << json_text(json);
  }

  static void print(const Console& console, const models::Tokenizer& tokenizer,
                    const std::vector<std::int32_t>& ids) {
    Table table({Table::Align::right, Table::Align::right, Table::Align::left});
    table.header({"place", "id", "text"});
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const std::string text = "'" + printable(tokenizer.bytes(ids[i])) + "'";
      table.row({std::to_string(i), std::to_string(ids[i]),
                 tokenizer.is_control(ids[i]) ? console.styled(Style::faint, text) : text});
    }
    table.print(console);
    console.out << grouped(static_cast<long long>(ids.size()))
                << (ids.size() == 1 ? " token\n" : " tokens\n");
  }

  std::string model_, file_, text_, ids_;
  CLI::Option* text_option_ = nullptr;
  bool parse_special_ = false, bare_ = false, json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_tokenize() { return std::make_unique<Tokenize>(); }

}  // namespace polyhead::cli
