// What `polyhead look` learned of one text, and who may write it down as a report.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/config.hpp"
#include "models/head_observer.hpp"
#include "models/model_file.hpp"
#include "models/tokenizers/tokenizer.hpp"

namespace polyhead::cli {

/// One text through one model. What a run finds out is there after it.
struct LookData {
  const models::ModelFile* file = nullptr;
  const models::Tokenizer* tokenizer = nullptr;
  const models::ModelConfig* config = nullptr;  ///< of the model that ran
  std::string weights;                          ///< "f32" or "bf16": how they were held
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> delimiters;   ///< a flag a token
  std::vector<std::vector<bool>> chosen;  ///< [layer][head]: --layers and --heads; all by default
  const models::HeadObserver* heads = nullptr;  ///< null before the run; layers chosen only

  /// Decoders: the likeliest next tokens with their logits and probabilities; mean negative
  /// log-likelihood of ids[1..] in nats (NaN for one token).
  struct Next {
    std::int32_t id = 0;
    double logit = 0, probability = 0;
  };
  std::vector<Next> top;
  double nll = 0;
  std::vector<float> embedding;  ///< encoders
  double seconds = 0;            ///< of the run
};

/// Bytes of each token as they follow each other in the text.
std::string token_bytes(const LookData& look, std::size_t index);

/// Punctuation, line ends and control tokens (docs/heads.md).
std::vector<std::uint8_t> delimiters_of(const models::Tokenizer& tokenizer,
                                        const std::vector<std::int32_t>& ids);

/// Takes part in a run and writes a report of it.
class LookReport : public models::LayerWatcher {
 public:
  /// Before the run: ids, config and delimiters of `look` are there; the object stays valid until
  /// write(). May throw UsageError or FileError.
  virtual void begin(const LookData& look) = 0;

  /// Maps to be kept of every head; maps [0 .. n) of each HeadStatistics are these.
  virtual std::vector<HeadMapSpec> maps() const = 0;

  /// After the run: writes the report, complete or not at all.
  virtual void write(const LookData& look) = 0;
};

}  // namespace polyhead::cli
