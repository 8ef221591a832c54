// Numbers as people write them: 4096, 4,096, 4_096, 32k (32,000), 32Ki (32,768), 1.5M.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace polyhead::cli {

/// 2^twos 10^tens.
struct Unit {
  const char* name;
  int twos, tens;
};

/// "k", "Ki", ..., "" for one; null where there is none of that name.
const Unit* unit_named(std::string_view name);

/// A number exactly as it is written: digits 10^exponent, and what stands behind it.
struct Decimal {
  std::string digits;
  int exponent = 0;
  std::string rest;

  double value() const;
};

/// False where there is no number.
bool read_number(std::string_view text, Decimal& to);

/// Whether it is a whole number from 0 on with a unit or without, and none that begins with 0
/// before other digits; `beyond` where it is above `most`.
enum class Whole : std::uint8_t { yes, no, beyond };
Whole read_count(std::string_view text, std::int64_t most, std::int64_t& to);

/// 096 is what a comma left of 4,096, and octal to others.
bool begins_with_zero(std::string_view text);

std::size_t digits_at_front(std::string_view text);

}  // namespace polyhead::cli
