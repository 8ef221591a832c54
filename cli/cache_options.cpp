#include "cli/cache_options.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "base/ceil_div.hpp"
#include "cli/option_checks.hpp"
#include "models/cache_notes.hpp"
#include "models/formats/file_error.hpp"
#include "models/formats/output_file.hpp"

namespace polyhead::cli {

using formats::FileError;

namespace {

constexpr std::int64_t kTokenBytes = 4;      // its id, beside its rows
constexpr std::int64_t kHeaderBytes = 1024;  // generous: of the file, of its sequence, a checksum

/// Of a pool, whose rows take as many bytes as a file's.
std::int64_t page_bytes(const models::Model& model, std::int64_t page_tokens,
                        const models::CacheForm& form) {
  return model.make_pool(1, page_tokens, form).cache().bytes();
}

/// "begin.kv: is damaged" for "load_notes: begin.kv is damaged": the file before what is wrong with
/// it, and not what was called.
std::string said_of(const std::string& file, std::string_view what) {
  constexpr std::string_view kAfterCall = ": ";
  const std::size_t call = what.find(kAfterCall);
  if (call != what.npos) what.remove_prefix(call + kAfterCall.size());
  if (!what.starts_with(file)) return std::string(what);
  what.remove_prefix(file.size());
  what.remove_prefix(std::min(what.find_first_not_of(" ,:"), what.size()));
  return std::string(what);
}

/// Calls what reads or writes `file`; where it is of another run, says what it must be of.
template <class Call>
auto in_own_words(const std::string& file, const Call& call) {
  try {
    return call();
  } catch (const InvalidArgument& error) {
    std::string what = said_of(file, error.what());
    const auto says = [&](const char* words) { return what.find(words) != std::string::npos; };
    if (says("another fingerprint") || says("its type is") || says("in other frames")) {
      what +=
          " (a file serves the model, --weights, --isa, --kv-type, --kv-keys and --kv-text that "
          "it was saved with)";
    }
    throw FileError(file, what);
  }
}

}  // namespace

void CacheOptions::add_options(CLI::App& app) {
  app.add_option("--save-cache", save_,
                 "Write the keys and values of the prompt and its answer to a file, as far as\n"
                 "they fill pages; with --prompt or --file")
      ->type_name("FILE")
      ->check(output_name());
  app.add_option("--load-cache", load_,
                 "Prompts that begin with what such a file holds take it from there, and channels\n"
                 "without --kv-text are calibrated as they were then: the same answers, sooner")
      ->type_name("FILE")
      ->check(not_empty());
}

void CacheOptions::check() const {
  if (!save_.empty()) formats::check_writable(save_);
}

/// Of --load-cache, before anything of that size is allocated: --save-cache writes one text, of the
/// context at most.
std::int64_t CacheOptions::checked_bytes(const models::Model& model, std::int64_t page_tokens,
                                         const models::CacheForm& form) const {
  std::error_code failed;
  const std::uintmax_t bytes = std::filesystem::file_size(load_, failed);
  if (failed) throw FileError(load_, "cannot be read: " + failed.message());
  const std::int64_t context = model.config().context_length;
  const std::int64_t page = page_bytes(model, page_tokens, form) + kTokenBytes * page_tokens;
  const std::int64_t most = base::ceil_div(context, page_tokens) * page +
                            models::most_note_bytes(model.config()) + kHeaderBytes;
  if (bytes > static_cast<std::uintmax_t>(most)) {
    throw FileError(load_, "has " + std::to_string(bytes) + " bytes, expected at most " +
                               std::to_string(most) + ": what the model's context of " +
                               std::to_string(context) + " tokens takes");
  }
  return static_cast<std::int64_t>(bytes);
}

std::int64_t CacheOptions::pages(const models::Model& model,
                                 const models::BatcherOptions& options) const {
  if (!loads()) return 0;
  return checked_bytes(model, options.page_tokens, options.cache) /
             page_bytes(model, options.page_tokens, options.cache) +
         1;
}

models::CacheForm CacheOptions::form(const models::Model& model, ElementType type,
                                     std::int64_t page_tokens,
                                     const CacheFingerprint& fingerprint) const {
  checked_bytes(model, page_tokens, {type});
  return in_own_words(load_, [&] {
    auto frames = models::frames_of_notes(load_, load_notes(load_, fingerprint));
    if (frames.empty()) throw FileError(load_, "was saved without --kv-keys channel");
    return models::CacheForm{type, {}, std::move(frames)};
  });
}

void CacheOptions::load(models::Batcher& batcher, const CacheFingerprint& fingerprint) const {
  if (loads()) in_own_words(load_, [&] { batcher.load(load_, fingerprint); });
}

std::int64_t CacheOptions::save(models::Batcher& batcher, const CacheFingerprint& fingerprint,
                                std::span<const std::int32_t> tokens) const {
  if (save_.empty()) return 0;
  return in_own_words(save_, [&] { return batcher.save(tokens, save_, fingerprint); });
}

}  // namespace polyhead::cli
