// Many prompts through one running batch.
#pragma once

#include <string>
#include <vector>

#include "cli/answer_options.hpp"
#include "cli/cache_options.hpp"
#include "cli/console.hpp"
#include "models/batcher.hpp"
#include "models/tokenizers/tokenizer.hpp"

namespace polyhead::cli {

/// A prompt as the file has it, and what the model is given for it.
struct Prompt {
  std::size_t line = 0;  ///< of the file, from 1
  std::string text;
  std::vector<std::int32_t> ids;
};

/// How the batch runs and what is printed of it.
struct ManyOptions {
  std::int64_t batch = 8;
  std::int64_t page_tokens = 64;
  std::int64_t pool_tokens = 0;  ///< 0: as much as the longest request needs, for each of the batch
  AnswerRules rules{};
  models::CacheForm cache{};
  const CacheOptions* files = nullptr;  ///< of the cache, and what they must be of
  CacheOrigin origin{};
  bool json = false;
};

/// The lines of a file that are not empty, without their ids. Throws FileError, also where there
/// are none.
std::vector<Prompt> prompt_lines(const std::string& place);

/// "end", "stop_text", "context", "max_tokens", "failed".
const char* stop_name(models::Stop stop, const AnswerText& text);

/// The pages of a pool for these prompts and their answers, as many at once as the batch has, and
/// for what --load-cache brings.
models::BatcherOptions batcher_options(const models::Model& model,
                                       const std::vector<Prompt>& prompts,
                                       const ManyOptions& options);

/// Throws FileError, with the line, for a prompt that cannot run: one without a token, or too long
/// for the model's context or for --pool-tokens.
void check_prompts(const std::string& place, const std::vector<Prompt>& prompts,
                   const ManyOptions& options, std::int64_t context);

/// Answers every prompt of the file `place`, in its order; figures go to the error stream, or with
/// the answers into JSON. Throws FileError, with the line, where a prompt's logits are no numbers,
/// when all others have their answers.
void generate_many(const Console& console, const models::Model& model,
                   const models::Tokenizer& tokenizer, const std::string& place,
                   const std::vector<Prompt>& prompts, const ManyOptions& options);

}  // namespace polyhead::cli
