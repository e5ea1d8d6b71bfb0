#!/usr/bin/env python3
"""Misuse must not compile, and the compiler must say what to do instead.

    compile_fail_test.py SOURCE BUILD COMPILER

misuse.cpp compiles as it stands. Each `// WRONG n: text` line names a case: with -DWRONG=n the file must not compile,
and the message must contain the text; one that begins with "error:" must be the first error.
"""
import json
import pathlib
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

source, build, compiler = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
misuse = source / "tests/compile_fail/misuse.cpp"


def flags():
    """Those of a source that includes LibTorch, precompiled header included where the build has one."""
    entries = json.loads((build / "compile_commands.json").read_text())
    entry = next(e for e in entries if "/test_runtime.dir/" in e["command"])
    words = shlex.split(entry["command"])
    start = next(i for i, w in enumerate(words) if w == compiler) + 1
    kept, skip = [], False
    for word in words[start:]:
        if skip or word in ("-o", "-c"):
            skip = word == "-o"
            continue
        if word != entry["file"]:
            kept.append(word)
    return kept


def compile_case(case):
    number, text = case
    define = [f"-DWRONG={number}"] if number else []
    done = subprocess.run([compiler, *flags(), *define, "-fsyntax-only", misuse], capture_output=True, text=True, cwd=build)
    if number == 0:
        return None if done.returncode == 0 else f"FAILED the right use does not compile:\n{done.stderr[-3000:]}"
    if done.returncode == 0:
        return f"FAILED case {number} compiles"
    if text.startswith("error:"):   # nothing may stand before it that the user would have to read
        first = next(line for line in done.stderr.splitlines() if "error:" in line)
        return None if text in first else f"FAILED case {number}: the first error is not '{text}' but {first}"
    return None if text in done.stderr else f"FAILED case {number}: the compiler does not say '{text}':\n{done.stderr[:3000]}"


cases = [(0, "")] + [(int(n), text.strip()) for n, text in re.findall(r"// WRONG (\d+): (.*)", misuse.read_text())]
if len(cases) < 2:
    sys.exit("FAILED: no case found in " + str(misuse))
with ThreadPoolExecutor(2) as pool:
    errors = [e for e in pool.map(compile_case, cases) if e]
print("\n".join(errors))
print(f"{len(cases) - len(errors)} passed, {len(errors)} failed, 0 skipped")
sys.exit(1 if errors else 0)
