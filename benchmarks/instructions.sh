#!/usr/bin/env bash
# Instructions per step that each door adds to the raw C++ loop with the same optimizer call, counted by callgrind.
# instructions.sh [BUILD]: two runs a case of different length; the difference is free of start-up.
set -euo pipefail
cd "$(dirname "$0")/.."
program=${1:-build}/benchmarks/step_bench
command -v valgrind >/dev/null || { echo "valgrind is missing: apt-get install -y valgrind" >&2; exit 77; }
few=20 many=120

# LibTorch runs under valgrind with these; one thread, so that nothing spins.
export ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 ONEDNN_MAX_CPU_ISA=AVX2 OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 MUSTER_LOG=error

total() {
  local log; log=$(mktemp)
  valgrind --tool=callgrind --callgrind-out-file=/dev/null "$program" "$1" "$2" >"$log" 2>&1 || { tail -n 20 "$log" >&2; exit 1; }
  awk '/Collected/ {print $NF}' "$log"
  rm -f "$log"
}
per_step() { echo $((($(total "$1" $many) - $(total "$1" $few)) / (many - few))); }

echo "case,instructions_per_step,added_to_fused_loop"
for optimizer in adamw sgd; do
  base=$(per_step "$optimizer fused")
  echo "$optimizer fused loop,$base,0"
  for door in accelerator fabric; do
    figure=$(per_step "$optimizer $door")
    echo "$optimizer $door,$figure,$((figure - base))"
  done
done
