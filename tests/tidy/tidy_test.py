#!/usr/bin/env python3
"""clang-tidy over product sources that the last commits changed: the latest of them, since each takes 40 seconds. `make tidy` looks at all.

    tidy_test.py ROOT BUILD LIBTORCH
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from changed_sources import changed, problems_of_the_choice, why_unknown  # noqa: E402

SOURCES = 2   # 40 s each, two at once
VERSION = "16."
TIDY = pathlib.Path(__file__).resolve().parents[2] / "tools/tidy.sh"


def why_not(root):
    """Why nothing can be looked at; None if something can."""
    told = subprocess.run([TIDY, "--version"], capture_output=True, text=True)
    version = told.stdout or told.stderr
    if not re.search(rf"version {re.escape(VERSION)}", version):
        return f"clang-tidy {VERSION}x is needed; found: {' '.join(version.split())}"
    return why_unknown(root)


def complaints(build, torch, sources):
    """The lines that name a place, each once; or what the program said where it failed without any."""
    outcome = subprocess.run([TIDY, *sources], capture_output=True, text=True, env={**os.environ, "BUILD": build, "TORCH": torch})
    lines = list(dict.fromkeys(line for line in outcome.stdout.splitlines() if re.search(r":\d+:\d+: (error|warning): ", line)))
    return lines or ([f"tools/tidy.sh failed: {outcome.stdout}{outcome.stderr}"] if outcome.returncode else [])


def main(root, build, torch):
    reason = why_not(root)
    if reason:
        print(f"skipped: {reason}")
        return 77
    problems, sources = list(problems_of_the_choice(SOURCES)), changed(root, SOURCES)
    with tempfile.TemporaryDirectory() as folder:
        bad = pathlib.Path(folder, "bad.cpp")
        bad.write_text("int* f() { return 0; }\n")
        found = complaints(build, torch, [str(bad)])
        problems += [] if any("modernize-use-nullptr" in line for line in found) else [f"a wrong source is not found: {found}"]
    found = complaints(build, torch, sources) if sources else []
    bad_sources = {line.split(":", 1)[0] for line in found}
    print("\n".join(f"FAILED {problem}" for problem in problems + found))
    failed = len(problems) + len(bad_sources)
    print(f"looked at {', '.join(sources) or 'nothing: no product source was changed'}")
    print(f"{max(0, len(sources) + 2 - failed)} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
