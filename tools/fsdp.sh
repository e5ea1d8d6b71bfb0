#!/usr/bin/env bash
# Trains on a book with parameters replicated and cut over two ranks, and shows both: loss and memory of each rank as an SVG.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${BUILD:-build}
out=${OUT:-out/fsdp}
steps=${STEPS:-30}
mkdir -p "$out"
export MUSTER_KEEP_MEMORY=0   # else the picture shows what is kept for the next step, too
command -v bible >/dev/null || { echo "fsdp: no book; install Debian's package bible-kjv" >&2; exit 77; }
bible -f 'gen1:1-rev22:21' </dev/null >"$out/book.txt"
echo "fsdp: two ranks on the CPU, whatever the machine has"
for strategy in ddp fsdp; do
  echo "== $strategy"
  "$build/bin/muster" run --accelerator cpu --devices 2 --threads 1 "$build/examples/fsdp" "$out/book.txt" "$out/$strategy" $strategy 32-true auto "$steps"
done
if command -v gnuplot >/dev/null; then
  gnuplot -e "out='$out'" tools/fsdp_curves.gp
  echo "loss and memory: file://$(realpath "$out")/fsdp.svg"
else
  echo "loss and memory: no picture, gnuplot is not installed (the figures are in $out/*/rank*.csv)"
fi
for strategy in ddp fsdp; do awk -F, -v s=$strategy 'END {printf "%s: loss %.3f, %.0f MiB a rank\n", s, $2, $3}' "$out/$strategy/rank0.csv"; done
