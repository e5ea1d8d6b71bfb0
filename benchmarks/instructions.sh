#!/usr/bin/env bash
# Instructions per step, counted by callgrind: what each API adds to the raw C++ loop with the same optimizer call, and what Trainer adds to
# Accelerator with the same loader. instructions.sh [BUILD]: two runs a case of different length; the difference is free of start-up.
# Fails if a bare step under Trainer has more than 15 thousand instructions above one under Accelerator, or if two logs, progress bar and
# checkpoints add more than 15 thousand to a bare one: 4 microseconds, at the 3.9 instructions per nanosecond of these steps. The bar is drawn
# ten times a second, which valgrind's slowness makes every few steps ("default"); "undrawn" leaves that out.
set -euo pipefail
cd "$(dirname "$0")/.."
. benchmarks/callgrind.sh
programs=${1:-build}/benchmarks
few=20 many=120 most=15000

per_step() {  # PROGRAM ARGUMENT...
  local more less
  more=$(total "$@" $many)
  less=$(total "$@" $few)
  echo $(((more - less) / (many - few)))
}

echo "case,instructions_per_step,added"
for optimizer in adamw sgd; do
  base=$(per_step "$programs/step_bench" "$optimizer fused")
  echo "$optimizer fused loop,$base,0"
  for api in accelerator fabric; do
    figure=$(per_step "$programs/step_bench" "$optimizer $api")
    echo "$optimizer $api,$figure,$((figure - base))"
  done
done

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
base=$(per_step "$programs/trainer_bench" "$folder" accelerator)
echo "accelerator with a loader,$base,0"
for way in bare log undrawn default; do
  figure=$(per_step "$programs/trainer_bench" "$folder" $way)
  echo "trainer $way,$figure,$((figure - base))"
  case $way in bare) bare=$((figure - base)) ;; undrawn) full=$((figure - base - bare)) ;; esac
done
[ "$bare" -le $most ] || { echo "a bare step under Trainer adds $bare instructions, more than $most" >&2; exit 1; }
[ "$full" -le $most ] || { echo "two logs and the default callbacks add $full instructions, more than $most" >&2; exit 1; }
