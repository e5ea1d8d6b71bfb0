"""Runs the cases of a parity test: each method test_... of a class, on an object of its own with a folder of its own."""
import pathlib
import sys
import tempfile
import traceback


class Skip(Exception):
    """Raised by a case that cannot run here; says why."""


def run_cases(kind, program):
    """`kind(program, folder)` makes the object. Ends the process."""
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for name in [name for name in dir(kind) if name.startswith("test_")]:
        with tempfile.TemporaryDirectory() as folder:
            try:
                getattr(kind(str(pathlib.Path(program).resolve()), pathlib.Path(folder)), name)()
                outcome = "passed"
            except Skip as reason:
                print(f"skipped {name}: {reason}")
                outcome = "skipped"
            except Exception:
                print(f"FAILED {name}")
                traceback.print_exc(file=sys.stdout)
                outcome = "failed"
        counts[outcome] += 1
    print(", ".join(f"{count} {word}" for word, count in counts.items()))
    sys.exit(counts["failed"] > 0)
