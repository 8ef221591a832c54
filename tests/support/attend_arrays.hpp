// A small call of polyhead attend: its files, and what the library makes of the same numbers.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "models/formats/npy.hpp"
#include "polyhead/attention.h"
#include "support/scratch_directory.hpp"

namespace polyhead::test {

/// q, k and v of a small call as files, and the answer of the library itself.
struct AttendArrays {
  ScratchDirectory directory;
  std::int64_t tokens = 6, heads = 4, kv_heads = 2, dim = 8;
  std::vector<float> q = values(tokens * heads * dim, 1), k = values(tokens * kv_heads * dim, 2),
                     v = values(tokens * kv_heads * dim, 3);

  AttendArrays() {
    formats::write_npy(directory.file("q.npy"), ConstView(q.data(), {tokens, heads, dim}));
    formats::write_npy(directory.file("k.npy"), ConstView(k.data(), {tokens, kv_heads, dim}));
    formats::write_npy(directory.file("v.npy"), ConstView(v.data(), {tokens, kv_heads, dim}));
  }

  static std::vector<float> values(std::int64_t count, int seed) {
    std::vector<float> made;
    for (std::int64_t i = 0; i < count; ++i)
      made.push_back(std::sin(static_cast<float>(i * 7 + seed)));
    return made;
  }

  std::vector<float> expected(const Mask& mask, const Modifiers& modifiers = {}) const {
    std::vector<float> out(q.size());
    AttentionArguments call;
    call.q = {q.data(), {std::int64_t{1}, tokens, heads, dim}};
    call.k = {k.data(), {std::int64_t{1}, tokens, kv_heads, dim}};
    call.v = {v.data(), {std::int64_t{1}, tokens, kv_heads, dim}};
    call.out = {out.data(), {std::int64_t{1}, tokens, heads, dim}};
    call.mask = mask;
    call.modifiers = modifiers;
    attention(call);
    return out;
  }

  std::vector<std::string> command(std::vector<std::string> more = {}) const {
    std::vector<std::string> line{
        "attend", directory.file("q.npy"),  directory.file("k.npy"), directory.file("v.npy"),
        "-o",     directory.file("out.npy")};
    line.insert(line.end(), more.begin(), more.end());
    return line;
  }

  std::vector<float> output(const std::string& name = "out.npy") const {
    const formats::Array array = formats::read_npy(directory.file(name));
    const auto* data = static_cast<const float*>(array.view.data);
    std::int64_t count = 1;
    for (int axis = 0; axis < array.view.layout.axes; ++axis)
      count *= array.view.layout.extents[axis];
    return {data, data + count};
  }
};

}  // namespace polyhead::test
