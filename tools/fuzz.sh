#!/usr/bin/env bash
# Fuzzes the readers of safetensors, indexes of weights, manifests, zip archives, pickles and torch files, each FUZZ_SECONDS (180) long, and fails on the first finding.
# fuzz.sh [TARGET...]: only those.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${BUILD:-build}-fuzz
seconds=${FUZZ_SECONDS:-180}
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(safetensors index manifest zip pickle torch)
compiler=${FUZZ_CXX:-clang++-16}
command -v "$compiler" >/dev/null || { echo "fuzz: $compiler is missing; install clang-16 and libclang-rt-16-dev" >&2; exit 1; }

BUILD=$build CMAKE_ARGS="-DCMAKE_CXX_COMPILER=$compiler -DCMAKE_BUILD_TYPE=Fuzz -DMUSTER_FUZZ=ON -DMUSTER_PRECOMPILE=OFF -DMUSTER_BUILD_EXAMPLES=OFF" \
  tools/build.sh "${targets[@]/#/fuzz_}"

for target in "${targets[@]}"; do
  corpus=$build/corpus/$target
  mkdir -p "$corpus" "$build/findings"
  echo "fuzz: $target for $seconds s"
  log=$build/findings/$target.log
  if ! "$build/fuzz/fuzz_$target" -max_total_time="$seconds" -max_len=65536 -timeout=10 -rss_limit_mb=4096 -malloc_limit_mb=2048 -print_final_stats=1 \
      -artifact_prefix="$build/findings/$target-" "$corpus" "tests/fuzz/corpus/$target" >"$log" 2>&1; then
    tail -n 40 "$log" >&2
    echo "fuzz: $target found something; the input is under $build/findings" >&2
    exit 1
  fi
  grep -E 'number_of_executed_units' "$log" | sed 's/^stat::/  /'
done
echo "fuzz: clean"
