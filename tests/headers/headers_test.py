#!/usr/bin/env python3
"""Compiles every public header alone (-fsyntax-only, no precompiled header).

    headers_test.py ROOT STAMPS COMPILER TORCH_FREE_ROOMS TORCH_INCLUDE...

Headers of Torch-free rooms and options headers are compiled where LibTorch cannot be found. None may reach torch/torch.h.
A header is not compiled again while it and all that it includes are as they were: STAMPS holds what was seen.
What a header reaches of SHARED is compiled once for all, which hides nothing: it would come to the same place anyway.
"""
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

SHARED = ("torch/optim/optimizer.h", "torch/nn/module.h", "ATen/core/Tensor.h")   # the first that a header reaches is used


def sight(path, ours):
    """A file as it is now: those below `ours` by content, the system's by size and time."""
    if str(path).startswith(str(ours)):
        return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()
    status = os.stat(path)
    return [status.st_size, int(status.st_mtime)]


def includes_of(depfile):
    text = depfile.read_text().split(":", 1)[1].replace("\\\n", " ")
    return [name for name in text.split() if not name.endswith("alone.cpp")]


def reached(header, include, seen):
    """What a header of ours includes, directly or through other headers of ours."""
    path = include / header
    for name in re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', path.read_text(), re.MULTILINE) if path.exists() else []:
        if name not in seen:
            seen.add(name)
            reached(name, include, seen)
    return seen


def precompiled(name, flags, folder):
    """The flags that start a compilation with this header of LibTorch; none where the compiler knows no such thing as GCC's."""
    if "clang" in flags[0]:
        return []
    header = folder / name.replace("/", "-")
    header.write_text(f"#include <{name}>\n")
    subprocess.run([*flags, "-std=c++20", "-Wall", "-Wextra", "-x", "c++-header", str(header), "-o", f"{header}.gch"], check=True)
    return ["-include", str(header), "-fpch-deps"]


def compile_alone(header, flags, root, stamp):
    """(problem or None, was it compiled?)"""
    command = [*flags, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-I", str(root / "include")]
    if stamp.exists():
        seen = json.loads(stamp.read_text())
        try:
            if seen["command"] == command and all(sight(path, root / "include") == before for path, before in seen["files"].items()):
                return None, False
        except OSError:
            pass
    with tempfile.TemporaryDirectory() as folder:
        source, dependencies = pathlib.Path(folder, "alone.cpp"), pathlib.Path(folder, "alone.d")
        source.write_text(f'#include "{header}"\n#include "{header}"\n')
        outcome = subprocess.run([*command, "-MD", "-MF", str(dependencies), "-MT", "alone", str(source)], capture_output=True, text=True)
        if outcome.returncode:
            return f"{header} does not compile alone\n{outcome.stderr}", True
        files = includes_of(dependencies)
    heavy = [name for name in files if name.endswith(("/torch/torch.h", "/torch/all.h"))]
    if heavy:
        return f"{header} reaches {heavy[0]}", True
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(json.dumps({"command": command, "files": {name: sight(name, root / "include") for name in files}}))
    return None, True


def check(root, stamps, compiler, torch_free, torch_flags):
    """(name, problem or None, compiled?) of each public header below ROOT."""
    include = root / "include"
    headers = sorted(path.relative_to(include) for path in (include / "muster").rglob("*.h"))
    heavy = {}
    for header in headers:
        if header.parts[1] not in torch_free and header.name not in ("options.h", "launch_check.h"):
            names = reached(header, include, set())
            heavy[header] = next((name for name in SHARED if name in names), None)
    stamps.mkdir(parents=True, exist_ok=True)
    torch = [compiler] + torch_flags
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        used = sorted(set(heavy.values()) - {None})
        shared = dict(zip(used, pool.map(lambda name: precompiled(name, torch, stamps), used)))

        def one(header):
            flags = torch + shared.get(heavy[header], []) if header in heavy else [compiler]
            return (str(header), *compile_alone(header, flags, root, stamps / f"{'-'.join(header.parts)}.json"))

        return list(pool.map(one, headers))


def watched_failing(compiler):
    """The check itself, on a tree with one good header and three bad ones: (passed, problems)."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        torch = root / "elsewhere" / "torch"
        torch.mkdir(parents=True)
        (torch / "torch.h").write_text("#pragma once\n")
        for name, text in {"tree/good.h": "#include <string>\ninline std::string good;\n", "tree/lame.h": "inline std::string lame;\n",
                           "tree/heavy.h": "#include <torch/torch.h>\n", "base/free.h": "#include <torch/torch.h>\n"}.items():
            path = root / "include" / "muster" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("#pragma once\n" + text)
        flags = ["-isystem", str(root / "elsewhere")]
        first = {name: (bool(problem), compiled) for name, problem, compiled in check(root, root / "stamps", compiler, {"base"}, flags)}
        second = {name: compiled for name, _, compiled in check(root, root / "stamps", compiler, {"base"}, flags)}
        good = root / "include" / "muster" / "tree" / "good.h"
        good.write_text(good.read_text() + "inline int more;\n")
        third = {name: compiled for name, _, compiled in check(root, root / "stamps", compiler, {"base"}, flags)}
    expected = [("refuses a header that lacks an include", first["muster/tree/lame.h"][0]),
                ("refuses a header that reaches torch/torch.h", first["muster/tree/heavy.h"][0]),
                ("hides LibTorch from Torch-free rooms", first["muster/base/free.h"][0]),
                ("accepts a good header", first["muster/tree/good.h"] == (False, True)),
                ("does not compile an unchanged header again", not second["muster/tree/good.h"]),
                ("compiles a changed header again", third["muster/tree/good.h"])]
    return sum(holds for _, holds in expected), [f"the check itself no longer {what}" for what, holds in expected if not holds]


def main(root, stamps, compiler, torch_free, *torch_includes):
    torch_flags = ["-DUSE_DISTRIBUTED", "-DUSE_C10D_GLOO"] + [flag for path in torch_includes for flag in ("-isystem", path)]
    passed, problems = watched_failing(compiler)
    results = check(pathlib.Path(root), pathlib.Path(stamps), compiler, set(torch_free.split(",")), torch_flags)
    problems += [problem for _, problem, _ in results if problem] + ([] if results else ["there is no public header"])
    passed += sum(not problem for _, problem, _ in results)
    print("\n".join(f"FAILED {problem}" for problem in problems))
    print(f"compiled {sum(compiled for _, _, compiled in results)} of {len(results)} headers, the others were unchanged")
    print(f"{passed} passed, {len(problems)} failed, 0 skipped")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
