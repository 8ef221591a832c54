// What multi-head attention costs before anyone runs it: parameters, FLOPs, bytes, time, what fits.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "polyhead/error.h"

#pragma GCC visibility push(default)
namespace polyhead::inline v0::cost {

__extension__ typedef unsigned __int128 Wide;

/// A whole number from 0 to 2^128 - 1, exact. Arithmetic that would leave that range throws
/// InvalidArgument, from the functions of this header with the name of the term.
class Count {
 public:
  constexpr Count() = default;
  template <std::integral T>
  constexpr Count(T value) : value_(static_cast<Wide>(value)) {  // NOLINT: counts are numbers
    if constexpr (std::signed_integral<T>) {
      if (value < 0) negative();
    }
  }
  constexpr explicit Count(Wide value) : value_(value) {}

  constexpr Wide wide() const { return value_; }
  double to_double() const { return static_cast<double>(value_); }
  std::string str() const;              ///< decimal digits
  std::string grouped() const;          ///< "1,024"
  bool fits(std::int64_t limit) const;  ///< at most `limit`

  friend Count operator+(Count a, Count b);
  friend Count operator-(Count a, Count b);
  friend Count operator*(Count a, Count b);
  friend Count operator/(Count a, Count b);  ///< rounded down
  friend Count ceil_div(Count a, Count b);   ///< rounded up
  friend constexpr bool operator==(Count a, Count b) { return a.value_ == b.value_; }
  friend constexpr auto operator<=>(Count a, Count b) { return a.value_ <=> b.value_; }

 private:
  [[noreturn]] static void negative();

  Wide value_ = 0;
};

Count ceil_div(Count a, Count b);

enum class Unit : std::uint8_t { parameters, flops, bytes, elements };

/// One number of a term's product. `name` is empty for a plain constant.
struct Factor {
  std::string name{};
  Count value;
};

/// A figure that shows where it comes from: value = product of the factors, times the sum of the
/// parts where there are any. What is printed is what was computed: text and number have one
/// source.
struct Term {
  std::string id{};      ///< "scores": the same in tables, JSON and CSV
  std::string layers{};  ///< which of the model's layers, where it is of some: "experts"
  std::string note{};    ///< what it is, and what it assumes; may be empty
  Unit unit = Unit::flops;
  std::vector<Factor> factors{};
  std::vector<Term> parts{};
  Count value;

  std::string label() const;                    ///< "attention_of_layers[experts]", or the id alone
  std::string formula() const;                  ///< "2 · tokens · model_dim", "count · (a + b)"
  std::string numbers() const;                  ///< "2 · 4,096 · 8,192"
  const Term* find(std::string_view id) const;  ///< this or a part, at any depth; else null
  Count at(std::string_view id) const;          ///< the sum over parts of that id; 0: none
};

// --- what a model is -----------------------------------------------------------------------------

/// What the queries of a layer see. `source` is cross attention from an encoder's output, `all` an
/// encoder: neither keeps a key-value cache that grows with what is generated.
enum class Attends : std::uint8_t { causal, all, source };

/// Multi-head latent attention (DeepSeek-V2, section 2.1): kv_rank + rope_dim cached a token.
struct Latent {
  std::int64_t q_rank = 0;   ///< columns of the query latent; 0: q comes straight from x
  std::int64_t kv_rank = 0;  ///< columns of the cached latent; 0: no latent attention
  std::int64_t nope_dim = 0, rope_dim = 0;
  bool given() const { return kv_rank > 0; }
};

struct Biases {
  bool q = false, k = false, v = false, output = false;
};

struct FeedForward {
  std::int64_t ffn_dim = 0;       ///< of one expert where there are experts; 0: no feed-forward
  bool gated = true;              ///< three matrices, else two
  bool biases = false;            ///< of every matrix, and of the router
  std::int64_t experts = 0;       ///< 0: dense
  std::int64_t experts_used = 0;  ///< of each token
  std::int64_t shared_dim = 0;    ///< summed ffn_dim of the experts that every token takes
  bool router_bias = false;
};

/// One or several equal layers. With `latent` given, q_heads and value_dim hold as they stand,
/// head_dim is nope_dim + rope_dim and kv_heads is q_heads.
struct Layer {
  std::string name{};      ///< "local", "dense"; may be empty
  std::int64_t count = 1;  ///< equal layers
  std::int64_t model_dim = 0;
  std::int64_t q_heads = 0, kv_heads = 0, head_dim = 0, value_dim = 0;
  std::int64_t window = 0;  ///< keys a query sees, itself included; 0: all before it
  Attends attends = Attends::causal;
  Latent latent{};
  Biases biases{};
  bool qk_norm = false;              ///< one weight an element of a head, for q and for k
  bool sinks = false;                ///< one logit a query head
  std::int64_t norm_parameters = 0;  ///< of the layer's other norms, weights and biases
  FeedForward ffn{};
};

/// How elements lie in memory: blocks with their scales. "int8" and "int4" are blocks of 32 with a
/// 16-bit scale (ggml's q8_0 and q4_0), "fp8" has none, "mxfp4" is OCP's (32 with an 8-bit scale).
/// "cache-int8", "cache-int4" and "cache-fp8" are what this library's caches hold: codes padded to
/// 32, a float32 scale for 32 or none; "int8-by-channel" and "int4-by-channel" its keys with scales
/// by channel. (Latents, which are values too, are then counted as the type of values.)
struct StorageType {
  std::string name{};
  std::int64_t block_elements = 1, block_bytes = 2;
  std::int64_t channel_bytes = 0;  ///< of scales, for each dim of each KV head of a layer
};

/// So many weights of one of the parts of parameters() lie in memory as `type`.
struct StoredWeights {
  std::string part{};
  StorageType type;
  std::int64_t weights = 0;
};

struct ModelDescription {
  std::string id{}, name{}, source{};
  std::vector<std::string> aliases{};
  std::vector<Layer> layers{};
  std::int64_t vocab_size = 0;
  bool tied_output = true;            ///< the output matrix is the token embedding
  bool output_matrix = true;          ///< false: no logits (an encoder)
  std::int64_t position_rows = 0;     ///< of a learned table of positions
  std::int64_t other_parameters = 0;  ///< final norm, token types, pooler
  std::int64_t context_length = 0;    ///< tokens it was made for; 0: not said
  std::string weight_type = "bf16";   ///< what its weights are published in
  std::string expert_type{};          ///< of expert matrices; empty: weight_type
  /// The weights of every part by their own types, as a file has them; a part that is not listed
  /// has weight_type.
  std::vector<StoredWeights> stored{};
};

struct Machine {
  std::string id{}, name{}, source{};
  std::vector<std::string> aliases{};
  double f32_flops = 0, f16_flops = 0, fp8_flops = 0;  ///< dense, a second; 0: does not have it
  std::int64_t memory_bytes = 0;                       ///< of one device
  double memory_bandwidth = 0;                         ///< bytes a second
  double link_bandwidth = 0;  ///< bytes a second and direction to other devices; 0: unknown
};

// Presets, in the order in which they are listed; names are matched without regard to case.
const std::vector<ModelDescription>& model_presets();
const std::vector<Machine>& machine_presets();
const std::vector<StorageType>& storage_types();

/// By id or alias. Throws InvalidArgument that names the nearest where there is none.
const ModelDescription& model_preset(std::string_view id);
const Machine& machine_preset(std::string_view id);
const StorageType& storage_type(std::string_view name);

/// The model with another number of KV heads in every layer that is not latent: MHA, GQA or MQA of
/// otherwise the same shape. Throws InvalidArgument where it does not divide q_heads.
ModelDescription with_kv_heads(ModelDescription model, std::int64_t kv_heads);

/// The model with its embedding and output matrix stored as `type`, whatever the layers' weights
/// are: files in fp8 leave those two as they were trained.
ModelDescription with_vocabulary_as(ModelDescription model, std::string_view type);

// --- what is asked of it -------------------------------------------------------------------------

enum class LatentForm : std::uint8_t { expanded, absorbed };

/// How causal scores are counted: every query against the most keys that any query of its call
/// sees, or exactly the pairs that are visible (the triangle, the band of a window).
enum class Counting : std::uint8_t { full, triangle };

enum class Compute : std::uint8_t { f32, f16, fp8 };  ///< arithmetic that the machine's peak is of

/// Activations of a layer: the widest step at a time in memory that is used again, or each step in
/// memory of its own, as this library's models keep them.
enum class Scratch : std::uint8_t { reused, apart };

/// Windowed layers in rings of pages of 64 tokens, allocated whole (SlidingCache).
struct RingCache {
  std::int64_t chunk = 1;         ///< most tokens appended at once
  std::int64_t first_tokens = 0;  ///< kept for ever
};

struct Workload {
  std::int64_t batch = 1;
  std::int64_t prompt = 0;     ///< tokens of each sequence given at once
  std::int64_t generated = 0;  ///< tokens of each after it; the first comes out of the prompt
  std::int64_t chunk = 0;      ///< tokens of a prefill call; 0: all at once
  Counting counting = Counting::full;
  LatentForm prefill_form = LatentForm::expanded, decode_form = LatentForm::absorbed;
  StorageType kv_type{"f16", 1, 2};
  std::optional<StorageType> key_type{};  ///< keys, where they are not stored as kv_type
  StorageType activation_type{"f16", 1, 2};
  std::optional<StorageType> weight_type{};  ///< of all weights; none: as the model is published
  std::int64_t page_tokens = 0;              ///< tokens of a cache page; 0: no paging
  bool bounded_windows = true;               ///< windowed layers keep their window only
  std::optional<RingCache> ring{};           ///< of windowed layers
  std::int64_t scratch_tokens = 8192;        ///< at most so many rows under way where chunk is 0
  Scratch scratch = Scratch::reused;
  std::int64_t context() const { return prompt + generated; }
};

/// Several devices. Tensor: heads, feed-forward columns and vocabulary over devices, KV heads
/// replicated where there are fewer than devices. Ring: tokens over devices, weights on each.
enum class Split : std::uint8_t { none, tensor, ring };
struct Devices {
  std::int64_t count = 1;
  Split split = Split::none;
};

/// What one device of a tensor split has: its heads, its columns, its rows of the vocabulary; KV
/// heads are replicated where there are fewer than devices. Otherwise the model itself. Throws
/// InvalidArgument for devices that it cannot be split over.
ModelDescription of_one_device(const ModelDescription& model, const Devices& devices);

// --- what it costs -------------------------------------------------------------------------------

/// Parts: attention (q, k, v, o matrices, biases), feed_forward, norms, embedding, output, other.
Term parameters(const ModelDescription& model);

/// Of one layer's attention: w_q, w_k, w_v, w_o and what else it has; for latent attention
/// w_q_down, w_q_up, w_kv_down, w_kv_up, w_o and their norms.
Term attention_parameters(const Layer& layer);

enum class Phase : std::uint8_t {
  prefill,             ///< the prompt, in calls of `chunk` tokens
  decode_step,         ///< one more token of each sequence, the last of context() keys its own
  generation,          ///< all decode steps: generated - 1 of them, on prompt + 1 ... keys
  training,            ///< forward and backward over the prompt, P stored
  training_recompute,  ///< the same, scores computed again in the backward pass
};

/// Of one layer's attention. Parts in order: q_projection, k_projection, v_projection, scores,
/// weighted_sum, output_projection. `count` equal layers are not multiplied in. Softmax and
/// rotation are not in it.
Term attention_flops(const Layer& layer, const Workload& workload, Phase phase);

/// 5 operations a score: scale, compare, subtract, exponential, add. Of one layer.
Term softmax_flops(const Layer& layer, const Workload& workload, Phase phase);

/// Of the model. Parts: projections, attention (scores and weighted sums), feed_forward, logits.
/// attention_only() of it is the sum of the first two.
Term model_flops(const ModelDescription& model, const Workload& workload, Phase phase);
Count attention_only(const Term& model_flops);

/// Scores of one layer if they were written to memory: batch · q_heads · queries · keys elements of
/// the activation type.
Term score_bytes(const Layer& layer, const Workload& workload);

/// Elements kept a token by one layer, as bytes of the KV type (keys as bytes of `keys` where
/// given): rows of a head are whole blocks.
Term kv_bytes_per_token(const Layer& layer, const StorageType& type,
                        const std::optional<StorageType>& keys = {});

/// Of all layers that keep a cache, batch included; pages rounded up, rows of a head to whole
/// blocks; a part a group of layers.
Term kv_cache_bytes(const ModelDescription& model, const Workload& workload,
                    const Devices& devices = {});

/// As stored; whole blocks.
Term weight_bytes(const ModelDescription& model, const Workload& workload,
                  const Devices& devices = {});

/// Activations of the rows under way (chunk, or min(prompt, scratch_tokens) times batch), reused
/// from layer to layer, and the logits of one row a sequence in float32. An estimate of engines
/// that keep no more than the workload's `scratch` says.
Term scratch_bytes(const ModelDescription& model, const Workload& workload,
                   const Devices& devices = {});

/// weights + kv_cache + scratch, of one device.
Term memory_bytes(const ModelDescription& model, const Workload& workload,
                  const Devices& devices = {});

/// Bytes of a phase that must cross the memory bus once: weights (of all experts that its rows can
/// touch, which with several rows are more than they are likely to), kv_read, kv_write,
/// activations.
Term traffic_bytes(const ModelDescription& model, const Workload& workload, Phase phase);

/// Elements that norms, rotations, activations, residual sums and writes to the cache go over,
/// which FLOPs leave out: rows times norms + 2 model_dim + q, k and v + the feed-forward's columns.
Term row_wise_elements(const ModelDescription& model, const Workload& workload, Phase phase);

/// What each device sends: all-reduces after attention and feed-forward (tensor), keys and values
/// going round (ring).
Term sent_bytes(const ModelDescription& model, const Workload& workload, Phase phase,
                const Devices& devices);

// --- time ----------------------------------------------------------------------------------------

enum class Bound : std::uint8_t { compute, bandwidth };

/// Shares of the peak that kernels of a kind reach.
struct Utilisation {
  double gemm = 1, attention = 1;  ///< of the machine's FLOPs
  double bandwidth = 1;            ///< of memory, by products that stream weights
  double cache_bandwidth = 0;      ///< of memory, by attention that streams a cache; 0: bandwidth
  double row_wise = 0;  ///< elements a second of norms, rotations, activations; 0: not counted
};

/// One kind of kernel against the roofline.
struct KernelTime {
  std::string id{};  ///< projections, attention, feed_forward, logits; row_wise where it is counted
  Count flops, bytes;
  double compute_seconds = 0, memory_seconds = 0;
  double seconds() const {
    return compute_seconds > memory_seconds ? compute_seconds : memory_seconds;
  }
  Bound bound() const {
    return compute_seconds >= memory_seconds ? Bound::compute : Bound::bandwidth;
  }
};

struct PhaseTime {
  std::vector<KernelTime> kernels{};
  double seconds = 0;            ///< kernel after kernel, each at its own roof
  double attention_seconds = 0;  ///< attention_only() FLOPs at peak compute and nothing else
  double peak_seconds = 0;       ///< all FLOPs at peak compute
  double intensity = 0;          ///< all FLOPs over all bytes
  Bound bound = Bound::compute;  ///< which of the two takes more of the time
};

/// Peak of `machine` for `compute`, FLOPs a second. Throws where the machine does not have it.
double peak_flops(const Machine& machine, Compute compute);

/// At `utilisation` of the machine's peaks; devices share the work evenly and what they send is not
/// counted in.
PhaseTime phase_time(const ModelDescription& model, const Workload& workload, Phase phase,
                     const Machine& machine, Compute compute, const Utilisation& utilisation = {},
                     const Devices& devices = {});

// --- which is the largest, and when does it turn -------------------------------------------------

/// The shortest prompt at which attention's products cost at least as many FLOPs as what they are
/// held against: 2 · model_dim for plain MHA counted in full, 4 · model_dim with the triangle taken
/// as N²/2. None: never (windows), or beyond 2^40 tokens.
struct Crossover {
  std::optional<std::int64_t> projections{};  ///< of attention
  std::optional<std::int64_t> everything{};   ///< projections, feed-forward
};
Crossover crossover(const ModelDescription& model, Counting counting,
                    LatentForm form = LatentForm::expanded);

constexpr std::int64_t kUnlimited = std::int64_t{1} << 40;  ///< where a search ends

/// The largest context and batch for which memory_bytes() is at most the machine's; 0 where not
/// even 1 does, kUnlimited where memory does not grow. No context is longer than a table of
/// positions.
std::int64_t largest_context(const ModelDescription& model, Workload workload,
                             std::int64_t memory_bytes, const Devices& devices = {});
std::int64_t largest_batch(const ModelDescription& model, Workload workload,
                           std::int64_t memory_bytes, const Devices& devices = {});

/// Throws InvalidArgument with what was found and what was expected: sizes negative or beyond 10^9
/// (heads, dims) and 2^40 (tokens), kv_heads that do not divide q_heads, windows of encoders,
/// experts_used beyond experts, rates and shares of them that are not positive numbers.
void check(const ModelDescription& model);
void check(const Workload& workload);
void check(const Machine& machine);
void check(const Utilisation& utilisation);
void check(const Devices& devices, const ModelDescription& model);

}  // namespace polyhead::inline v0::cost
#pragma GCC visibility pop
