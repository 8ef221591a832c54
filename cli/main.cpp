#include <string>
#include <vector>

#include "cli/command.hpp"
#include "cli/signals.hpp"

int main(int argc, char** argv) {
  polyhead::cli::handle_signals();
  const std::vector<std::string> arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
  return polyhead::cli::run_program(arguments, polyhead::cli::standard_console());
}
