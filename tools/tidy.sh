#!/usr/bin/env bash
# clang-tidy over all sources, many of a room joined as one, because most of its time goes to LibTorch's headers. It ends with 1 where something was found.
# tidy.sh FILE...: over these, each alone. tidy.sh --version: the version of clang-tidy.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${BUILD:-build}-tidy
# The program of the wheel: the script beside it needs pkg_resources, which setuptools no longer brings.
tidy=$(compgen -G '.venv/lib/python3*/site-packages/clang_tidy/data/bin/clang-tidy' | head -n 1) || tidy=clang-tidy-16
[ "${1:-}" != --version ] || exec "$tidy" --version

arguments=(-DMUSTER_PRECOMPILE=OFF -DMUSTER_BUILD_TESTS=OFF -DMUSTER_BUILD_EXAMPLES=OFF)
[ -z "${TORCH:-}" ] || arguments+=("-DLibTorch_ROOT=$TORCH")
checks=()
if [ $# -gt 0 ]; then
  arguments+=(-DMUSTER_JOIN_SOURCES=OFF)
else
  build+=-joined
  arguments+=(-DMUSTER_JOIN_SOURCES=ON)
  checks=(--checks=-bugprone-suspicious-include)  # joined sources are included
fi
checks+=(--extra-arg=-Qunused-arguments)  # the commands are another compiler's, with options that clang lacks
# Always: a source may be new. clang-tidy only reads the compile commands, so any compiler's will do.
cmake -S . -B "$build" -G Ninja "${arguments[@]}" >/dev/null
ninja -C "$build" apps/muster/error_pages.cpp apps/muster/project_files.cpp >/dev/null  # sources that the build makes
sources=("$@")
[ $# -gt 0 ] || mapfile -t sources < <(sed -n 's/^ *"file": "\(.*\)",\{0,1\}$/\1/p' "$build/compile_commands.json")
status=0
printf '%s\0' "${sources[@]}" | xargs -0 -n 1 -P "${JOBS:-$(nproc)}" "$tidy" -p "$build" --config-file=.clang-tidy "${checks[@]}" --quiet --warnings-as-errors='*' 2>/dev/null || status=1
exit $status
