#!/usr/bin/env bash
# clang-tidy over the sources that git knows; with names, over those only. It ends with 1 where something was found.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${BUILD:-build}-tidy
tidy=.venv/bin/clang-tidy
[ -x $tidy ] || tidy=clang-tidy-16
if [ $# -gt 0 ]; then sources=("$@"); else mapfile -t sources < <(git ls-files 'src/*.cpp' 'apps/*.cpp'); fi
arguments=(-DMUSTER_JOIN_SOURCES=OFF -DMUSTER_PRECOMPILE=OFF -DMUSTER_BUILD_EXAMPLES=OFF)
[ -z "${TORCH:-}" ] || arguments+=("-DLibTorch_ROOT=$TORCH")
# Always: a source may be new. clang-tidy only reads the compile commands, so any compiler's will do.
cmake -S . -B "$build" -G Ninja "${arguments[@]}" >/dev/null
status=0
printf '%s\0' "${sources[@]}" | xargs -0 -n 1 -P "$(nproc)" $tidy -p "$build" --config-file=.clang-tidy --quiet --warnings-as-errors='*' 2>/dev/null || status=1
exit $status
