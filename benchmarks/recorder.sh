#!/usr/bin/env bash
# Instructions that recording adds to each recorded operator of a forward, by callgrind. recorder.sh [BUILD]: fails above 3000. Two runs a way of
# different length; the difference is free of start-up.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."
. benchmarks/callgrind.sh
program=${1:-build}/benchmarks/recorder_bench
few=20 many=100 operators=66 most=3000

per_forward() {  # WAY
  local more less
  more=$(total "$program" "$1" $many)
  less=$(total "$program" "$1" $few)
  echo $(((more - less) / (many - few)))
}

plain=$(per_forward plain)
recorded=$(per_forward recorded)
added=$(((recorded - plain) / operators))
echo "way,instructions_per_forward"
echo "plain,$plain"
echo "recorded,$recorded"
echo "added to an operator: $added"
[ $added -le $most ]
