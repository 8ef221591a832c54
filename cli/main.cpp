#include <csignal>
#include <string>
#include <vector>

#include "cli/command.hpp"
#include "models/formats/output_file.hpp"

namespace {

/// Half-written files go, then the signal does what it would have done.
void leave(int signal) {
  polyhead::formats::remove_unfinished_outputs();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

}  // namespace

int main(int argc, char** argv) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    if (std::signal(signal, leave) == SIG_IGN) std::signal(signal, SIG_IGN);  // nohup stays nohup
  }
  const std::vector<std::string> arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
  return polyhead::cli::run_program(arguments, polyhead::cli::standard_console());
}
