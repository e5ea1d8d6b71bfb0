"""The same protocol as protocol.h: answers each line "run CASE" with one line of JSON."""
import json
import math
import sys


def serve(measure):
    """measure(case) -> (value, check) or (value, check, verified)."""
    answers = sys.stdout
    sys.stdout = sys.stderr  # what a package prints must not come between the answers
    for line in sys.stdin:
        if line.startswith("run "):
            case = line[4:].strip()
            value, check, *verified = measure(case)
            good = all(verified) and math.isfinite(check)
            print(json.dumps({"case": case, "value": value, "check": check, "verified": good}), file=answers, flush=True)
