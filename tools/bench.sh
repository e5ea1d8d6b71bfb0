#!/usr/bin/env bash
# bench.sh [NAME]: builds and runs the benchmarks, or one of them. The peers are Python packages, installed into .venv.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${BUILD:-build}
tools/setup.sh accelerate lightning
CMAKE_ARGS="-DMUSTER_BUILD_BENCHMARKS=ON" tools/build.sh
exec .venv/bin/python benchmarks/run.py --build "$build" "$@"
