// A subcommand: its options and what it does. One file each, listed once in commands.cpp.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "cli/console.hpp"

// Its header costs seconds to compile, so only a .cpp that adds options includes it.
namespace CLI {
class App;
}

namespace polyhead::cli {

/// The command line is wrong by itself, whatever files hold: exit status 2. Thrown before any file
/// is read.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Command {
 public:
  virtual ~Command() = default;
  virtual const char* name() const = 0;
  virtual const char* summary() const = 0;

  /// Adds options, bound to this object, and the footer with an example.
  virtual void add_options(CLI::App& app) = 0;

  /// Does the work. Throws UsageError, InvalidArgument or FileError; anything it prints before is
  /// complete.
  virtual void run(const Console& console) = 0;
};

std::unique_ptr<Command> make_explain();
std::unique_ptr<Command> make_attend();
std::unique_ptr<Command> make_info();
std::unique_ptr<Command> make_tokenize();
std::unique_ptr<Command> make_plan();
std::unique_ptr<Command> make_generate();
std::unique_ptr<Command> make_score();
std::unique_ptr<Command> make_embed();
std::unique_ptr<Command> make_look();
std::unique_ptr<Command> make_prune();
std::unique_ptr<Command> make_bench();

/// Every subcommand, in the order in which --help lists them.
std::vector<std::unique_ptr<Command>> make_commands();

/// The whole program: parses `arguments` (without the program's name), runs, and returns the exit
/// status.
int run_program(const std::vector<std::string>& arguments, const Console& console);

}  // namespace polyhead::cli
