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

COMMITS, SOURCES = 20, 2   # 40 s a source, two at once
VERSION = "16."
TIDY = pathlib.Path(__file__).resolve().parents[2] / "tools/tidy.sh"


def git(root, *words):
    return subprocess.run(["git", "-C", root, *words], capture_output=True, text=True)


def why_not(root):
    """Why the changed sources cannot be known or looked at; None if they can."""
    told = subprocess.run([TIDY, "--version"], capture_output=True, text=True)
    version = told.stdout or told.stderr
    if not re.search(rf"version {re.escape(VERSION)}", version):
        return f"clang-tidy {VERSION}x is needed; found: {' '.join(version.split())}"
    known = git(root, "rev-list", "--count", f"--max-count={COMMITS + 1}", "HEAD")
    if known.returncode:
        return "this is no git checkout, so nothing says what was changed"
    if git(root, "rev-parse", "--is-shallow-repository").stdout.strip() == "true" and int(known.stdout) <= COMMITS:
        return f"a shallow clone with {known.stdout.strip()} commits does not show what the last {COMMITS} changed"
    return None


def changed(root):
    """Sources that the last commits changed and that are still there, the latest first."""
    names = git(root, "log", f"--max-count={COMMITS}", "--no-renames", "--name-only", "--format=").stdout.splitlines()
    return [name for name in dict.fromkeys(names) if re.match(r"(src|apps)/.*\.cpp$", name) and pathlib.Path(root, name).exists()][:SOURCES]


def complaints(build, torch, sources):
    """The lines that name a place, each once; or what the program said where it failed without any."""
    outcome = subprocess.run([TIDY, *sources], capture_output=True, text=True, env={**os.environ, "BUILD": build, "TORCH": torch})
    lines = list(dict.fromkeys(line for line in outcome.stdout.splitlines() if re.search(r":\d+:\d+: (error|warning): ", line)))
    return lines or ([f"tools/tidy.sh failed: {outcome.stdout}{outcome.stderr}"] if outcome.returncode else [])


def picks_what_was_changed():
    """The choice itself, on a small history: problems."""
    with tempfile.TemporaryDirectory() as folder:
        def commit(*files):
            for name in files:
                path = pathlib.Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(path.read_text() + "\n" if path.exists() else "\n")
            git(folder, "add", "--all")
            git(folder, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--no-verify", "--message", "x")

        git(folder, "init", "--quiet")
        commit("src/old.cpp")
        for index in range(COMMITS - 4):
            commit(f"tests/{index}.cpp")
        commit("src/a.cpp", "src/gone.cpp", "docs/a.md")
        commit("apps/muster/b.cpp", "include/c.h")
        pathlib.Path(folder, "src/gone.cpp").unlink()
        commit("src/a.cpp")
        commit("tests/last.cpp")
        found = changed(folder)
        if found != ["src/a.cpp", "apps/muster/b.cpp"]:
            yield f"of a small history it picks {found}"
        commit(*[f"src/{index}.cpp" for index in range(SOURCES + 2)])
        if len(changed(folder)) != SOURCES:
            yield f"it picks {len(changed(folder))} sources"
        shallow = pathlib.Path(folder, "shallow")
        git(folder, "clone", "--quiet", "--depth=3", f"file://{folder}", shallow)
        if "a shallow clone with 3 commits" not in (why_not(shallow) or ""):
            yield f"of a shallow clone it says {why_not(shallow)}"


def main(root, build, torch):
    reason = why_not(root)
    if reason:
        print(f"skipped: {reason}")
        return 77
    problems, sources = list(picks_what_was_changed()), changed(root)
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
