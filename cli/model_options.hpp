// A model on the command line, shared by every subcommand that runs one.
#pragma once

#include <cstddef>
#include <iosfwd>
#include <string>

#include "cli/call_options.hpp"
#include "models/model.hpp"

namespace polyhead::cli {

/// MODEL, --weights, --isa and --threads.
class ModelOptions {
 public:
  void add_options(CLI::App& app);

  /// The model's file. Throws FileError.
  models::ModelFile open() const;

  /// Its weights, packed.
  models::Model load(const models::ModelFile& file) const;

  /// "f32" or "bf16".
  const std::string& weights() const { return weights_; }

  models::ModelOptions options() const;
  Options run_options() const { return run_.options(); }

 private:
  std::string place_, weights_ = "f32";
  RunOptions run_;
};

inline constexpr std::size_t kLongestText = std::size_t{1} << 30;  // no text that is run is longer

/// The whole of a file, or of standard input for "-", of at most kLongestText. Throws FileError.
std::string read_text(const std::string& place);

/// All there is, in pieces, since a device may have no end. Throws FileError naming `place` where
/// that is more than `most` bytes, of which no more are kept.
std::string read_all(std::istream& from, const std::string& place, std::size_t most = kLongestText);

/// What people call the model: the name of its file or folder, without ".gguf" and the weights'
/// format before it. (The name inside the file may be anything: `ModelConfig::name`.)
std::string model_title(const models::ModelFile& file);

/// "1.23 s", "45.6 ms".
std::string duration(double seconds);

}  // namespace polyhead::cli
