// A model's file, whichever format it has: its configuration, its weights, its tokenizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/weight_type.hpp"
#include "models/config.hpp"
#include "models/tokenizers/spec.hpp"

namespace polyhead::inline v0::models {

/// One tensor as it lies in the mapped file. Rows are the last axis, contiguous; a row of a
/// quantised type is a whole number of blocks.
struct WeightTensor {
  std::string_view name;  ///< canonical
  WeightType type = WeightType::float32;
  std::vector<std::int64_t> shape;  ///< outermost first: a matrix is [out, in]
  bool transposed = false;  ///< the bytes hold [in, out] (gpt2's safetensors); plain types only
  std::span<const std::byte> data;
  std::string_view file_name;  ///< as the file spells it
};

/// A model on disk: a GGUF v3 file, or safetensors (a file, or a folder with an index of shards)
/// with config.json and tokenizer beside it. Memory-mapped; the whole header is checked on opening,
/// names, types and shapes against the configuration included. Throws FileError.
///
/// Canonical tensor names are GGUF's, for every format:
///   token_embd.weight, position_embd.weight, token_types.weight, token_embd_norm.{weight,bias},
///   output_norm.{weight,bias}, output.weight, and with blk.N. before them
///   attn_norm, attn_q, attn_k, attn_v, attn_qkv, attn_output, attn_q_norm, attn_k_norm,
///   post_attention_norm, ffn_norm, ffn_gate, ffn_up, ffn_down, post_ffw_norm,
///   attn_output_norm, layer_output_norm (bert), each .weight and, where there is one, .bias.
class ModelFile {
 public:
  explicit ModelFile(const std::string& path);

  const std::string& path() const;
  const ModelConfig& config() const;
  TokenizerSpec tokenizer()
      const;  ///< read when asked for; throws FileError when not there or not known
  const std::string& weight_format() const;  ///< "Q4_1", "F32": the type that holds most weights
  std::uint64_t fingerprint() const;         ///< of the header: names, types, shapes

  bool has(std::string_view name) const;
  const WeightTensor& tensor(std::string_view name) const;  ///< throws FileError when missing
  const std::vector<WeightTensor>& tensors() const;         ///< in file order

  struct State;

 private:
  std::shared_ptr<const State> state_;
};

/// Rows [first, first + count) of a tensor (rows are all axes but the last) as float32:
/// to[count][columns], whether it is stored transposed or not. The one meaning of every weight
/// type: kernels that keep weights quantised agree with it to the bit.
void dequantise_rows(const WeightTensor& tensor, std::int64_t first, std::int64_t count, float* to);

}  // namespace polyhead::inline v0::models
