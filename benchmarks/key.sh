#!/usr/bin/env bash
# Instructions that watching the parameters of a sharded model adds to a forward and backward of the GPT of 9 million, by callgrind.
# key.sh [BUILD]: fails above 2%. Two runs a way of different length; the difference is free of start-up. Takes about 19 minutes of one core.
set -euo pipefail
cd "$(dirname "$0")/.."
. benchmarks/callgrind.sh
program=${1:-build}/benchmarks/key_bench
few=1 many=2

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
runs=()
for way in plain resident; do
  for steps in $few $many; do
    total "$program" "$way" "$steps" >"$folder/$way.$steps" &
    runs+=($!)
  done
done
for run in "${runs[@]}"; do wait "$run"; done

per_step() { echo $((($(<"$folder/$1.$many") - $(<"$folder/$1.$few")) / (many - few))); }

plain=$(per_step plain)
resident=$(per_step resident)
echo "way,instructions_per_step"
echo "plain,$plain"
echo "resident,$resident"
awk -v p="$plain" -v r="$resident" 'BEGIN {added = (r / p - 1) * 100; printf "added: %.2f%%\n", added; exit added > 2}'
