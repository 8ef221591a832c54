#include "base/element.hpp"

namespace polyhead::inline v0 {

const char* element_name(ElementType type) {
  switch (type) {
    case ElementType::float32:
      return "float32";
    case ElementType::float16:
      return "float16";
    case ElementType::bfloat16:
      return "bfloat16";
    case ElementType::int32:
      return "int32";
    case ElementType::int64:
      return "int64";
    case ElementType::boolean:
      return "boolean";
    case ElementType::int8:
      return "int8";
    case ElementType::int4:
      return "int4";
    case ElementType::float8_e4m3:
      return "float8_e4m3";
    case ElementType::float8_e5m2:
      return "float8_e5m2";
    case ElementType::bit:
      return "bit";
  }
  return "unknown";
}

float16 to_float16(float value) { return {base::float32_to_float16_bits(value)}; }
bfloat16 to_bfloat16(float value) { return {base::float32_to_bfloat16_bits(value)}; }
float to_float32(float16 value) { return base::float16_bits_to_float32(value.bits); }
float to_float32(bfloat16 value) { return base::bfloat16_bits_to_float32(value.bits); }

}  // namespace polyhead::inline v0
