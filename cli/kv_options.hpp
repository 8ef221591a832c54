// How the KV cache is held, on the command line: for every subcommand that fills one.
#pragma once

#include <span>
#include <string>

#include "cli/command.hpp"
#include "models/model.hpp"

namespace polyhead::cli {

/// --kv-type and --kv-keys.
class KvOptions {
 public:
  void add_options(CLI::App& app);

  /// Throws UsageError where the two make no sense together.
  void check() const;

  /// What they ask for; keys by channel are calibrated on the first tokens of `ids`, for a cache of
  /// `length` tokens or of the model's context if that is less.
  models::CacheForm form(const models::Model& model, std::span<const std::int32_t> ids,
                         std::int64_t length) const;

 private:
  std::string type_, keys_ = "token";
};

}  // namespace polyhead::cli
