#include "attention/limits.hpp"

#include <utility>

#include "base/codes.hpp"
#include "base/element.hpp"
#include "base/refuse.hpp"

namespace polyhead::inline v0 {

ElementType v_type_of(const Limits& limits) { return limits.v_type.value_or(limits.kv_type); }

namespace {

void check_types(const Limits& limits) {
  if (!base::is_floating(limits.q_type)) {
    base::refuse("plan", "q_type is ", element_name(limits.q_type),
                 ", expected float32, float16 or bfloat16");
  }
  const ElementType k = limits.kv_type, v = v_type_of(limits);
  if (!base::is_floating(k) && !base::is_code(k)) {
    base::refuse("plan", "kv_type is ", element_name(k), ", expected ", base::kTypesOfCaches);
  }
  if (v == k) return;
  if (base::is_code(k))
    base::refuse("plan", "v_type is ", element_name(v), ", expected ", element_name(k),
                 " as kv_type: codes are of one type");
  if (!base::is_floating(v))
    base::refuse("plan", "v_type is ", element_name(v), ", expected float32, float16 or bfloat16",
                 " beside a kv_type of ", element_name(k));
}

/// Comparisons of one call with the limits.
class Comparison {
 public:
  explicit Comparison(const char* call) : call_(call) {}

  void at_most(const char* name, std::int64_t found, std::int64_t limit) const {
    if (found > limit)
      base::refuse(call_, name, " (", found, ") exceeds the plan's limit of ", limit);
  }
  void same(const char* name, std::int64_t found, std::int64_t planned) const {
    if (found != planned) base::refuse(call_, name, " (", found, ") is not the plan's ", planned);
  }
  void same(const char* name, ElementType found, ElementType planned) const {
    if (found != planned)
      base::refuse(call_, name, " is ", element_name(found), ", the plan was made for ",
                   element_name(planned));
  }

 private:
  const char* call_;
};

}  // namespace

void check_limits(const Limits& limits) {
  constexpr std::int64_t kMost = std::int64_t{1} << 48;
  for (const auto& [name, value] : {std::pair{"batch", limits.batch},
                                    {"q_len", limits.q_len},
                                    {"kv_len", limits.kv_len},
                                    {"q_heads", limits.q_heads},
                                    {"kv_heads", limits.kv_heads}}) {
    base::check_size("plan", name, value, 0, kMost);
  }
  base::check_size("plan", "head_dim", limits.head_dim, 0, kernels::kMaxDim);
  base::check_size("plan", "value_dim", limits.value_dim, 0, kernels::kMaxDim);
  check_types(limits);
}

void check_within(const Limits& limits, const char* call, const kernels::AttendCall& found,
                  bool cached) {
  const Comparison compare(call);
  compare.at_most("batch", found.batch, limits.batch);
  compare.at_most("q_len", found.q_len, limits.q_len);
  compare.at_most("kv_len", found.kv_len, limits.kv_len);
  compare.at_most("q_heads", found.q_heads, limits.q_heads);
  compare.at_most("kv_heads", found.kv_heads, limits.kv_heads);
  compare.same("head_dim", found.head_dim, limits.head_dim);
  compare.same("value_dim", found.value_dim, limits.value_dim);
  compare.same("q", found.q.type, limits.q_type);
  compare.same(cached ? "kv.k" : "k", found.k.type, limits.kv_type);
  compare.same(cached ? "kv.v" : "v", found.v.type, v_type_of(limits));
}

}  // namespace polyhead::inline v0
