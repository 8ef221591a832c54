// A NaN in k or v reaches exactly the rows that see its key, whichever lane of a tile they are in.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "attention/validate.hpp"
#include "kernels/reference/attend.hpp"
#include "polyhead/attention.h"
#include "support/tensor.h"

namespace polyhead::test {
namespace {

struct Found {
  int spread = 0, lost = 0;  ///< outputs that are NaN and should not be, and the reverse
};

/// Random sizes, values and a dense mask that differs by row, with NaN in some keys and values.
Found attend_around_nans(ElementType type, Isa isa, std::uint64_t seed) {
  Random random(seed);
  const std::int64_t q_len = 1 + random.below(14), kv_len = 1 + random.below(140);
  const std::int64_t heads = 1 + random.below(4), dim = 1 + random.below(24);
  Tensor q(type, {1, q_len, heads, dim}), k(type, {1, kv_len, 1, dim});
  Tensor v(type, {1, kv_len, 1, dim}), out(ElementType::float32, {1, q_len, heads, dim});
  Tensor visible(ElementType::boolean, {1, heads, q_len, kv_len});
  const auto sometimes_nan = [&](const Index&) {
    return random.chance(0.02) ? std::numeric_limits<double>::quiet_NaN() : random.normal();
  };
  q.fill_normal(random);
  v.fill(sometimes_nan);
  if (random.chance(0.3)) {
    k.fill(sometimes_nan);
  } else {
    k.fill_normal(random);
  }
  visible.fill([&](const Index&) { return random.chance(0.5) ? 1.0 : 0.0; });

  AttentionArguments arguments;
  arguments.q = q.view();
  arguments.k = k.view();
  arguments.v = v.view();
  arguments.out = out.view();
  arguments.mask = boolean(visible.view());
  attention(arguments, {.isa = isa});
  const kernels::reference::Result expected = kernels::reference::attend(door::resolve(arguments));
  Found found;
  std::size_t at = 0;
  for_each_index(out.extents(), [&](const Index& index) {
    const bool should = std::isnan(expected.out[at++]), is = std::isnan(out.get(index));
    found.spread += is && !should;
    found.lost += should && !is;
  });
  return found;
}

TEST(Nan, ReachesExactlyTheRowsThatSeeIt) {
  for (Isa isa : available_isas()) {
    for (ElementType type : {ElementType::float32, ElementType::float16, ElementType::bfloat16}) {
      for (std::uint64_t seed = 0; seed < 100; ++seed) {
        const Found found = attend_around_nans(type, isa, seed);
        ASSERT_EQ(found.spread, 0) << isa_name(isa) << " " << element_name(type) << " " << seed;
        ASSERT_EQ(found.lost, 0) << isa_name(isa) << " " << element_name(type) << " " << seed;
      }
    }
  }
}

}  // namespace
}  // namespace polyhead::test
