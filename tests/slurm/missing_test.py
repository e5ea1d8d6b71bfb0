#!/usr/bin/env python3
"""`make test-services` fails where SLURM is missing or does not start; elsewhere its test is skipped.

    missing_test.py SLURM_TEST
"""
import os
import pathlib
import subprocess
import sys
import tempfile

counts = {"passed": 0, "failed": 0}


def expect(what, code, words, **variables):
    """The test of SLURM ends with `code` and says `words`; the commands of its PATH exist and do nothing, or do not exist."""
    plain = {name: value for name, value in os.environ.items() if name != "MUSTER_TEST_SERVICES"}
    done = subprocess.run([sys.executable, sys.argv[1], muster, muster, muster], capture_output=True, text=True, timeout=60, env={**plain, **variables})
    good = done.returncode == code and words in done.stdout
    counts["passed" if good else "failed"] += 1
    if not good:
        print(f"FAILED {what}: code {done.returncode}\n{done.stdout}{done.stderr}")


with tempfile.TemporaryDirectory() as folder:
    muster = pathlib.Path(folder, "muster")
    for name in ("muster", "munged", "slurmctld", "slurmd", "sbatch", "scancel", "scontrol", "srun"):
        pathlib.Path(folder, name).write_text(f"#!/bin/sh\n{'exit 0' if name == 'muster' else 'echo no room >&2; exit 3'}\n")
        pathlib.Path(folder, name).chmod(0o755)
    expect("not asked for", 77, "make test-services runs it")
    expect("servers that end", 1, "FAILED slurm: SLURM does not run here", MUSTER_TEST_SERVICES="1", PATH=f"{folder}:{os.environ['PATH']}")
    muster.with_name("srun").unlink()
    expect("a command is missing", 1, "FAILED slurm: not installed: srun", MUSTER_TEST_SERVICES="1", PATH=folder)

print(f"{counts['passed']} passed, {counts['failed']} failed, 0 skipped")
sys.exit(counts["failed"] > 0)
