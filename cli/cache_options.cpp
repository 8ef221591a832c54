#include "cli/cache_options.hpp"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <system_error>

#include "base/ceil_div.hpp"
#include "cli/option_checks.hpp"
#include "models/formats/file_error.hpp"
#include "models/formats/output_file.hpp"

namespace polyhead::cli {

using formats::FileError;

namespace {

constexpr std::int64_t kTokenBytes = 4;      // its id, beside its rows
constexpr std::int64_t kHeaderBytes = 1024;  // generous: of the file, of its sequence, a checksum

}  // namespace

void CacheOptions::add_options(CLI::App& app) {
  app.add_option("--save-cache", save_,
                 "Write the keys and values of the prompt and its answer to a file, as far as\n"
                 "they fill pages; with --prompt")
      ->type_name("FILE")
      ->check(output_name())
      ->needs(app.get_option("--prompt"));
  app.add_option("--load-cache", load_,
                 "Prompts that begin with what such a file holds take it from there: the same\n"
                 "answers, sooner")
      ->type_name("FILE")
      ->check(not_empty());
}

void CacheOptions::check() const {
  if (!save_.empty()) formats::check_writable(save_);
}

std::int64_t CacheOptions::pages(const models::Model& model,
                                 const models::BatcherOptions& options) const {
  if (load_.empty()) return 0;
  std::error_code failed;
  const std::uintmax_t bytes = std::filesystem::file_size(load_, failed);
  if (failed) throw FileError(load_, "cannot be read: " + failed.message());
  // A file's rows take as many bytes as a pool's, which nothing else tells.
  const models::SequencePool pool = model.make_pool(1, options.page_tokens, options.cache);
  const std::int64_t page = pool.cache().bytes() + kTokenBytes * options.page_tokens;
  // Before anything of that size is allocated: --save-cache writes one text, of the context at
  // most.
  const std::int64_t context = model.config().context_length;
  const std::int64_t most = base::ceil_div(context, options.page_tokens) * page + kHeaderBytes;
  if (bytes > static_cast<std::uintmax_t>(most)) {
    throw FileError(load_, "has " + std::to_string(bytes) + " bytes, expected at most " +
                               std::to_string(most) + ": what the model's context of " +
                               std::to_string(context) + " tokens takes");
  }
  return static_cast<std::int64_t>(bytes) / pool.cache().bytes() + 1;
}

void CacheOptions::load(models::Batcher& batcher, const CacheFingerprint& fingerprint) const {
  if (load_.empty()) return;
  try {
    batcher.load(load_, fingerprint);
  } catch (const InvalidArgument& error) {
    std::string what = error.what();
    if (what.find("another fingerprint") != std::string::npos ||
        what.find("its type is") != std::string::npos) {
      what +=
          " (a file serves the model, --weights, --isa, --kv-type, --kv-keys and --kv-text that "
          "it was saved with)";
    }
    throw FileError("--load-cache", what);
  }
}

std::int64_t CacheOptions::save(models::Batcher& batcher, const CacheFingerprint& fingerprint,
                                std::span<const std::int32_t> tokens) const {
  return save_.empty() ? 0 : batcher.save(tokens, save_, fingerprint);
}

}  // namespace polyhead::cli
