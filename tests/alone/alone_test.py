#!/usr/bin/env python3
"""Compiles product sources and their private headers, each alone (-fsyntax-only). The build joins many sources into one, which hides that one of
them lacks an include. Those that the last commits changed, the latest of them; under MUSTER_TEST_FULL all.

    alone_test.py ROOT BUILD

The flags and the precompiled header are the build's. A compilation ends at an assertion behind the source, as those of tests/headers do: it saves
most of the time.
"""
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from changed_sources import changed, problems_of_the_choice, why_unknown  # noqa: E402

FULL = bool(os.environ.get("MUSTER_TEST_FULL"))
SOURCES = 6  # 2 to 8 s each, two at once
OURS = r"(simdevice/)?(src|apps)/.*\.(cpp|h)$"
THE_END = "the end of the source"


def finds_torch(entry):
    return "torch/include" in entry["command"]


class Commands:
    """How the build compiles each source, or others of a header's folder."""
    def __init__(self, build):
        self.of_source, self.of_folder = {}, {}
        for entry in json.loads(pathlib.Path(build, "compile_commands.json").read_text()):
            file = pathlib.Path(entry["file"])
            joined = re.findall(r'^#include "(.+)"$', file.read_text(), re.MULTILINE) if "/Unity/" in entry["file"] and file.exists() else []
            for source in map(pathlib.Path, joined or [file]):
                self.of_source[source] = entry
                if source.parent not in self.of_folder or finds_torch(entry):  # folders have sources of the library without it, too
                    self.of_folder[source.parent] = entry

    def of(self, path):
        """The words of the command that checks it, and where to run it; None if the build does not compile it."""
        entry = self.of_source.get(path)
        if path.suffix == ".h":
            entry = next((self.of_folder[folder] for folder in path.parents if folder in self.of_folder), None)
        if not entry:
            return None
        words = shlex.split(entry["command"])
        for option in ("-o", "-c"):
            at = words.index(option)
            del words[at:at + 2]
        return words + ["-fsyntax-only", "-x", "c++", "-"], entry["directory"]


def complaints(command, text):
    """What the compiler says of a source of this text before its end; empty if it comes there and says nothing else."""
    words, folder = command
    said = subprocess.run(words, cwd=folder, input=f'{text}\nstatic_assert(false, "{THE_END}");\n', capture_output=True, text=True).stderr
    lines = [line for line in said.splitlines() if re.search(r"\b(error|warning):", line)]
    return [] if len(lines) == 1 and THE_END in lines[0] else [line for line in lines if THE_END not in line] or [said]


def finds_what_lacks(commands, root):
    """Problems: a source that lacks an include must be found, and the same one with it must pass."""
    command = commands.of(root / "src" / "base" / "log.cpp")
    lacks = 'void f() { throw muster::ConfigError("MU000", ""); }'
    if not complaints(command, lacks):
        yield "a source that lacks an include is not found"
    if found := complaints(command, f'#include "muster/base/error.h"\n{lacks}'):
        yield f"of a source that is right the compiler says {found}"


def main(root, build):
    root = pathlib.Path(root)
    reason = None if FULL else why_unknown(root)
    if reason:
        print(f"skipped: {reason}")
        return 77
    everything = (path.relative_to(root) for top in ("src", "apps", "simdevice/src") for path in sorted(pathlib.Path(root, top).rglob("*")))
    names = [str(path) for path in everything if re.match(OURS, str(path))] if FULL else changed(root, SOURCES, OURS)
    commands = Commands(build)
    problems = list(problems_of_the_choice(SOURCES)) + list(finds_what_lacks(commands, root))

    def look(name):
        command = commands.of(root / name)
        return complaints(command, f'#include "{root / name}"') if command else None

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        found = dict(zip(names, pool.map(look, names)))
    left_out = [name for name, said in found.items() if said is None]
    bad = {name: said for name, said in found.items() if said}
    for text in problems + [f"{name}: {said[0]}" for name, said in bad.items()]:
        print(f"FAILED {text}")
    for name in left_out:
        print(f"skipped {name}: this build does not compile it")
    if not FULL:
        print(f"looked at {', '.join(names) or 'nothing: no product source was changed'}")
    print(f"{len(found) - len(bad) - len(left_out) + (2 if not problems else 0)} passed, {len(problems) + len(bad)} failed, {len(left_out)} skipped")
    return 1 if problems or bad else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
