// The same token gets the same bits however it was threaded, batched, chunked, laid out or masked.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "attention/validate.hpp"
#include "kernels/reference/attend.hpp"
#include "polyhead/attention.h"
#include "support/effort.h"
#include "support/odd_floats.h"
#include "support/problem.h"
#include "support/slice.h"

namespace polyhead::test {
namespace {

/// Cases of every mask and every modifier with every element type in turn, short and across splits
/// of the keys.
std::vector<Case> cases(std::int64_t batch = 2) {
  std::vector<Case> list;
  const auto add = [&](MaskKind mask, ModifierKind modifier) {
    Case c;
    const std::size_t n = list.size();
    c.batch = batch;
    c.q_len = n % 5 == 4 ? 3 : 101;
    c.kv_len = n % 5 == 3 || n % 5 == 4 ? 1100 : 150;
    if (n % 5 == 3) c.q_len = 50;
    constexpr std::int64_t kQHeads[] = {4, 3, 2}, kKvHeads[] = {2, 1, 2};
    c.q_heads = kQHeads[n % 3];
    c.kv_heads = kKvHeads[n % 3];
    constexpr std::int64_t kHeadDims[] = {24, 64, 33, 128}, kValueDims[] = {40, 64, 17, 16};
    c.head_dim = kHeadDims[n % 4];
    c.value_dim = kValueDims[n % 4];
    c.types = kTypes[n % kTypes.size()];
    c.mask = mask;
    c.modifier = modifier;
    c.seed = 400 + n;
    c.statistics = n % 2 == 0;
    list.push_back(c);
  };
  for (int mask = 0; mask < kMaskKinds; ++mask) {
    add(static_cast<MaskKind>(mask), ModifierKind::none);
    add(static_cast<MaskKind>(mask), static_cast<ModifierKind>(mask % kModifierKinds));
  }
  for (int modifier = 0; modifier < kModifierKinds; ++modifier) {
    add(MaskKind::causal_end, static_cast<ModifierKind>(modifier));
    add(MaskKind::none, static_cast<ModifierKind>(modifier));
  }
  for (const Types& types : kTypes) {
    add(MaskKind::causal_end, ModifierKind::none);
    list.back().types = types;
  }
  if (effort() == Effort::smoke) {
    std::vector<Case> few;
    for (std::size_t i = 0; i < list.size(); i += 7) few.push_back(list[i]);
    return few;
  }
  return list;
}

std::vector<Types> few_or_all_types() {
  return effort() == Effort::smoke ? std::vector<Types>{kTypes[0], kTypes[1]} : kTypes;
}

/// For each case and instruction set: `again` computes the outputs in another way, and they must
/// not change.
void expect_same_bits(const std::vector<Case>& list,
                      const std::function<void(Problem&, Isa)>& again) {
  for (const Case& c : list) {
    for (Isa isa : isas()) {
      Problem p(c);
      p.run(isa, &Executor::serial());
      const Outputs whole(p);
      for (Tensor* output : {&p.out, &p.lse, &p.entropy, &p.max_weight, &p.max_key})
        output->poison();
      again(p, isa);
      const Outputs other(p);
      EXPECT_EQ(differing_bits(whole, other), 0) << isa_name(isa) << ": " << describe(c);
    }
  }
}

TEST(SameBits, AnyNumberOfThreads) {
  std::vector<std::unique_ptr<ThreadPool>> pools;
  for (int threads = 1; threads <= 5; ++threads)
    pools.push_back(std::make_unique<ThreadPool>(threads));
  for (std::size_t round = 0; round < pools.size(); ++round) {
    std::size_t turn = round;  // over the rounds every case meets every thread count
    expect_same_bits(cases(), [&](Problem& p, Isa isa) { p.run(isa, pools[turn++ % 5].get()); });
    if (effort() == Effort::smoke) break;
  }
}

TEST(SameBits, ThreadsOption) {
  Case c;
  c.q_len = c.kv_len = 500;
  c.q_heads = c.kv_heads = 2;
  ThreadPool pool(4);
  for (int threads = 1; threads <= 4; ++threads) {
    expect_same_bits({c}, [&](Problem& p, Isa isa) {
      attention(p.arguments(), {.isa = isa, .executor = &pool, .threads = threads});
    });
  }
}

TEST(SameBits, CallersThatRoundOtherwiseOrTrap) {
  expect_same_bits(cases(), [](Problem& p, Isa isa) {
    const OddFloats odd;
    p.run(isa, &Executor::serial());
#if defined(__x86_64__)
    EXPECT_TRUE(odd.unchanged());  // flags too
#endif
  });
}

TEST(SameBits, ABatchAndItsMembersAlone) {
  expect_same_bits(cases(3), [](Problem& p, Isa isa) {
    for (std::int64_t b = 0; b < p.description().batch; ++b) {
      attention(part_of(p, {.first_batch = b, .end_batch = b + 1}), {.isa = isa});
    }
  });
}

void attend_in_chunks(Problem& p, Isa isa, std::int64_t chunk) {
  const Case& c = p.description();
  for (std::int64_t query = 0; query < c.q_len; query += chunk) {
    attention(part_of(p, {.first_query = query, .end_query = std::min(query + chunk, c.q_len)}),
              {.isa = isa});
  }
}

TEST(SameBits, QueriesInChunks) {
  for (std::int64_t chunk : {1, 7, 64, 100}) {
    expect_same_bits(cases(1), [&](Problem& p, Isa isa) { attend_in_chunks(p, isa, chunk); });
  }
}

// As a server does it: each chunk sees a cache that ends with its own last token, aligned by `end`.
TEST(SameBits, ChunkedPrefillAndDecodingOverAGrowingCache) {
  for (const Types& types : few_or_all_types()) {
    for (const auto& [q_heads, kv_heads] : {std::pair{2, 2}, {4, 1}, {6, 2}, {1, 1}}) {
      for (MaskKind kind : {MaskKind::causal_end, MaskKind::window_causal, MaskKind::prefix}) {
        Case c;
        c.q_len = c.kv_len = kind == MaskKind::causal_end && q_heads == 4 ? 1060 : 230;
        c.q_heads = q_heads;
        c.kv_heads = kv_heads;
        c.head_dim = q_heads == 2 ? 64 : 40;
        c.value_dim = q_heads == 2 ? 64 : 48;
        c.types = types;
        c.mask = kind;
        for (std::int64_t chunk : {1, 7, 64, 100}) {
          if (effort() == Effort::smoke && chunk != 7) continue;
          expect_same_bits({c}, [&](Problem& p, Isa isa) {
            // The bulk first, the prefix (of 76 keys) within it, then chunks: decoding a thousand
            // tokens says no more than the last 150.
            const std::int64_t first = c.q_len - 150;
            for (std::int64_t query = 0; query < c.q_len;) {
              const std::int64_t end = query < first ? first : std::min(query + chunk, c.q_len);
              AttentionArguments a =
                  part_of(p, {.first_query = query, .end_query = end, .end_key = end});
              a.q_start = {};
              a.mask.align = Align::end;
              attention(a, {.isa = isa});
              query = end;
            }
          });
        }
      }
    }
  }
}

TEST(SameBits, AnyLayout) {
  for (int kind = 1; kind < kLayoutKinds; ++kind) {
    expect_same_bits(cases(), [&](Problem& p, Isa isa) {
      const std::vector<int> order =
          kind == 1 ? std::vector<int>{2, 0, 1, 3} : std::vector<int>{0, 3, 2, 1};
      for (Tensor* tensor : {&p.q, &p.k, &p.v, &p.out})
        *tensor = tensor->relaid(order, kind == 1 ? 7 : 0);
      p.run(isa);
    });
  }
}

// Keys past the valid length may as well not be there.
TEST(SameBits, PaddedKeysAndAShorterArray) {
  for (const Types& types : kTypes) {
    for (std::int64_t valid : {1, 63, 64, 65, 127, 200}) {
      Case c;
      c.q_len = valid == 65 ? 1 : 70;
      c.kv_len = 203;
      c.q_heads = 2;
      c.types = types;
      for (Isa isa : isas()) {
        Problem padded(c), whole(c);
        const std::int64_t lengths_given[] = {valid};
        padded.mask = lengths({lengths_given, {1}}) & causal(Align::end);
        whole.mask = causal(Align::end);
        padded.run(isa);
        AttentionArguments a = whole.arguments();
        a.k = slice(a.k, 1, 0, valid);
        a.v = slice(a.v, 1, 0, valid);
        attention(a, {.isa = isa});
        EXPECT_EQ(differing_bits(Outputs(padded), Outputs(whole)), 0)
            << isa_name(isa) << " " << valid;
      }
    }
  }
}

// A row depends on what it sees, not on which kind of mask says so.
TEST(SameBits, AnyMaskAsATableOfItsPairs) {
  expect_same_bits(cases(), [](Problem& p, Isa isa) {
    const Case& c = p.description();
    AttentionArguments a = p.arguments();
    const kernels::AttendCall call = door::resolve(a);
    const std::int64_t row = (c.kv_len + 7) / 8 * 8;
    Tensor bytes(ElementType::boolean, {c.batch, c.q_heads, c.q_len, c.kv_len});
    Tensor bits(ElementType::boolean, {c.batch, c.q_heads, c.q_len, row / 8});
    std::fill(bits.bytes().begin(), bits.bytes().end(), std::byte{0});
    for_each_index(bytes.extents(), [&](const Index& at) {
      const bool visible =
          kernels::reference::visible(call, kernels::sequence_of(call, at[0]), at[1], at[2], at[3]);
      bytes.set(at, visible);
      if (visible) *bits.address({at[0], at[1], at[2], at[3] / 8}) |= std::byte{1} << (at[3] % 8);
    });
    // Positions stay what they were: modifiers depend on them.
    a.q_start = {};
    if (p.q_start.given()) a.q_start = p.q_start.const_view();
    Mask table = boolean(bytes.const_view());
    if (c.seed % 2 == 0) {
      detail::Layout layout({c.batch, c.q_heads, c.q_len, c.kv_len},
                            {c.q_heads * c.q_len * row, c.q_len * row, row, std::int64_t{1}});
      table = boolean(ConstView(bits.bytes().data(), ElementType::bit, layout));
    }
    table.align = a.mask.align;
    table.kv_lengths = a.mask.kv_lengths;
    table.q_lengths = a.mask.q_lengths;
    a.mask = table;
    attention(a, {.isa = isa});
  });
}

// Documents of a few keys, of many blocks, and of none; one that comes again; ids that need 64
// bits.
TEST(SameBits, DocumentsHoweverTheirIdsAreWritten) {
  Case c;
  c.q_len = c.kv_len = 300;
  c.q_heads = 4;
  c.kv_heads = 2;
  c.head_dim = c.value_dim = 16;
  const auto id = [](std::int64_t token, std::int64_t large) -> std::int64_t {
    return token < 70 || (token >= 90 && token < 100) ? 5
           : token < 90                               ? -1
           : token < 290                              ? large
                                                      : token;
  };
  for (const Types& types : few_or_all_types()) {
    c.types = types;
    Problem p(c);
    AttentionArguments a = p.arguments();
    Tensor visible(ElementType::boolean, {1, 1, c.q_len, c.kv_len});
    visible.fill([&](const Index& at) { return id(at[2], 7) == id(at[3], 7) && at[3] <= at[2]; });
    const auto ids = [&](ElementType type, std::int64_t gap, std::int64_t large) {
      std::vector<std::int64_t> storage(static_cast<std::size_t>(c.kv_len * gap), large);
      for (std::int64_t token = 0; token < c.kv_len; ++token) {
        const std::int64_t value = id(token, large);
        std::memcpy(
            reinterpret_cast<std::byte*>(storage.data()) + token * gap * element_bytes(type),
            &value, static_cast<std::size_t>(element_bytes(type)));
      }
      return storage;
    };
    const auto view = [&](const std::vector<std::int64_t>& storage, ElementType type,
                          std::int64_t gap) {
      return ConstView(storage.data(), type, {{std::int64_t{1}, c.kv_len}, {std::int64_t{0}, gap}});
    };
    constexpr ElementType int32 = ElementType::int32, int64 = ElementType::int64;
    constexpr std::int64_t kLarge = (std::int64_t{1} << 32) + 5;  // 5 in its lower half
    const auto near = ids(int32, 1, 7), far = ids(int32, 3, 7), wide = ids(int64, 1, kLarge),
               wide_far = ids(int64, 2, kLarge);
    Tensor all(ElementType::boolean, {1, 1, 1, c.kv_len});
    all.fill([](const Index&) { return true; });
    for (Isa isa : isas()) {
      a.mask = boolean(visible.const_view());
      attention(a, {.isa = isa});
      const auto expected = p.out.bytes();
      for (const Mask& mask : {documents(view(near, int32, 1), view(near, int32, 1)),
                               documents(view(near, int32, 1), view(far, int32, 3)),
                               documents(view(far, int32, 3), view(near, int32, 1)),
                               documents(view(wide, int64, 1), view(wide_far, int64, 2)),
                               documents(view(wide_far, int64, 2), view(wide, int64, 1)) &
                                   boolean(all.const_view())}) {
        p.out.poison();
        a.mask = mask & causal();
        attention(a, {.isa = isa});
        EXPECT_TRUE(p.out.bytes() == expected) << isa_name(isa);
      }
    }
  }
}

TEST(SameBits, GroupedHeadsAndRepeatedOnes) {
  for (const Types& types : few_or_all_types()) {
    for (std::int64_t q_len : {1, 3, 70}) {
      for (const auto& [q_heads, kv_heads] : {std::pair{9, 3}, {12, 1}, {8, 4}, {6, 1}}) {
        Case c;
        c.q_len = q_len;
        c.kv_len = 130;
        c.q_heads = q_heads;
        c.kv_heads = kv_heads;
        c.types = types;
        c.mask = MaskKind::causal_end;
        expect_same_bits({c}, [&](Problem& p, Isa isa) {
          const auto repeat = [&](const Tensor& from) {
            Tensor to(from.type(), {1, c.kv_len, c.q_heads, from.extents()[3]});
            to.fill([&](const Index& at) {
              return from.get({0, at[1], at[2] * c.kv_heads / c.q_heads, at[3]});
            });
            return to;
          };
          p.k = repeat(p.k);
          p.v = repeat(p.v);
          p.run(isa);
        });
      }
    }
  }
}

TEST(SameBits, RaggedAndSeparate) {
  const std::vector<std::int64_t> q_lens = {5, 0, 130, 1, 64}, kv_lens = {70, 3, 130, 200, 0};
  std::vector<std::int32_t> q_offsets = {0};
  std::vector<std::int64_t> kv_offsets = {0};
  for (std::size_t b = 0; b < q_lens.size(); ++b) {
    q_offsets.push_back(q_offsets.back() + static_cast<std::int32_t>(q_lens[b]));
    kv_offsets.push_back(kv_offsets.back() + kv_lens[b]);
  }
  constexpr ModifierKind kKinds[] = {ModifierKind::none,  ModifierKind::soft_cap,
                                     ModifierKind::alibi, ModifierKind::custom,
                                     ModifierKind::sink,  ModifierKind::dropout};
  std::size_t n = 0;
  for (const Types& types : kTypes) {
    for (int variant = 0; variant < 6; ++variant) {
      // One sequence of all tokens holds the arrays; the calls cut it up.
      Case c;
      c.q_len = q_offsets.back() + 2;  // two tokens at the end belong to no sequence
      c.kv_len = kv_offsets.back();
      c.q_heads = 4;
      c.kv_heads = 2;
      c.head_dim = 32;
      c.value_dim = 24;
      c.types = types;
      c.modifier = kKinds[variant];
      c.seed = ++n;
      for (Isa isa : isas()) {
        Problem ragged(c), separate(c);
        // The longest sequence has 130 queries and 200 keys.
        Tensor bias(f32, {1, 1, 130, 203});
        Tensor document_ids(ElementType::int32, {c.kv_len});
        Random random(n);
        bias.fill_normal(random);
        document_ids.fill([](const Index& at) { return static_cast<double>(at[0] / 40); });
        Mask mask = variant == 1   ? causal(Align::end)
                    : variant == 2 ? window(30, 10, Align::start)
                    : variant == 3 ? prefix(20, Align::end)
                                   : Mask{};
        if (variant == 2) mask.align = Align::start;
        if (variant == 5) mask.align = Align::end;  // dropout goes by positions
        AttentionArguments a = ragged.arguments();
        a.mask = mask;
        for (ConstView* view : {&a.q, &a.k, &a.v}) *view = drop_first_axis(*view);
        a.out = drop_first_axis(a.out);
        a.lse = drop_first_axis(a.lse);
        a.q_offsets = {q_offsets.data(), {q_offsets.size()}};
        a.kv_offsets = {kv_offsets.data(), {kv_offsets.size()}};
        if (variant == 0) a.modifiers.bias = bias.const_view();
        if (variant == 4) {
          a.mask =
              documents(slice(document_ids.const_view(), 0, 0, c.q_len), document_ids.const_view());
        }
        if (variant == 2 || variant == 0) a.mask.align = Align::start;
        ragged.out.poison(), ragged.lse.poison(), separate.out.poison(), separate.lse.poison();
        attention(a, {.isa = isa});
        for (std::size_t b = 0; b < q_lens.size(); ++b) {
          const std::int64_t q0 = q_offsets[b], q1 = q_offsets[b + 1], k0 = kv_offsets[b],
                             k1 = kv_offsets[b + 1];
          AttentionArguments one = separate.arguments();
          one.mask = a.mask;
          one.q = slice(one.q, 1, q0, q1);
          one.out = slice(one.out, 1, q0, q1);
          one.lse = slice(one.lse, 1, q0, q1);
          one.k = slice(one.k, 1, k0, k1);
          one.v = slice(one.v, 1, k0, k1);
          if (variant == 0) {
            one.modifiers.bias = slice(slice(bias.const_view(), 2, 0, q1 - q0), 3, 0, k1 - k0);
          }
          if (variant == 4) {
            const std::int32_t* ids =
                reinterpret_cast<const std::int32_t*>(document_ids.bytes().data());
            one.mask = documents({ids + q0, {std::int64_t{1}, q1 - q0}},
                                 {ids + k0, {std::int64_t{1}, k1 - k0}});
          }
          const std::int64_t id[] = {static_cast<std::int64_t>(b)};
          one.modifiers.dropout.sequence_ids = {id, {1}};
          attention(one, {.isa = isa});
        }
        EXPECT_EQ(differing_bits(ragged.out, separate.out), 0)
            << isa_name(isa) << " variant " << variant;
        EXPECT_EQ(differing_bits(ragged.lse, separate.lse), 0)
            << isa_name(isa) << " variant " << variant;
      }
    }
  }
}

TEST(SameBits, RepeatedRuns) {
  expect_same_bits(cases(), [](Problem& p, Isa isa) { p.run(isa); });
}

TEST(SameBits, APlanAndTheCall) {
  for (const Types& types : {kTypes[0], kTypes[1], kTypes[2]}) {
    for (std::int64_t q_len : {1, 5, 90}) {
      Case c;
      c.q_len = q_len;
      c.kv_len = 1300;
      c.q_heads = 4;
      c.head_dim = c.value_dim = 64;
      c.types = types;
      c.mask = MaskKind::causal_end;
      expect_same_bits({c}, [&](Problem& p, Isa isa) {
        // One plan with room to spare.
        const Plan plan({.batch = 2,
                         .q_len = 200,
                         .kv_len = 2000,
                         .q_heads = 8,
                         .kv_heads = 4,
                         .head_dim = 64,
                         .value_dim = 64,
                         .q_type = types.q,
                         .kv_type = types.k},
                        {.isa = isa});
        Workspace workspace = plan.make_workspace();
        plan.run(p.arguments(), workspace);
      });
    }
  }
}

}  // namespace
}  // namespace polyhead::test
