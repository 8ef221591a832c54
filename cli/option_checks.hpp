// What options refuse by themselves.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>

namespace polyhead::cli {

/// Seeds fill 64 bits.
inline constexpr std::uint64_t kLargestSeed = std::numeric_limits<std::uint64_t>::max();

/// A whole number, in decimal, from `least` to `most`.
CLI::Validator whole_number(std::uint64_t least,
                            std::uint64_t most = std::numeric_limits<std::int64_t>::max());

/// A finite number for which `holds` does, which `expected` puts into words: "above 0".
CLI::Validator number_if(bool (*holds)(double), const char* expected);

/// A number that float32 holds, other than 0 where it is: what is stored as one is checked as one.
CLI::Validator float32_number();

/// The name of an instruction set, be it one of this processor's or not.
CLI::Validator isa_name();

/// A list of which `check` takes every entry.
CLI::Validator each_entry(const CLI::Validator& check);

/// Anything but an empty text, which reads like an option that was not given: --lengths "$UNSET".
CLI::Validator not_empty();

/// The name of a file to be written.
CLI::Validator output_name();

}  // namespace polyhead::cli
