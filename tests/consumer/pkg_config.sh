#!/usr/bin/env bash
# A user without CMake: builds use.cpp and use.c with what pkg-config says, shared and static, and runs them.
#   pkg_config.sh PREFIX BUILD_DIR CC CXX
set -euo pipefail
prefix=$1 build=$2 cc=$3 cxx=$4
here=$(dirname "$0")
mkdir -p "$build"
pc=$(find "$prefix" -name polyhead.pc)
export PKG_CONFIG_PATH=${pc%/*}
read -ra cflags <<<"$(pkg-config --cflags polyhead)"
read -ra shared <<<"$(pkg-config --libs polyhead)"
read -ra static <<<"$(pkg-config --static --libs polyhead | sed 's/-lpolyhead/-l:libpolyhead.a/')"
"$cxx" -std=c++20 "$here/use.cpp" "${cflags[@]}" "${shared[@]}" -o "$build/use_cpp"
"$cc" "$here/use.c" "${cflags[@]}" "${shared[@]}" -o "$build/use_c"
"$cxx" -std=c++20 "$here/use.cpp" "${cflags[@]}" "${static[@]}" -o "$build/use_cpp_static"
"$cc" "$here/use.c" "${cflags[@]}" "${static[@]}" -o "$build/use_c_static"
export LD_LIBRARY_PATH
LD_LIBRARY_PATH=$(pkg-config --variable=libdir polyhead)
for program in use_cpp use_c use_cpp_static use_c_static; do "$build/$program"; done
