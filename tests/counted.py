"""What a script of tests has found, as run_tests.py reads it."""
import sys

counts = {"passed": 0, "failed": 0, "skipped": 0}


def report(name, error):
    counts["failed" if error else "passed"] += 1
    if error:
        print(f"FAILED {name}: {error}")


def skip(name, reason):
    counts["skipped"] += 1
    print(f"skipped {name}: {reason}")


def close():
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    sys.exit(1 if counts["failed"] else 0)
