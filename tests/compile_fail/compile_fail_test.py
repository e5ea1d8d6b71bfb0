#!/usr/bin/env python3
"""Misuse must not compile, and the compiler must say what to do instead.

    compile_fail_test.py SOURCE BUILD COMPILER

misuse.cpp compiles as it stands. Each `// WRONG n: text` line names a case: with -DWRONG=n the file must not compile,
and the message must contain the text; one that begins with "error:" must be the first error.
All cases are first compiled together, each in a scope of its own; only those whose message is not found there are compiled alone.
With MUSTER_TEST_FULL, every page's program is compiled alone, too; usually all are one program.
"""
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

source, build, compiler = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
misuse = source / "tests/compile_fail/misuse.cpp"
CONTEXT = re.compile(r"^In file included from |^ +from |: In |: +required |: +in 'constexpr' expansion|: +recursively required ")


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


def includes_of(page):
    """The include folders of a page's program that is built apart, as that of MPI is."""
    entries = json.loads((build / "compile_commands.json").read_text())
    entry = next((e for e in entries if f"/howto_{page.stem}.dir/" in e["command"]), None)
    words = shlex.split(entry["command"]) if entry else []
    return [part for flag, folder in zip(words, words[1:]) if flag == "-isystem" for part in (flag, folder)]


def compiled(path, *more):
    command = [compiler, *flags(), *more, "-fsyntax-only", path]
    return subprocess.run(command, capture_output=True, text=True, cwd=build, env={**os.environ, "LC_ALL": "C"})


def together(text):
    """The file with every case in it, each in braces, line for line; and the number of the case of each line."""
    lines, case_of, number = text.splitlines(), {}, None
    for index, line in enumerate(lines):
        head = re.match(r"#(?:el)?if WRONG == (\d+)$", line)
        if head:
            lines[index] = "{" if number is None else "} {"
            number = int(head[1])
        elif line == "#endif" and number is not None:
            lines[index], number = "}", None
        case_of[index + 1] = number
    return "\n".join(lines) + "\n", case_of


def messages_of(stderr, case_of):
    """(case or None, error line, whole message) of each error, the lines that lead to it included."""
    blocks, context = [], []
    for line in stderr.splitlines():
        if "error:" in line:
            blocks.append((line, context + [line]))
            context = []
        elif CONTEXT.search(line):
            context.append(line)
        elif blocks:
            blocks[-1][1].extend(context + [line])
            context = []
    for error, lines in blocks:
        places = [int(place) for line in lines for place in re.findall(r"^\S*misuse\.cpp:(\d+):", line)]
        yield next((case_of[place] for place in places if case_of.get(place)), None), error, "\n".join(lines)


def said_together(cases):
    """The cases whose message the compiler gives when all are compiled at once, as it would for each alone."""
    text, case_of = together(misuse.read_text())
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "misuse.cpp")
        path.write_text(text)
        messages = list(messages_of(compiled(path, "-fmax-errors=0" if "clang" not in compiler else "-ferror-limit=0").stderr, case_of))
    said = set()
    for number, words in cases:
        own = [(error, whole) for case, error, whole in messages if case == number]
        if words.startswith("error:"):   # nothing may stand before it that the user would have to read
            said |= {number} if own and words in own[0][0] else set()
        elif any(words in whole for _, whole in own):
            said.add(number)
    return said


def compile_case(case):
    number, text = case
    done = compiled(misuse, f"-DWRONG={number}")
    if done.returncode == 0:
        return f"FAILED case {number} compiles"
    if text.startswith("error:"):
        first = next(line for line in done.stderr.splitlines() if "error:" in line)
        return None if text in first else f"FAILED case {number}: the first error is not '{text}' but {first}"
    return None if text in done.stderr else f"FAILED case {number}: the compiler does not say '{text}':\n{done.stderr[:3000]}"


def compile_right(path):
    done = compiled(path, *includes_of(path))
    return None if done.returncode == 0 else f"FAILED {path.name}: the right use does not compile:\n{done.stderr[-3000:]}"


wrong = [(int(n), text.strip()) for n, text in re.findall(r"// WRONG (\d+): (.*)", misuse.read_text())]
if not wrong:
    sys.exit("FAILED: no case found in " + str(misuse))
pages = sorted((source / "docs/howto").glob("*.cpp")) if os.environ.get("MUSTER_TEST_FULL") else []
skipped = [page for page in pages if "<mpi.h>" in page.read_text() and not includes_of(page)]
right = [misuse, *(page for page in pages if page not in skipped)]
with ThreadPoolExecutor(2) as pool:
    checks = [pool.submit(compile_right, path) for path in right]
    said = said_together(wrong)
    alone = [case for case in wrong if case[0] not in said]
    errors = [e for e in [check.result() for check in checks] + list(pool.map(compile_case, alone)) if e]
count = len(right) + len(wrong)
print("\n".join(errors))
print(f"compiled together: {len(said)} of {len(wrong)} cases")
print("".join(f"skipped {page.name}: this build found no MPI\n" for page in skipped), end="")
print(f"{count - len(errors)} passed, {len(errors)} failed, {len(skipped)} skipped")
sys.exit(1 if errors else 0)
