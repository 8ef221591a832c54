// The masks and modifiers of a call as command-line options, shared by every subcommand that
// attends.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/arrays.hpp"
#include "polyhead/attention.h"
#include "polyhead/error.h"

namespace CLI {
class App;
}

namespace polyhead::cli {

/// What the user wrote; arrays are loaded when the call is made.
class CallOptions {
 public:
  void add_mask_options(CLI::App& app);
  void add_modifier_options(CLI::App& app);

  /// Throws UsageError where options make no sense by themselves or beside each other, before any
  /// file is read.
  void check() const;

  /// Fills in mask, modifiers and the queries' positions. The arrays they point to belong to this
  /// object. Needs q, k and v in place. Throws FileError or InvalidArgument.
  void apply(AttentionArguments& call);
  /// Fills in the queries' positions alone.
  void place(AttentionArguments& call);

  bool modifies() const;  ///< anything between scale and softmax

  /// Calls the library; what it refuses is said in the words of these options: "mask.visible" is
  /// --mask. Names of files and tokens are none of its words and stay as they are.
  template <class Call>
  auto in_own_words(const Call& call) const {
    try {
      return call();
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(in_option_names(error.what()));
    }
  }

 private:
  std::string in_option_names(std::string message) const;
  bool uses_positions() const;
  void check_companions() const;
  Mask mask_of(const AttentionArguments& call);
  void apply_modifiers(Modifiers& modifiers, std::int64_t kv_len);
  ConstView keep(Array array);
  ConstView pair_table(const std::string& place, bool packed, const std::string& what,
                       std::int64_t kv_len);

  bool causal_ = false, alibi_ = false, packed_mask_ = false;
  std::string align_, q_start_, window_, prefix_, lengths_, q_lengths_, documents_, q_documents_,
      mask_, hidden_, bias_, slopes_, sink_;
  std::string sequence_ids_;
  std::optional<std::int64_t> first_tokens_;
  std::optional<float> scale_, dropout_;
  float soft_cap_ = 0.0f;
  std::optional<std::uint64_t> seed_;
  std::vector<Array> kept_;
};

/// Tokens of q, or of k, of the call's longest sequence. Offsets that make no sense are left to the
/// library to refuse.
std::int64_t longest_queries(const AttentionArguments& call);
std::int64_t longest_keys(const AttentionArguments& call);

/// What --isa names. Throws InvalidArgument for one that this processor lacks.
Isa isa_option(const std::string& name);

/// Which instruction set and how many threads.
class RunOptions {
 public:
  void add_options(CLI::App& app);
  Options options() const;

 private:
  std::string isa_;
  int threads_ = 0;
};

}  // namespace polyhead::cli
