// Weights as a layer is given them: views to check and to cut.
#pragma once

#include <cstdint>
#include <vector>

#include "polyhead/types.h"

namespace polyhead::inline v0::layers {

/// Throw InvalidArgument, prefixed with `call`, unless the view is a floating-point [out, in]; a
/// given [size]; or not given.
void check_matrix(const char* call, const char* name, const ConstView& view, std::int64_t out,
                  std::int64_t in);
void check_vector(const char* call, const char* name, const ConstView& view, std::int64_t size);
void refuse_given(const char* call, const char* name, const ConstView& view, const char* why);

/// Throws InvalidArgument, prefixed with `call`, for what no layer computes with.
void check_numbers(const char* call, ElementType weight_type, float norm_eps);

inline constexpr std::int64_t kMostHeads = std::int64_t{1} << 20;  // of a layer

/// Rows [first, first + count) of an [out, in] or [out] view; of no view, no view.
ConstView slice(const ConstView& view, std::int64_t first, std::int64_t count);

/// The elements of a checked [size] view.
std::vector<float> floats_of(const ConstView& view);

}  // namespace polyhead::inline v0::layers
