// The version of the library; CMakeLists.txt reads it from here, the one place where it stands.
#pragma once

#define POLYHEAD_VERSION_MAJOR 0
#define POLYHEAD_VERSION_MINOR 1
#define POLYHEAD_VERSION_PATCH 0
#define POLYHEAD_VERSION "0.1.0"

#ifdef __cplusplus
#pragma GCC visibility push(default)
namespace polyhead::inline v0 {

/// The version of the library that runs; differs from POLYHEAD_VERSION where it was built from
/// other headers.
const char* version();

}  // namespace polyhead::inline v0
#pragma GCC visibility pop
#endif
