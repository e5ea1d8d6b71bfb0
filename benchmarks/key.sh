#!/usr/bin/env bash
# Instructions that watching the parameters of a sharded model adds to a forward and backward of the GPT of 9 million, by callgrind.
# key.sh [BUILD]: fails above 2%. Two runs a way of different length; the difference is free of start-up. Takes about 19 minutes of one core.
set -euo pipefail
cd "$(dirname "$0")/.."
program=${1:-build}/benchmarks/key_bench
command -v valgrind >/dev/null || { echo "valgrind is missing: apt-get install -y valgrind" >&2; exit 77; }
few=1 many=2

# LibTorch runs under valgrind with these; one thread, so that nothing spins.
export ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 ONEDNN_MAX_CPU_ISA=AVX2 OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 MUSTER_LOG=error

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
count() {
  local log=$folder/$1.$2
  valgrind --tool=callgrind --callgrind-out-file=/dev/null "$program" "$1" "$2" >"$log" 2>&1 || { tail -n 20 "$log" >&2; return 1; }
}
runs=()
for way in plain resident; do
  for steps in $few $many; do
    count $way $steps &
    runs+=($!)
  done
done
for run in "${runs[@]}"; do wait "$run"; done

total() { awk '/Collected/ {print $NF}' "$folder/$1.$2"; }
per_step() { echo $((($(total "$1" $many) - $(total "$1" $few)) / (many - few))); }

plain=$(per_step plain)
resident=$(per_step resident)
echo "way,instructions_per_step"
echo "plain,$plain"
echo "resident,$resident"
awk -v p="$plain" -v r="$resident" 'BEGIN {added = (r / p - 1) * 100; printf "added: %.2f%%\n", added; exit added > 2}'
