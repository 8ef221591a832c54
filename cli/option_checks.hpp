// What options refuse by themselves.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace polyhead::cli {

/// Anything but an empty text, which reads like an option that was not given: --lengths "$UNSET".
inline CLI::Validator not_empty() {
  const auto refusal = [](const std::string& text) {
    return text.empty() ? std::string("the value is empty") : std::string();
  };
  return CLI::Validator(refusal, "");
}

}  // namespace polyhead::cli
