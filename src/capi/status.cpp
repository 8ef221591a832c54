#include "capi/status.hpp"

#include <cstdio>

#include "polyhead/version.h"

namespace polyhead::inline v0::capi {
namespace {

constexpr std::size_t kMessageBytes = 1024;  // longer than any message of the door
thread_local char last_message[kMessageBytes] = "";

}  // namespace

void refuse(const char* format, ...) {
  char message[kMessageBytes];
  va_list values;
  va_start(values, format);
  std::vsnprintf(message, sizeof message, format, values);
  va_end(values);
  throw InvalidArgument(message);
}

polyhead_status record(polyhead_status status, const char* call, const char* format, ...) noexcept {
  int used = 0;
  if (call) used = std::snprintf(last_message, kMessageBytes, "%s: ", call);
  va_list values;
  va_start(values, format);
  std::vsnprintf(last_message + used, kMessageBytes - static_cast<std::size_t>(used), format,
                 values);
  va_end(values);
  return status;
}

}  // namespace polyhead::inline v0::capi

const char* polyhead_last_error(void) { return polyhead::capi::last_message; }

const char* polyhead_version(void) { return POLYHEAD_VERSION; }
