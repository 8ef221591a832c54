# How every target of the project is compiled, and how rooms become the two libraries.
include_guard()
include(GNUInstallDirs)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_THREAD_PREFER_PTHREAD ON)
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

if(PROJECT_IS_TOP_LEVEL)
  if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
  endif()
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
  # build/polyhead, build/libpolyhead.so, build/libpolyhead.a
  set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}")
  set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}")
  set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}")
endif()

# Flags of everything built here. Contraction chosen by a compiler would change bits with the shape of the code
# (docs/numerics.md), so it is off, and -ffast-math never appears. No -m flag either: kernels open their target
# regions themselves, since an inline function compiled for two instruction sets crashes older processors.
add_library(polyhead_flags INTERFACE)
target_compile_options(polyhead_flags INTERFACE -ffp-contract=off -Wall -Wextra -Wpedantic -Wshadow
                       $<$<BOOL:${POLYHEAD_WERROR}>:-Werror>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(polyhead_flags INTERFACE -Wno-restrict)  # false on std::string (GCC bug 105651)
endif()
if(POLYHEAD_SANITIZE)
  target_compile_options(polyhead_flags INTERFACE -fsanitize=${POLYHEAD_SANITIZE} -fno-sanitize-recover=all
                         -fno-omit-frame-pointer)
  target_link_options(polyhead_flags INTERFACE -fsanitize=${POLYHEAD_SANITIZE})
  if(POLYHEAD_SANITIZE MATCHES "address")
    # A wild pointer is found where it is used: what these checks find beside that is arithmetic whose result nobody
    # uses. Without them kernels compile in three quarters of the time.
    target_compile_options(polyhead_flags INTERFACE -fno-sanitize=null,object-size,pointer-overflow)
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # False between the sanitizers' own checks (GCC's manual says so).
    target_compile_options(polyhead_flags INTERFACE -Wno-maybe-uninitialized -Wno-uninitialized)
  endif()
  # Kernels that this processor cannot run are compiled but not optimised, which takes half the time.
  if(EXISTS /proc/cpuinfo)
    set(sets avx512 amx)
    set(flags avx512f amx_bf16)
    foreach(name flag IN ZIP_LISTS sets flags)
      file(STRINGS /proc/cpuinfo has_set LIMIT_COUNT 1 REGEX " ${flag} ")
      if(NOT has_set)
        file(GLOB idle_kernels CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/kernels/cpu/*_${name}*.cpp")
        set_source_files_properties(${idle_kernels} PROPERTIES COMPILE_OPTIONS -O0)
      endif()
    endforeach()
  endif()
endif()
if(POLYHEAD_BUILD_FUZZERS)
  target_compile_options(polyhead_flags INTERFACE -fsanitize=fuzzer-no-link)
  target_link_options(polyhead_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# polyhead_room(NAME [KNOWS rooms...] [PROGRAM_ONLY]): the target polyhead_NAME from every .cpp under src/NAME. A room
# may be empty. PROGRAM_ONLY keeps it out of the libraries: the program alone uses it.
set_property(GLOBAL PROPERTY POLYHEAD_ROOMS "")
function(polyhead_room name)
  cmake_parse_arguments(PARSE_ARGV 1 room "PROGRAM_ONLY" "" "KNOWS")
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/${name}/*.cpp")
  set(target polyhead_${name})
  if(sources AND NOT (room_PROGRAM_ONLY AND NOT POLYHEAD_BUILD_CLI))
    add_library(${target} OBJECT ${sources})
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden
                          VISIBILITY_INLINES_HIDDEN ON)
    target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:polyhead_flags>)
    target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/src")
    target_link_libraries(${target} PRIVATE Threads::Threads)
    if(NOT room_PROGRAM_ONLY)
      set_property(GLOBAL APPEND PROPERTY POLYHEAD_ROOMS ${target})
    endif()
  else()
    add_library(${target} INTERFACE)
  endif()
  foreach(known IN LISTS room_KNOWS)
    if(NOT TARGET polyhead_${known})
      message(FATAL_ERROR "polyhead_room(${name}): knows ${known}, which stands to its right or nowhere")
    endif()
  endforeach()
endfunction()

# The rooms' objects, compiled once, as libpolyhead.so and libpolyhead.a.
function(polyhead_libraries)
  get_property(rooms GLOBAL PROPERTY POLYHEAD_ROOMS)
  list(TRANSFORM rooms REPLACE "(.+)" "$<TARGET_OBJECTS:\\1>" OUTPUT_VARIABLE objects)
  add_library(polyhead SHARED ${objects})
  add_library(polyhead_static STATIC ${objects})
  set_target_properties(polyhead PROPERTIES VERSION ${PROJECT_VERSION}
                        SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  if(NOT POLYHEAD_SANITIZE)  # clang's sanitizers are found in the program, not in the library
    target_link_options(polyhead PRIVATE -Wl,--no-undefined)
  endif()
  foreach(library polyhead polyhead_static)
    add_library(polyhead::${library} ALIAS ${library})
    set_target_properties(${library} PROPERTIES OUTPUT_NAME polyhead LINKER_LANGUAGE CXX)
    target_compile_features(${library} PUBLIC cxx_std_20)
    target_include_directories(${library} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                               $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
    target_link_libraries(${library} PRIVATE $<BUILD_INTERFACE:polyhead_flags> Threads::Threads)
  endforeach()
endfunction()
