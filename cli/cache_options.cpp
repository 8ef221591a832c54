#include "cli/cache_options.hpp"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <system_error>

#include "base/ceil_div.hpp"
#include "cli/kv_options.hpp"
#include "cli/option_checks.hpp"
#include "cli/said_of_file.hpp"
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
  return "with " + was + ", this run has " + is;
}

/// What a file was saved with, where its fingerprint is another than this run's; empty: it is not.
std::string other_origin(const CacheFingerprint& saved, const CacheOrigin& origin) {
  const CacheFingerprint& here = origin.fingerprint;
  if (saved.model != here.model) return "with another model, or another configuration of this one";
  if (saved.weights != here.weights) {
    const auto run = models::run_of_weights(*origin.file, saved.weights);
    return run ? other_run(*run, models::weight_run(origin.run))
               : "with other weights than the model's";
  }
  if (saved.rope != here.rope)
    return "with other rotations of positions (RoPE) than the model's configuration says";
  return {};
}

/// What a file was saved with that this run has not, whose cache holds `type` and, where they are
/// known, `frames`; empty: nothing, or it is no such file.
std::string other_than(const std::string& file, const CacheOrigin& origin, ElementType type,
                       const std::vector<LayerFrames>* frames) try {
  const CacheFileInfo saved = load_cache_file_info(file);
  if (saved.kind != CacheFileInfo::Kind::sequences) return {};
  if (std::string other = other_origin(saved.fingerprint, origin); !other.empty()) return other;
  if (saved.count > 0 && saved.type != type)
    return "with --kv-type " + kv_type_name(saved.type) + ", this run has " + kv_type_name(type);
  if (frames == nullptr) return {};
  const std::vector<std::byte> notes = load_notes(file, saved.fingerprint);
  const bool had = !models::frames_of_notes(file, notes).empty();
  if (had == frames->empty()) return had ? "with --kv-keys channel" : "without --kv-keys channel";
  if (notes != models::notes_of(*frames))
    return "with channels calibrated on another text than this run's";
  return {};
} catch (const InvalidArgument&) {
  return {};  // what it was refused for says more
}

/// Calls what reads `file`. Throws FileError for what is refused: where the file is of another run,
/// as `other` then says, for that.
template <class Call, class Other>
auto unless_of_other_run(const std::string& file, const Call& call, const Other& other) {
  return said_of_file(file, [&] {
    try {
      return call();
    } catch (const InvalidArgument&) {
      const std::string with = other();
      if (with.empty()) throw;
      throw FileError(file, "was saved " + with +
                                " (a file serves the model, --weights, --isa, --kv-type, --kv-keys "
                                "and --kv-text that it was saved with)");
    }
  });
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
/// context at most, whatever type its rows have.
std::int64_t CacheOptions::checked_bytes(const models::Model& model,
                                         std::int64_t page_tokens) const {
  std::error_code failed;
  const std::uintmax_t bytes = std::filesystem::file_size(load_, failed);
  if (failed) throw FileError(load_, "cannot be read: " + failed.message());
  const std::int64_t context = model.config().context_length;
  const std::int64_t page =
      page_bytes(model, page_tokens, {ElementType::float32}) + kTokenBytes * page_tokens;
  const std::int64_t most = base::ceil_div(context, page_tokens) * page +
                            models::most_note_bytes(model.config()) + kHeaderBytes;
  if (bytes > static_cast<std::uintmax_t>(most)) {
    throw FileError(load_, "has " + std::to_string(bytes) + " bytes, expected at most " +
                               std::to_string(most) + ": what the model's context of " +
                               std::to_string(context) + " tokens takes in f32");
  }
  return static_cast<std::int64_t>(bytes);
}

std::int64_t CacheOptions::pages(const models::Model& model,
                                 const models::BatcherOptions& options) const {
  if (!loads()) return 0;
  return checked_bytes(model, options.page_tokens) /
             page_bytes(model, options.page_tokens, options.cache) +
         1;
}

models::CacheForm CacheOptions::form(const models::Model& model, ElementType type,
                                     std::int64_t page_tokens, const CacheOrigin& origin) const {
  checked_bytes(model, page_tokens);
  const auto form_of_file = [&] {
    auto frames = models::frames_of_notes(load_, load_notes(load_, origin.fingerprint));
    if (frames.empty()) throw FileError(load_, "was saved without --kv-keys channel");
    return models::CacheForm{type, {}, std::move(frames)};
  };
  return unless_of_other_run(load_, form_of_file,
                             [&] { return other_than(load_, origin, type, nullptr); });
}

void CacheOptions::load(models::Batcher& batcher, const models::CacheForm& form,
                        const CacheOrigin& origin,
                        std::span<const std::span<const std::int32_t>> prompts,
                        const Console& console) const {
  if (!loads()) return;
  unless_of_other_run(
      load_, [&] { batcher.load(load_, origin.fingerprint); },
      [&] { return other_than(load_, origin, batcher.cache().config().type, &form.frames); });
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
  return said_of_file(save_, [&] { return batcher.save(tokens, save_, origin.fingerprint); });
}

}  // namespace polyhead::cli
