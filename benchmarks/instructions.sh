#!/usr/bin/env bash
# Instructions per step that each API adds to the raw C++ loop with the same optimizer call, counted by callgrind.
# instructions.sh [BUILD]: two runs a case of different length; the difference is free of start-up.
set -euo pipefail
cd "$(dirname "$0")/.."
. benchmarks/callgrind.sh
program=${1:-build}/benchmarks/step_bench
few=20 many=120

per_step() {
  local more less
  more=$(total "$program" "$1" $many)
  less=$(total "$program" "$1" $few)
  echo $(((more - less) / (many - few)))
}

echo "case,instructions_per_step,added_to_fused_loop"
for optimizer in adamw sgd; do
  base=$(per_step "$optimizer fused")
  echo "$optimizer fused loop,$base,0"
  for api in accelerator fabric; do
    figure=$(per_step "$optimizer $api")
    echo "$optimizer $api,$figure,$((figure - base))"
  done
done
