#!/usr/bin/env bash
# AddressSanitizer and UBSan over every test, ThreadSanitizer over those that run threads of ours.
# sanitize.sh [asan|tsan]: only that one.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${BUILD:-build}
which=${1:-both}
status=0

if [ "$which" != tsan ]; then
  BUILD=$build-asan CMAKE_ARGS="-DCMAKE_BUILD_TYPE=Sanitize -DMUSTER_SANITIZE=address,undefined -DMUSTER_BUILD_EXAMPLES=OFF" tools/build.sh
  # Tests ask for more memory than there is, and expect an error.
  ASAN_OPTIONS="allocator_may_return_null=1:detect_leaks=1:detect_stack_use_after_return=0:alloc_dealloc_mismatch=0:strict_init_order=1" \
  UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1" \
    python3 tools/run_tests.py "$build-asan" --without sources --without large || status=1
fi

if [ "$which" != asan ]; then
  # It sees no other process: what ranks do to shared memory, comm's tests do with ranks as threads, too.
  # Under ThreadSanitizer LibTorch's own thread pools stay at one thread: they are not instrumented, and their races are not ours.
  threaded=(checkpoint_on_device cluster comm data data_on_device launcher parallel parallel_on_device sim track trainer training_on_device)
  BUILD=$build-tsan CMAKE_ARGS="-DCMAKE_BUILD_TYPE=Sanitize -DMUSTER_SANITIZE=thread -DMUSTER_BUILD_EXAMPLES=OFF" tools/build.sh "${threaded[@]/#/test_}" mpi_ranks
  # Ranks that a test forks may start threads; what it misses after a fork, those tests as threads see.
  # Its search for deadlocks holds 64 locks at most, and ends the program where gloo takes more.
  OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 \
  TSAN_OPTIONS="detect_deadlocks=0:die_after_fork=0:suppressions=$PWD/tools/suppressions/thread.txt:halt_on_error=0:exitcode=66:ignore_noninstrumented_modules=1" \
    python3 tools/run_tests.py "$build-tsan" "${threaded[@]}" mpi || status=1
fi
exit $status
