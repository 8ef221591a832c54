// The version of the library; CMakeLists.txt reads it from here, the one place where it stands.
#pragma once

#define POLYHEAD_VERSION_MAJOR 0
#define POLYHEAD_VERSION_MINOR 1
#define POLYHEAD_VERSION_PATCH 0
#define POLYHEAD_VERSION "0.1.0"
