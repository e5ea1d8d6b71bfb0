#!/usr/bin/env python3
"""Every program and peer of benchmarks/gpu_table.py runs, on the CPU with tiny models; where no GPU is, measuring is refused.
Under MUSTER_TEST_FULL all of them; otherwise a step beside its peers.

    gpu_bench_test.py ROOT BUILD
"""
import os
import pathlib
import subprocess
import sys

ROOT, BUILD = map(pathlib.Path, sys.argv[1:3])
sys.path[:0] = [str(ROOT / "benchmarks")]
import figures  # noqa: E402
import gpu_table  # noqa: E402
import run  # noqa: E402

# Few cases with all programs, peers and what these are asked for.
CHOSEN = ["gpu-step/gpt-trainer", "gpu-step/mlp-fabric", "gpu-waits/mlp-accelerator", "gpu-fsdp", "gpu-recompute", "gpu-norm/gpt-exact-norm", "gpu-loader/tokens", "gpu-checkpoint"]
TRIED = CHOSEN if os.environ.get("MUSTER_TEST_FULL") else ["gpu-step/mlp-fabric"]
WITHOUT_GPU = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}


def kinds(cases):
    """What there is to try: a program or script, and what it is asked for, whatever the model or the workload."""
    return {(pathlib.Path(word).name, asked.split()[-1 if "step" in word else 0])
            for case in cases for name, contender in case.contenders.items() for word in contender.command if word.endswith(("_bench", "_peer.py"))
            for asked in case.variants(name)}


def leaves_nothing_out():
    every = gpu_table.cases(BUILD, "cpu")
    missing = kinds(every) - kinds(run.chosen(every, CHOSEN))
    return f"no case is tried that has {sorted(missing)}" if missing else ""


def counts_waits():
    """Whoever waits for a GPU is counted, also where there is no runtime of CUDA."""
    program = "import ctypes; own = ctypes.CDLL(None); print(own.cudaStreamSynchronize(None), own.cudaDeviceSynchronize(), own.bench_host_waits())"
    counter = BUILD / "benchmarks" / "libbench_host_waits.so"
    outcome = subprocess.run([sys.executable, "-c", program], env={**os.environ, "LD_PRELOAD": str(counter)}, capture_output=True, text=True)
    return "" if outcome.stdout.split() == ["999", "999", "2"] else outcome.stdout + outcome.stderr


def refuses(command):
    outcome = subprocess.run(command, cwd=ROOT, env={**WITHOUT_GPU, "ON": "cuda"}, capture_output=True, text=True)
    told = "no figures of a GPU: CUDA_VISIBLE_DEVICES hides every GPU. They need a GPU of NVIDIA's and its driver;"
    return "" if outcome.returncode == 69 and told in outcome.stderr and not outcome.stdout else f"exit code {outcome.returncode}: {outcome.stderr}"


def tried():
    """(whether it ran, None if it was not installed; what is told) of each pair."""
    outcome = subprocess.run([sys.executable, ROOT / "benchmarks" / "run.py", "--build", BUILD, "--on", "cpu", *TRIED], env=WITHOUT_GPU,
                             capture_output=True, text=True)
    rows = figures.read(BUILD / "bench" / "tried" / "results.csv")
    for row in rows:
        pair = f"{row['benchmark']} {row['case']} beside {row['peer']}"
        absent = row["note"].endswith("is not installed")
        yield None if absent else row["verified"] == "yes", f"{pair}: {row['note'] or row['verified']}"
    if outcome.returncode or not rows:
        yield False, f"run.py ended with {outcome.returncode}:\n{outcome.stderr}"


def main():
    refused = [[sys.executable, "benchmarks/run.py", "--build", BUILD, "--on", "cuda"], ["tools/bench_gpu.sh"]]
    checks = [leaves_nothing_out(), counts_waits(), *map(refuses, refused)]
    found = [(not problem, problem) for problem in checks] + list(tried())
    for good, text in found:
        if not good:
            print(f"{'skipped' if good is None else 'FAILED'} {text}")
    good = [one for one, _ in found]
    print(f"{good.count(True)} passed, {good.count(False)} failed, {good.count(None)} skipped")
    return 1 if False in good else 0


if __name__ == "__main__":
    sys.exit(main())
