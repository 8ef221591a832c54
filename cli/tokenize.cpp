// polyhead tokenize: a text as a model's tokens.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/command.hpp"
#include "cli/json_text.hpp"
#include "cli/model_options.hpp"
#include "cli/option_checks.hpp"
#include "cli/table.hpp"
#include "models/model_path.hpp"
#include "models/tokenizers/read_tokenizer.hpp"
#include "models/tokenizers/tokenizer.hpp"

namespace polyhead::cli {
namespace {

using nlohmann::ordered_json;

constexpr const char* kExample =
    "Example:\n"
    "  polyhead tokenize smollm2 --text 'The cat sat on the mat'\n";

class Tokenize : public Command {
 public:
  const char* name() const override { return "tokenize"; }
  const char* summary() const override { return "A text as a model's tokens"; }

  void add_options(CLI::App& app) override {
    app.add_option("model", model_, "A model's name, file or folder; its weights are not read")
        ->required()
        ->type_name("MODEL")
        ->check(not_empty());
    auto* const file = app.add_option("--file", file_, "The text; - reads standard input");
    file->type_name("FILE")->check(not_empty());
    text_option_ = app.add_option("--text", text_, "The text itself");
    text_option_->type_name("TEXT")->excludes(file);
    app.add_flag("--parse-special", parse_special_,
                 "\"<|im_start|>\" in the text is that token, not its letters");
    app.add_flag("--bare", bare_, "Without the tokens that the model puts around each text");
    app.add_flag("--json", json_, "Print ids and pieces as JSON");
    app.footer(kExample);
  }

  void run(const Console& console) override {
    if (file_.empty() && text_option_->empty()) throw UsageError("--file or --text is needed");
    const models::Tokenizer tokenizer(models::read_tokenizer(models::model_path(model_)));
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

  std::string model_, file_, text_;
  CLI::Option* text_option_ = nullptr;
  bool parse_special_ = false, bare_ = false, json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_tokenize() { return std::make_unique<Tokenize>(); }

}  // namespace polyhead::cli
