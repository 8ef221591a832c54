// What is measured: one table of cases, each with the bar it has to reach.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/weight_type.hpp"
#include "polyhead/executor.h"
#include "polyhead/isa.h"
#include "polyhead/types.h"

namespace polyhead::bench {

enum class Work : std::uint8_t {
  attend,
  weights,     ///< exact weights of all heads by a second pass
  received,    ///< mass received by each key, by a second pass
  pooled,      ///< a pooled map of 64 x 64 bins a head, by a second pass
  projection,  ///< the output step of a layer: [q_len, kv_len] times [kv_len, kv_len], weights
               ///< packed
  layer,       ///< all five steps, model_dim = q_heads * head_dim
  cache,       ///< one decoding step of `batch` sequences over a cache, kv_len tokens each
  product,     ///< q_len rows times the weights of a model's matrix, packed
};

enum class Pattern : std::uint8_t { full, causal, window, mask_bytes, mask_bits };
enum class Extra : std::uint8_t { none, soft_cap, alibi, bias, sink, statistics };

/// [batch, heads, tokens, dim] or [batch, tokens, heads, dim], dense.
enum class Order : std::uint8_t { heads_first, tokens_first };

/// What the rate is a share of.
enum class Against : std::uint8_t {
  float32,   ///< the float32 arithmetic of the case's instruction set and threads
  bfloat16,  ///< its bfloat16 dots; float32 where it has none
  dram,      ///< the rate at which the case's threads read memory
  base,      ///< the rate of the case named `base`
};

struct Case {
  std::string name;
  Work work = Work::attend;
  std::int64_t batch = 1, q_len = 1, kv_len = 1, q_heads = 16, kv_heads = 16, head_dim = 64;
  std::int64_t inputs = 0, outputs = 0;      ///< of a product
  WeightType weights = WeightType::float32;  ///< of a product: float32, bfloat16 or quantised
  std::int64_t latent_dim = 0;  ///< > 0: values are the first latent_dim elements of the keys
  ElementType type = ElementType::float32;
  ElementType cached = ElementType::float32;  ///< what a cache holds
  std::int64_t page_tokens = 0;               ///< of a cache, 0: in one piece
  bool pages_in_order = false;                ///< as the pool places them; else in no order
  bool ragged = false;                        ///< lengths differ, kv_len on average
  std::int64_t shared_tokens = 0;             ///< of a cache: all sequences begin on the same pages
  std::int64_t shared_by_four = 0;            ///< of these, every four sequences on so many more
  Pattern pattern = Pattern::full;
  Extra extra = Extra::none;
  Order order = Order::heads_first;
  Isa isa = Isa::automatic;
  int threads = 1;  ///< 0: as many as the run has
  Against against = Against::float32;
  std::string base;
  double goal = 0.0;  ///< the least share; 0: none set
};

/// Every case, in the order in which they are shown.
const std::vector<Case>& cases();

/// The case of that name; it must exist.
const Case& case_named(const std::string& name);

/// A case made ready: arrays filled, plan and workspace made, one run done.
class Workload {
 public:
  virtual ~Workload() = default;
  virtual void run() = 0;

  /// Useful work of one run: floating-point operations, or bytes of K and V, or of
  /// packed weights, for cases against DRAM.
  /// Pairs that a mask's structure hides are not work; a multiply and an add count as two.
  double work() const { return work_; }

 protected:
  double work_ = 0.0;
};

/// Throws InvalidArgument where this machine cannot run the case.
std::unique_ptr<Workload> make_workload(const Case& of, Isa isa, Executor& executor);

}  // namespace polyhead::bench
