#!/usr/bin/env bash
# bench.sh [NAME...]: builds and runs the benchmarks, or those named; "table" is what benchmarks/README.md shows, in at most 25 minutes on a
# quiet machine of two cores. The table goes to standard output, everything else to standard error. The peers are Python packages, installed
# into .venv, and MPI; one that cannot be installed is named, and its figures are said to be missing.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${BUILD:-build}
export SETUP_WISHED="openmpi-bin libopenmpi-dev"
tools/setup.sh >&2
for package in accelerate lightning tensorboard deepspeed; do
  tools/setup.sh "$package" >&2 || echo "bench: going on without $package" >&2
done
CMAKE_ARGS="-DMUSTER_BUILD_BENCHMARKS=ON ${CMAKE_ARGS:-}" tools/build.sh benchmarks >&2
exec .venv/bin/python benchmarks/run.py --build "$build" "$@"
