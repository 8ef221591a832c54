#include "cli/cache_options.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "base/ceil_div.hpp"
#include "cli/kv_options.hpp"
#include "cli/option_checks.hpp"
#include "cli/table.hpp"
#include "models/cache_notes.hpp"
#include "models/formats/file_error.hpp"
#include "models/formats/output_file.hpp"
#include "polyhead/error.h"
#include "polyhead/isa.h"

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

/// What a run is other than this one, in the words of its options.
std::string other_run(const models::WeightRun& saved, const models::WeightRun& here) {
  const auto form = [](models::WeightForm weights) {
    return std::string(weights == models::WeightForm::bfloat16 ? "bf16" : "f32");
  };
  std::string was, is;
  if (saved.weights != here.weights) {
    was = "--weights " + form(saved.weights);
    is = form(here.weights);
  }
  if (saved.isa != here.isa) {
    was.append(was.empty() ? "" : " and ").append("--isa ").append(isa_name(saved.isa));
    is.append(is.empty() ? "" : " and ").append(isa_name(here.isa));
  }
  return "was saved with " + was + ", this run has " + is;
}

/// "was saved with --kv-type f32, this run has bf16" for "sequence 0: its type is float32, expected
/// bfloat16"; what is said of anything else as it is.
std::string other_type(const std::string& what) {
  constexpr std::string_view kIs = "its type is ", kExpected = ", expected ";
  const std::size_t is = what.find(kIs), expected = what.find(kExpected);
  if (is == what.npos || expected == what.npos) return what;
  const std::size_t found = is + kIs.size();
  return "was saved with --kv-type " + kv_type_name(what.substr(found, expected - found)) +
         ", this run has " + kv_type_name(what.substr(expected + kExpected.size()));
}

/// What the library says of a file whose fingerprint, type or frames are others, as far as it is
/// known what that comes of.
std::string in_words(const std::string& what, const CacheOrigin& origin) {
  if (what.find("in other frames") != what.npos)
    return "was saved with other --kv-keys or --kv-text than this run has";
  constexpr std::string_view kBegins = "was saved with another fingerprint of the ";
  if (!what.starts_with(kBegins)) return other_type(what);
  const std::string_view part = std::string_view(what).substr(kBegins.size());
  if (part.starts_with("model"))
    return "was saved with another model, or another configuration of this one";
  if (part.starts_with("RoPE"))
    return "was saved with other rotations of positions (RoPE) than the model's configuration says";
  if (!part.starts_with("weights (")) return what;
  std::uint64_t found = 0;
  const std::string_view digits = part.substr(std::string_view("weights (").size());
  std::from_chars(digits.data(), digits.data() + digits.size(), found);
  const auto saved = models::run_of_weights(*origin.file, found);
  return saved ? other_run(*saved, models::weight_run(origin.run))
               : "was saved with other weights than the model's";
}

/// Calls what reads or writes `file`; where it is of another run, says what it must be of.
template <class Call>
auto in_own_words(const std::string& file, const CacheOrigin& origin, const Call& call) {
  try {
    return call();
  } catch (const InvalidArgument& error) {
    const std::string what = said_of(file, error.what());
    const auto says = [&](const char* words) { return what.find(words) != std::string::npos; };
    if (says("another fingerprint") || says("its type is") || says("in other frames")) {
      throw FileError(file, in_words(what, origin) +
                                " (a file serves the model, --weights, --isa, --kv-type, --kv-keys "
                                "and --kv-text that it was saved with)");
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
                                     std::int64_t page_tokens, const CacheOrigin& origin) const {
  checked_bytes(model, page_tokens, {type});
  return in_own_words(load_, origin, [&] {
    auto frames = models::frames_of_notes(load_, load_notes(load_, origin.fingerprint));
    if (frames.empty()) throw FileError(load_, "was saved without --kv-keys channel");
    return models::CacheForm{type, {}, std::move(frames)};
  });
}

void CacheOptions::load(models::Batcher& batcher, const CacheOrigin& origin,
                        std::span<const std::span<const std::int32_t>> prompts,
                        const Console& console) const {
  if (!loads()) return;
  in_own_words(load_, origin, [&] { batcher.load(load_, origin.fingerprint); });
  for (const std::span<const std::int32_t> prompt : prompts) {
    if (batcher.remembered(prompt) > 0) return;
  }
  console.err << "polyhead: " << printable(load_) << ": nothing of it is used: "
              << (prompts.size() == 1 ? "the prompt does not go on" : "no prompt goes on")
              << " from a whole page (" << batcher.cache().config().page_tokens
              << " tokens) of what it holds\n";
}

std::int64_t CacheOptions::save(models::Batcher& batcher, const CacheOrigin& origin,
                                std::span<const std::int32_t> tokens) const {
  if (save_.empty()) return 0;
  return in_own_words(save_, origin,
                      [&] { return batcher.save(tokens, save_, origin.fingerprint); });
}

}  // namespace polyhead::cli
