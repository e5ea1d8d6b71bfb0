#!/usr/bin/env bash
# clang-tidy over the sources that git knows; with names, over those only.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${BUILD:-build}-tidy
status=0
if [ $# -gt 0 ]; then sources=("$@"); else mapfile -t sources < <(git ls-files 'src/*.cpp' 'apps/*.cpp'); fi
[ -f "$build/build.ninja" ] || cmake --preset tidy -DMUSTER_PRECOMPILE=OFF >/dev/null
printf '%s\0' "${sources[@]}" | xargs -0 -n 1 -P "$(nproc)" clang-tidy-16 -p "$build" --quiet --warnings-as-errors='*' 2>/dev/null || status=1
exit $status
