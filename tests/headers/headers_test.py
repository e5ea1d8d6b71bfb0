#!/usr/bin/env python3
"""Compiles every public header alone (-fsyntax-only).

    headers_test.py ROOT STAMPS COMPILER TORCH_FREE_ROOMS TORCH_INCLUDE...

Headers of Torch-free rooms and options headers are compiled where LibTorch cannot be found. None may reach torch/torch.h.
A header is not compiled again while it and all that it includes are as they were: STAMPS holds what was seen.
What a header reaches of SHARED is compiled once for all, which hides nothing: it would come to the same place anyway.
A compilation ends at an assertion behind the header, the first error being the last: at the end of a source g++ would instantiate all that
LibTorch's inline functions mention, which takes ten times as long as reading ours. Templates of ours are instantiated by the sources that use them.
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

THE_END = "the end of the header"
SHARED = ("torch/nn/module.h", "torch/optim/optimizer.h")
SHARED_BY_BOTH = "ATen/core/Tensor.h"   # precompiled for a header that reaches it and none of SHARED


def sight(path, ours):
    """A file as it is now: those below `ours` by content, the system's by size and time."""
    if str(path).startswith(str(ours)):
        return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()
    status = os.stat(path)
    return [status.st_size, int(status.st_mtime)]


def includes_of(depfile):
    return depfile.read_text().split(":", 1)[1].replace("\\\n", " ").split()


def opened(messages):
    """What the compiler opened, as -H lists it: one line a file, dots for its depth ("!" or "x" for a precompiled one)."""
    return [line.split(" ", 1)[1] for line in messages.splitlines() if re.match(r"\.+ /", line)]


def problems_before_the_end(messages):
    """What the compiler said without its list of files, or None if it came to the end and said nothing else."""
    said = [line for line in messages.splitlines() if not re.match(r"[.!x]+ |Multiple include guards|/\S+$", line)]
    complaints = [line for line in said if re.search(r"\b(error|warning):", line)]
    return None if len(complaints) == 1 and THE_END in complaints[0] else "\n".join(said)


def reached(header, include, seen):
    """What a header of ours includes, directly or through other headers of ours."""
    path = include / header
    for name in re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', path.read_text(), re.MULTILINE) if path.exists() else []:
        if name not in seen:
            seen.add(name)
            reached(name, include, seen)
    return seen


def shared_by(header, include):
    """The headers of LibTorch that this one starts with."""
    names = reached(header, include, set())
    return tuple(name for name in SHARED if name in names) or tuple({SHARED_BY_BOTH} & names)


def precompiled(names, flags, folder):
    """The flags that start a compilation with these headers of LibTorch, and what they include; nothing where the compiler knows no such thing as GCC's."""
    if "clang" in flags[0] or not names:
        return [], []
    header = folder / ("+".join(names).replace("/", "-"))
    dependencies = header.with_suffix(".d")
    header.write_text("".join(f"#include <{name}>\n" for name in names))
    subprocess.run([*flags, "-std=c++20", "-Wall", "-Wextra", "-x", "c++-header", str(header), "-o", f"{header}.gch", "-MD", "-MF", str(dependencies)],
                   check=True)
    return ["-include", str(header)], includes_of(dependencies)


def compile_alone(header, flags, shared, root, stamp):
    """(problem or None, was it compiled?)"""
    command = [*flags, "-std=c++20", "-fsyntax-only", "-Wfatal-errors", "-Wall", "-Wextra", "-Werror", "-I", str(root / "include")]
    if stamp.exists():
        seen = json.loads(stamp.read_text())
        try:
            if seen["command"] == command and all(sight(path, root / "include") == before for path, before in seen["files"].items()):
                return None, False
        except OSError:
            pass
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "alone.cpp")
        source.write_text(f'#include "{header}"\n#include "{header}"\nstatic_assert(false, "{THE_END}");\n')
        outcome = subprocess.run([*command, "-H", str(source)], capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
        problem = problems_before_the_end(outcome.stderr)
        if problem is not None:
            return f"{header} does not compile alone\n{problem}", True
        files = sorted({*shared, *opened(outcome.stderr)})
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
            heavy[header] = shared_by(header, include)
    stamps.mkdir(parents=True, exist_ok=True)
    torch = [compiler] + torch_flags
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        used = sorted(set(heavy.values()), reverse=True)
        shared = dict(zip(used, pool.map(lambda names: precompiled(names, torch, stamps), used)))

        def one(header):
            start, files = shared.get(heavy.get(header), ([], []))
            flags = torch + start if header in heavy else [compiler]
            return (str(header), *compile_alone(header, flags, files, root, stamps / f"{'-'.join(header.parts)}.json"))

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
