// What the program's exit status says. `polyhead --help` prints this list.
#pragma once

namespace polyhead::cli {

enum ExitCode : int {
  kSuccess = 0,
  kFailure = 1,   ///< something failed while working: files, what they hold, the run
  kBadUsage = 2,  ///< the command line is wrong by itself; found before any file is read
};

}  // namespace polyhead::cli
