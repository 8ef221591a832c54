# GTest::gtest: the system's, or, where the system's is for another processor, Debian's sources (package googletest).
include_guard()
if(CMAKE_CROSSCOMPILING)
  add_subdirectory(/usr/src/googletest/googletest "${PROJECT_BINARY_DIR}/googletest" EXCLUDE_FROM_ALL)
else()
  find_package(GTest REQUIRED)
endif()
