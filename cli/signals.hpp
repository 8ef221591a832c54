// What the program does when a signal ends it.
#pragma once

namespace polyhead::cli {

/// Interruption (SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGXCPU): half-written files go, then
/// the signal does what it would have done. A file beyond the limit on its size is a write that
/// fails, no signal. SIGBUS from an input that became shorter while it was read: the same, then a
/// message that names it and exit status 1; other SIGBUS is left as it is.
void handle_signals();

}  // namespace polyhead::cli
