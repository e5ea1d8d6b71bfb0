# Sourced by the scripts that count instructions with callgrind.

command -v valgrind >/dev/null || { echo "valgrind is missing: apt-get install -y valgrind" >&2; exit 77; }

# LibTorch runs under valgrind with these; one thread, so that nothing spins.
export ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 ONEDNN_MAX_CPU_ISA=AVX2 OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 MUSTER_LOG=error

# total PROGRAM ARGUMENT...: all instructions of a run.
total() {
  local log status=0
  log=$(mktemp)
  valgrind --tool=callgrind --callgrind-out-file=/dev/null "$@" >"$log" 2>&1 || status=$?
  if [ $status = 0 ]; then awk '/Collected/ {print $NF}' "$log"; else tail -n 20 "$log" >&2; fi
  rm -f "$log"
  return $status
}
