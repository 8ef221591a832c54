// What options refuse by themselves.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>

namespace polyhead::cli {

/// Seeds fill 64 bits.
inline constexpr std::uint64_t kLargestSeed = std::numeric_limits<std::uint64_t>::max();

/// A count from `least` to `most` as people write it (count_text.hpp), of which the option takes
/// the digits: for transform().
CLI::Validator count(std::int64_t least,
                     std::int64_t most = std::numeric_limits<std::int64_t>::max());

/// A whole number, in decimal digits alone, from `least` to `most`: an index, a seed.
CLI::Validator whole_number(std::uint64_t least,
                            std::uint64_t most = std::numeric_limits<std::int64_t>::max());

/// A finite number for which `holds` does, which `expected` puts into words: "above 0". One that 64
/// bits make infinite, or 0 where it is not, is refused as such.
CLI::Validator number_if(bool (*holds)(double), const char* expected);

/// The same of 32 bits: what is stored as float32 is checked as one.
CLI::Validator float32_if(bool (*holds)(double), const char* expected);

/// Any finite number of 32 bits.
CLI::Validator float32_number();

/// The name of an instruction set, be it one of this processor's or not.
CLI::Validator isa_name();

/// Anything but an empty text, which reads like an option that was not given: --lengths "$UNSET".
CLI::Validator not_empty();

/// The name of a file to be written.
CLI::Validator output_name();

/// What every command calls its file, by any of these names.
inline constexpr const char* kOutputOption = "-o,--output,--out";

}  // namespace polyhead::cli
