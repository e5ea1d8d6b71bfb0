#!/usr/bin/env bash
# build.sh [TARGET...]: configures $BUILD once and builds. CMAKE_ARGS are given to CMake.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${BUILD:-build}

# A source with LibTorch's headers takes up to 2 GB to compile.
if [ -z "${JOBS:-}" ]; then
  memory=$(awk '/^MemAvailable/ {print int($2 / 2000000)}' /proc/meminfo)
  JOBS=$(nproc)
  [ "$memory" -ge "$JOBS" ] || JOBS=$((memory > 0 ? memory : 1))
fi

arguments=(${CMAKE_ARGS:-})
[ -z "${TORCH:-}" ] || arguments+=("-DLibTorch_ROOT=$TORCH")
if [ ! -f "$build/build.ninja" ] || [ ${#arguments[@]} -gt 0 ]; then
  echo "configuring $build"
  mkdir -p "$build"
  cmake -S . -B "$build" -G Ninja "${arguments[@]}" >"$build/configure.log" 2>&1 || { cat "$build/configure.log" >&2; exit 1; }
fi

quiet=()
[ -t 1 ] || quiet=(--quiet)
echo "building $build with $JOBS compilers at once"
ninja -C "$build" -j "$JOBS" "${quiet[@]}" "${@:-all}"
