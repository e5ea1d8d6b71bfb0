#!/usr/bin/env python3
"""Every test program fails if its tests leave something behind; watched on one that does.

    leftovers_test.py PROGRAM
"""
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

LEAVES = {"Nothing": None, "Thread": r"the thread 'forgotten'", "Process": r"the process '\S+'", "DeadProcess": r"the process '\S+'",
          "File": r"the open file /dev/zero", "Folder": r"/\S+/mt-\w+/leaves-folder", "Segment": r"the shared memory segment /dev/shm/leaves-segment-\d+"}


def run(program, case):
    """What is wrong with how the program ends, if anything."""
    done = subprocess.run([program, f"--gtest_filter=Leaves.{case}"], capture_output=True, text=True, timeout=60)
    for name in re.findall(r"^segment /(\S+)", done.stdout, re.MULTILINE):
        os.remove(f"/dev/shm/{name}")
    named = re.findall(r"the tests of this program left (.*) behind", done.stdout)
    if LEAVES[case] is None:
        return f"it fails and names {named}:\n{done.stdout}" if done.returncode or named else None
    if done.returncode == 0:
        return f"it ends well:\n{done.stdout}"
    return None if len(named) == 1 and re.match(LEAVES[case], named[0]) else f"it names {named}:\n{done.stdout}"


def attempt(case):
    problem = run(sys.argv[1], case)
    return problem and f"FAILED {case}: {problem}"


problems = [attempt("Segment")]   # by itself: the others would see it, too
with ThreadPoolExecutor() as pool:
    problems += pool.map(attempt, LEAVES.keys() - {"Segment"})
problems = [problem for problem in problems if problem]
print("\n".join(problems))
print(f"{len(LEAVES) - len(problems)} passed, {len(problems)} failed, 0 skipped")
sys.exit(1 if problems else 0)
