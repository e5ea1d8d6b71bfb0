"""The same protocol as protocol.h: answers each line "run CASE" with one line of JSON."""
import json
import math
import os
import sys


def streams():
    """Where the driver asks and is answered: standard streams or, under a launcher, the pipes that protocol.h describes."""
    folder, rank = os.environ.get("BENCH_PIPES"), os.environ.get("RANK", "0")
    if not folder:
        return sys.stdin, sys.stdout
    return open(f"{folder}/ask.{rank}"), open(f"{folder}/answer.{rank}", "w")


def serve(measure):
    """measure(case) -> (value, check) or (value, check, verified)."""
    questions, answers = streams()
    sys.stdout = sys.stderr  # what a package prints must not come between the answers
    for line in questions:
        if line.startswith("run "):
            case = line[4:].strip()
            value, check, *verified = measure(case)
            good = all(verified) and math.isfinite(check)
            print(json.dumps({"case": case, "value": value, "check": check, "verified": good}), file=answers, flush=True)
