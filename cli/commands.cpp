#include <CLI/CLI.hpp>
#include <algorithm>
#include <new>

#include "cli/command.hpp"
#include "cli/exit_codes.hpp"
#include "cli/table.hpp"
#include "models/formats/file_error.hpp"
#include "models/formats/files_read.hpp"
#include "polyhead/version.h"

namespace polyhead::cli {
namespace {

using formats::quote;

constexpr const char* kFooter =
    "Example:\n"
    "  polyhead explain --heads 2 --query cat\n\n"
    "Exit status: 0 done; 1 something failed while working (a file, what it holds, the run); 2 the "
    "command line is wrong by itself.\n"
    "Environment: POLYHEAD_ISA and POLYHEAD_THREADS set defaults for --isa and --threads; NO_COLOR "
    "turns colour off.";

/// What is said may quote arguments and files, which must not steer the terminal.
int fail(const Console& console, std::string_view what, int status) {
  console.err << "polyhead: " << printable(what) << '\n';
  return status;
}

int written(const Console& console) {
  try {
    flush(console.out);
  } catch (const std::runtime_error& error) {
    return fail(console, error.what(), kFailure);
  }
  return kSuccess;
}

int bad_usage(const Console& console, const std::string& what, const std::string& help) {
  fail(console, what, kBadUsage);
  console.err << "Try '" << help << " --help'.\n";
  return kBadUsage;
}

/// Why the first option without a value has none, if there is one. What stands behind it would be
/// taken for its value, be it an option itself: "--lse= --causal", "--lse --causal".
std::string missing_value(const CLI::App& app, const std::vector<std::string>& arguments) {
  const auto chosen = app.get_subcommands([&](const CLI::App* sub) {
    return !arguments.empty() && sub->get_name() == arguments.front();
  });
  if (chosen.empty()) return "";
  const auto option_named = [&](const std::string& text) -> const CLI::Option* {
    const bool may_be = text.size() > 1 && text.front() == '-';
    return may_be ? chosen.front()->get_option_no_throw(text) : nullptr;
  };
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    const std::string name = arguments[i].substr(0, arguments[i].find_last_not_of('=') + 1);
    const CLI::Option* option = option_named(name);
    if (option == nullptr) continue;
    if (arguments[i] == name + "=") return name + ": the value is empty";
    const bool behind = arguments[i] == name && option->get_items_expected_min() > 0;
    if (!behind || ++i == arguments.size()) continue;
    if (option_named(arguments[i]) != nullptr)
      return name + ": expected a value, found the option " + arguments[i];
  }
  return "";
}

int parse_failed(const CLI::App& app, const std::vector<std::string>& arguments,
                 const CLI::ParseError& error, const Console& console) {
  if (error.get_exit_code() ==
      static_cast<int>(CLI::ExitCodes::Success)) {  // --help and --version come here too
    app.exit(error, console.out, console.err);
    return written(console);
  }
  const auto chosen = app.get_subcommands();
  const std::string help = chosen.empty() ? "polyhead" : "polyhead " + chosen.front()->get_name();
  const std::string what = chosen.empty() && !arguments.empty()
                               ? quote(arguments.front()) + " is not a subcommand"
                               : error.what();
  return bad_usage(console, what, help);
}

}  // namespace

std::vector<std::unique_ptr<Command>> make_commands() {
  std::vector<std::unique_ptr<Command>> commands;
  commands.push_back(make_explain());
  commands.push_back(make_attend());
  commands.push_back(make_info());
  commands.push_back(make_tokenize());
  commands.push_back(make_plan());
  commands.push_back(make_generate());
  commands.push_back(make_score());
  commands.push_back(make_embed());
  commands.push_back(make_look());
  commands.push_back(make_prune());
  commands.push_back(make_bench());
  return commands;
}

int run_program(const std::vector<std::string>& arguments, const Console& console) {
  const formats::FilesRead run;
  CLI::App app("Exact multi-head attention: watch it work, run it on arrays, measure it.",
               "polyhead");
  app.set_version_flag("--version", "polyhead " POLYHEAD_VERSION, "Print the version and exit");
  app.set_help_flag("-h,--help", "Print this help and exit");
  app.require_subcommand(1);
  app.footer(kFooter);
  const std::vector<std::unique_ptr<Command>> commands = make_commands();
  for (const auto& command : commands) {
    CLI::App* sub = app.add_subcommand(command->name(), command->summary());
    sub->set_help_flag("-h,--help", "Print this help and exit");
    command->add_options(*sub);
  }
  if (const std::string why = missing_value(app, arguments); !why.empty())
    return bad_usage(console, why, "polyhead " + arguments.front());
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(),
                                       arguments.rend()));  // CLI11 takes them from the back
  } catch (const CLI::ParseError& error) {
    return parse_failed(app, arguments, error, console);
  }
  const auto chosen = std::find_if(commands.begin(), commands.end(), [&](const auto& command) {
    return app.got_subcommand(command->name());
  });
  try {
    (*chosen)->run(console);
  } catch (const UsageError& error) {
    return fail(console, std::string((*chosen)->name()) + ": " + error.what(), kBadUsage);
  } catch (const std::bad_alloc&) {
    return fail(console, "not enough memory", kFailure);
  } catch (const std::exception& error) {
    return fail(console, error.what(), kFailure);
  }
  return written(console);
}

}  // namespace polyhead::cli
