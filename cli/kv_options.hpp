// How the KV cache is held, on the command line: for every subcommand that fills one.
#pragma once

#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "cli/command.hpp"
#include "models/model.hpp"
#include "models/tokenizers/tokenizer.hpp"

namespace polyhead::cli {

/// What --kv-type calls a type that caches hold.
std::string kv_type_name(ElementType type);

/// --kv-type, --kv-keys and --kv-text.
class KvOptions {
 public:
  void add_options(CLI::App& app);

  /// Throws UsageError where they make no sense together, or with `texts`: options beside them that
  /// read a file, and their values.
  void check(std::initializer_list<std::pair<const char*, std::string>> texts) const;

  /// Whether the form depends on what is read.
  bool follows_prompt() const { return keys_ == "channel" && text_.empty(); }

  /// Of --kv-type; none without it.
  std::optional<ElementType> type() const;

  /// What they ask for. Keys by channel are calibrated on the first tokens of --kv-text for the
  /// model's context, or else of `ids` for a cache of `length` tokens, the context at most; a text
  /// of the program's own follows `ids` that are few. Throws FileError, also
  /// for a text without tokens.
  models::CacheForm form(const models::Model& model, const models::Tokenizer& tokenizer,
                         std::span<const std::int32_t> ids, std::int64_t length) const;

 private:
  std::string type_, keys_, text_;
};

}  // namespace polyhead::cli
