// Files of keys and values on the command line, so that what prompts begin with is read once.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "cli/command.hpp"
#include "models/batcher.hpp"
#include "models/cache_fingerprint.hpp"

namespace polyhead::cli {

/// The run that files of the cache must be of.
struct CacheOrigin {
  const models::ModelFile* file = nullptr;  ///< outlives this
  models::ModelOptions run{};
  CacheFingerprint fingerprint{};
};

/// --save-cache and --load-cache.
class CacheOptions {
 public:
  void add_options(CLI::App& app);

  bool saves() const { return !save_.empty(); }
  bool loads() const { return !load_.empty(); }
  bool given() const { return saves() || loads(); }

  /// Throws FileError where --save-cache cannot be written to: before anything runs, and again once
  /// the files are read that it may not take the place of.
  void check() const;

  /// How --load-cache holds rows of `type` whose frames were calibrated before it was saved. Throws
  /// FileError, also where it has none.
  models::CacheForm form(const models::Model& model, ElementType type, std::int64_t page_tokens,
                         const CacheOrigin& origin) const;

  /// Pages of `options` that hold all of --load-cache; 0 without one. Throws FileError.
  std::int64_t pages(const models::Model& model, const models::BatcherOptions& options) const;

  /// Lets prompts begin with what --load-cache holds, in a batcher whose cache has this form; says
  /// so where none of them does. Throws FileError.
  void load(models::Batcher& batcher, const models::CacheForm& form, const CacheOrigin& origin,
            std::span<const std::span<const std::int32_t>> prompts, const Console& console) const;

  /// Writes what is held of `tokens`; how many that is, 0 without --save-cache. Throws
  /// FileError where it cannot be written.
  std::int64_t save(models::Batcher& batcher, const CacheOrigin& origin,
                    std::span<const std::int32_t> tokens) const;

 private:
  std::int64_t checked_bytes(const models::Model& model, std::int64_t page_tokens) const;

  std::string save_, load_;
};

}  // namespace polyhead::cli
