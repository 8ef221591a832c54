// What the program's exit status says. `polyhead --help` prints this list.
#pragma once

namespace polyhead::cli {

enum ExitCode : int {
  kSuccess = 0,
  kFailure = 1,   ///< an input was refused, or a file could not be read or written
  kBadUsage = 2,  ///< the command line itself makes no sense
};

}  // namespace polyhead::cli
