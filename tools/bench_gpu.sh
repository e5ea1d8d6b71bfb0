#!/usr/bin/env bash
# bench_gpu.sh [NAME...]: the cases of benchmarks/gpu_table.py, or those named, in the build of `make cuda`; the table goes to standard output. Without
# a GPU it says so at once, and ends with 69. ON=cpu: on the CPU with tiny models, to see whether all programs run, in the usual build.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "${ON:-cuda}" = cpu ]; then
  tools/setup.sh >&2
  for package in accelerate lightning; do
    tools/setup.sh "$package" >&2 || echo "bench-gpu: going on without $package" >&2
  done
  CMAKE_ARGS="-DMUSTER_BUILD_BENCHMARKS=ON ${CMAKE_ARGS:-}" tools/build.sh benchmarks >&2
  exec .venv/bin/python benchmarks/run.py --build "${BUILD:-build}" --on cpu "$@"
fi

found=$(python3 tools/gpu.py) || {
  echo "bench-gpu: no figures of a GPU: $found. They need a GPU of NVIDIA's and its driver; 'make bench-gpu ON=cpu' tries all programs without one." >&2
  exit 69
}
echo "bench-gpu: $found" >&2
CMAKE_ARGS="-DMUSTER_BUILD_BENCHMARKS=ON ${CMAKE_ARGS:-}" tools/cuda.sh benchmarks >&2
.venv-cuda/bin/python -m pip install --quiet --disable-pip-version-check accelerate lightning >&2 || echo "bench-gpu: going on without accelerate and lightning" >&2
exec .venv-cuda/bin/python benchmarks/run.py --build build-cuda --on cuda "$@"
