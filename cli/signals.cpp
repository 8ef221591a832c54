#include "cli/signals.hpp"

#include <unistd.h>

#include <csignal>
#include <cstring>

#include "base/part_file.hpp"
#include "cli/exit_codes.hpp"
#include "models/formats/mapped_file.hpp"

namespace polyhead::cli {
namespace {

void leave(int signal) {
  base::remove_unfinished_parts();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void say(const char* text) {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, std::strlen(text));
}

/// Only what is safe in a handler: write(2), unlink(2), _exit(2).
void lost_pages(int signal, siginfo_t* info, void*) {
  const char* path = formats::mapped_file_at(info->si_addr);
  if (path == nullptr) return leave(signal);
  base::remove_unfinished_parts();
  say("polyhead: ");
  say(path);
  say(": became shorter while it was being read\n");
  ::_exit(kFailure);
}

}  // namespace

void handle_signals() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGXCPU}) {
    if (std::signal(signal, leave) == SIG_IGN) std::signal(signal, SIG_IGN);  // nohup stays nohup
  }
  std::signal(SIGXFSZ, SIG_IGN);  // the write fails and says which file has grown too large
  struct sigaction action {};
  action.sa_sigaction = lost_pages;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace polyhead::cli
