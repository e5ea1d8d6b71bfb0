#!/usr/bin/env bash
# Trains the digit classifier on two ranks, then on one, and shows both: the loss curves as an SVG, the accuracies last.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${BUILD:-build}
out=${OUT:-out/demo}
mkdir -p "$out"
run="$build/bin/muster run --accelerator cpu --threads 1"
echo "demo: two ranks on the CPU, whatever the machine has"
echo "== two ranks"
$run --devices 2 "$build/examples/demo" "$out/two" "${EPOCHS:-12}"
echo "== one rank"
$run --devices 1 "$build/examples/demo" "$out/one" "${EPOCHS:-12}"
if command -v gnuplot >/dev/null; then
  gnuplot -e "out='$out'" tools/loss_curves.gp
  echo "loss curves: file://$(realpath "$out")/loss.svg"
else
  echo "loss curves: no picture, gnuplot is not installed (the figures are in $out/*/loss.csv)"
fi
printf '%-12s %10s\n' ranks accuracy two "$(cat "$out/two/accuracy.txt")" one "$(cat "$out/one/accuracy.txt")"
echo "demo: accuracy $(cat "$out/two/accuracy.txt") one-rank $(cat "$out/one/accuracy.txt")"
