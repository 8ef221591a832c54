// A model run on this machine, to hold the planner's prediction against.
#pragma once

#include <cstdint>
#include <string>

namespace polyhead::cli {

struct MeasuredRun {
  std::int64_t tokens = 0;          ///< of the prompt
  double prefill_seconds = 0;       ///< the prompt in one call, logits of its last token
  double decode_seconds = 0;        ///< one more token after them; a median
  std::int64_t weight_bytes = 0;    ///< as the model holds them
  std::int64_t cache_bytes = 0;     ///< of the session
  std::int64_t resident_bytes = 0;  ///< private memory that loading and running took
};

/// Loads the model at `path`, quantised weights as they are and others in float32, or all in
/// bfloat16, and runs it. Throws FileError or InvalidArgument.
MeasuredRun measure_run(const std::string& path, std::int64_t tokens, int threads, bool bfloat16);

}  // namespace polyhead::cli
