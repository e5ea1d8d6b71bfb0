#!/usr/bin/env python3
"""Compiles every public header alone (-fsyntax-only), and a user's program with all warnings of the optimizer.

    headers_test.py ROOT BUILD STAMPS COMPILER TORCH_FREE_ROOMS MPI_INCLUDES TORCH_INCLUDE...

Headers of Torch-free rooms and options headers are compiled where LibTorch cannot be found. None may reach torch/torch.h.
Those that include mpi.h are compiled where MPI's folders are given (with commas between them), and named as skipped elsewhere.
A header is not compiled again while it and all that it includes are as they were: STAMPS holds what was seen.
A header starts from the first of SHARED that it reaches whole, compiled once for all, which hides nothing: it would come to the same place anyway.
A compilation ends at an assertion behind the header, the first error being the last: at the end of a source g++ would instantiate all that
LibTorch's inline functions mention, which takes ten times as long as reading ours. Templates of ours are instantiated by the sources that use them.
"""
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

OPTIONS = re.compile(r"muster/\w+/(?:\w+_)?options\.h")  # of room options, which is free of Torch, though they stand in the folders of others
THE_END = "the end of the header"
MODULE, TENSOR = ("torch/nn/module.h",), ("ATen/core/Tensor.h",)
SHARED = (MODULE, TENSOR, ("functional", "string", "vector"), ("string", "vector"), ("string",))
COME_TO_TENSOR = {"torch/optim/optimizer.h", "torch/csrc/distributed/c10d/Backend.hpp", "torch/csrc/distributed/c10d/Store.hpp"}
# What the build's precompiled header holds beside MODULE, and how a header would use it unasked.
BESIDE_MODULE = {"torch/optim/optimizer.h": r"\btorch::optim::", "torch/csrc/autograd/function.h": r"\btorch::autograd::"}

USERS_PROGRAM = """
#include <map>
#include <string>
#include <muster/accelerator.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

struct Rows {
  std::map<std::string, torch::Tensor> get(int64_t i) const { return {{"x", torch::ones(3) * i}, {"y", torch::ones(1)}}; }
  int64_t size() const { return 12; }
};

void train() {
  muster::Accelerator accelerator;
  torch::nn::Linear net(3, 1);
  auto [model, optimizer, loader] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1), muster::DataLoader(Rows(), {.batch_size = 4}));
  for (auto& batch : loader) {
    accelerator.backward((model(batch["x"]) - batch["y"]).square().mean());
    optimizer.step();
    accelerator.gather_for_metrics(batch);
  }
}
"""


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
    """What this header starts with: one of SHARED, or nothing."""
    names = reached(header, include, set())
    if names & COME_TO_TENSOR:
        names = names | set(TENSOR)
    return next((group for group in SHARED if names.issuperset(group)), ())


def place_of(names, folder):
    return folder / "+".join(names).replace("/", "-")


def precompile(names, flags, folder):
    """Compiles these headers and returns what they include."""
    header = place_of(names, folder)
    dependencies = header.with_suffix(".d")
    header.write_text("".join(f"#include <{name}>\n" for name in names))
    subprocess.run([*flags, "-std=c++20", "-Wall", "-Wextra", "-x", "c++-header", str(header), "-o", f"{header}.gch", "-MD", "-MF", str(dependencies)],
                   check=True)
    return [name for name in includes_of(dependencies) if name != str(header)]


def precompiled_by_build(build):
    """The flags that start a compilation with the build's precompiled header, and its file; None where it made none."""
    listing = build / "compile_commands.json"
    for entry in json.loads(listing.read_text()) if listing.exists() else []:
        words = shlex.split(entry["command"])
        name = words[words.index("-include") + 1] if "-include" in words else ""
        if "/muster_precompiled.dir/" in name and pathlib.Path(f"{name}.gch").exists():
            return [word for word in words if re.match(r"-(O|f|DNDEBUG)", word)] + ["-include", name], [f"{name}.gch"]
    return None


def used_unasked(header, include):
    """What of BESIDE_MODULE this header names but does not reach."""
    names = reached(header, include, set())
    text = (include / header).read_text()
    return [name for name, use in BESIDE_MODULE.items() if name not in names and re.search(use, text)]


def unchanged(command, root, stamp):
    """Whether the stamp saw this command and these files."""
    if not stamp.exists():
        return False
    seen = json.loads(stamp.read_text())
    try:
        return seen["command"] == command and all(sight(path, root / "include") == before for path, before in seen["files"].items())
    except OSError:
        return False


def compile_alone(header, command, shared, root, stamp):
    """The problem, or None."""
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "alone.cpp")
        source.write_text(f'#include "{header}"\n#include "{header}"\nstatic_assert(false, "{THE_END}");\n')
        outcome = subprocess.run([*command, "-H", str(source)], capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
        problem = problems_before_the_end(outcome.stderr)
        if problem is not None:
            return f"{header} does not compile alone\n{problem}"
        files = sorted({*shared, *opened(outcome.stderr)})
    heavy = [name for name in files if name.endswith(("/torch/torch.h", "/torch/all.h"))]
    if heavy:
        return f"{header} reaches {heavy[0]}"
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(json.dumps({"command": command, "files": {name: sight(name, root / "include") for name in files}}))
    return None


def needs_mpi(header, include):
    return "mpi.h" in reached(header, include, set())


def check(root, build, stamps, compiler, torch_free, torch_flags, mpi_flags=()):
    """(name, problem or None, compiled?) of each public header below ROOT, without those that lack MPI."""
    include = root / "include"
    headers = sorted(path.relative_to(include) for path in (include / "muster").rglob("*.h"))
    of_mpi = {header for header in headers if needs_mpi(header, include)}
    headers = [header for header in headers if mpi_flags or header not in of_mpi]
    free = {header for header in headers if header.parts[1] in torch_free or OPTIONS.fullmatch(header.as_posix())}
    start = {header: shared_by(header, include) for header in headers}
    start = {header: () if header in free and group in (MODULE, TENSOR) else group for header, group in start.items()}
    stamps.mkdir(parents=True, exist_ok=True)
    torch = [compiler] + torch_flags
    of_build = precompiled_by_build(build)
    knows_precompiled = "clang" not in compiler

    def command(header):
        group = start[header]
        flags = of_build[0] if group == MODULE and of_build else ["-include", str(place_of(group, stamps))] if group and knows_precompiled else []
        return [*([compiler] if header in free else torch), *flags, *(mpi_flags if header in of_mpi else ()), "-std=c++20", "-fsyntax-only", "-Wfatal-errors", "-Wall", "-Wextra", "-Werror",
                "-I", str(include)]

    def make(group):
        if group == MODULE and of_build:
            return of_build[1]
        return precompile(group, torch if group in (MODULE, TENSOR) else [compiler], stamps) if group and knows_precompiled else []

    def one(header):
        unasked = used_unasked(header, include) if start[header] == MODULE else []
        if unasked:
            return str(header), f"{header} does not include {', '.join(unasked)}", True
        return str(header), compile_alone(header, command(header), shared[start[header]], root, stamp[header]), True

    stamp = {header: stamps / f"{'-'.join(header.parts)}.json" for header in headers}
    changed = [header for header in headers if not unchanged(command(header), root, stamp[header])]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        groups = sorted({start[header] for header in changed}, key=lambda group: group not in (MODULE, TENSOR))
        shared = dict(zip(groups, pool.map(make, groups)))
        return [(str(header), None, False) for header in headers if header not in changed] + list(pool.map(one, changed))


def program_compiles(root, stamps, compiler, torch_flags):
    """The problem of USERS_PROGRAM at -O3, where g++ warns of more than without it, or None."""
    program, depfile, stamp = stamps / "users_program.cpp", stamps / "users_program.d", stamps / "users_program.json"
    command = [compiler, *torch_flags, "-std=c++20", "-O3", "-Wall", "-Wextra", "-Werror", "-I", str(root / "include"), "-c", "-o", os.devnull]
    seen = [*command, USERS_PROGRAM]
    if unchanged(seen, root, stamp):
        return None
    stamps.mkdir(parents=True, exist_ok=True)
    program.write_text(USERS_PROGRAM)
    outcome = subprocess.run([*command, str(program), "-MD", "-MF", str(depfile)], capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    if outcome.returncode:
        return f"a user's program does not compile with -O3 -Wall -Wextra -Werror\n{outcome.stderr}"
    files = [name for name in includes_of(depfile) if name != str(program)]
    stamp.write_text(json.dumps({"command": seen, "files": {name: sight(name, root / "include") for name in files}}))
    return None


def watched_failing(compiler):
    """The check itself, on a tree with one good header and four bad ones: (passed, problems)."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        torch = root / "elsewhere" / "torch"
        torch.mkdir(parents=True)
        (torch / "torch.h").write_text("#pragma once\n")
        (torch / "nn").mkdir()
        (torch / "nn" / "module.h").write_text("#pragma once\nnamespace torch::optim { template <class T> struct Of {}; }\n")
        for name, text in {"tree/good.h": "#include <string>\ninline std::string good;\n", "tree/lame.h": "inline std::string lame;\n",
                           "tree/heavy.h": "#include <torch/torch.h>\n", "base/free.h": "#include <torch/torch.h>\n",
                           "tree/unasked.h": "#include <torch/nn/module.h>\ntemplate <class T> torch::optim::Of<T> unasked;\n"}.items():
            path = root / "include" / "muster" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("#pragma once\n" + text)
        flags = ["-isystem", str(root / "elsewhere")]
        first = {name: (bool(problem), compiled) for name, problem, compiled in check(root, root, root / "stamps", compiler, {"base"}, flags)}
        second = {name: compiled for name, _, compiled in check(root, root, root / "stamps", compiler, {"base"}, flags)}
        good = root / "include" / "muster" / "tree" / "good.h"
        good.write_text(good.read_text() + "inline int more;\n")
        third = {name: compiled for name, _, compiled in check(root, root, root / "stamps", compiler, {"base"}, flags)}
    expected = [("refuses a header that lacks an include", first["muster/tree/lame.h"][0]),
                ("refuses a header that reaches torch/torch.h", first["muster/tree/heavy.h"][0]),
                ("refuses a header that uses what another one brought", first["muster/tree/unasked.h"][0]),
                ("hides LibTorch from Torch-free rooms", first["muster/base/free.h"][0]),
                ("accepts a good header", first["muster/tree/good.h"] == (False, True)),
                ("does not compile an unchanged header again", not second["muster/tree/good.h"]),
                ("compiles a changed header again", third["muster/tree/good.h"])]
    return sum(holds for _, holds in expected), [f"the check itself no longer {what}" for what, holds in expected if not holds]


def main(root, build, stamps, compiler, torch_free, mpi_includes, *torch_includes):
    mpi_flags = [flag for path in mpi_includes.split(",") if path for flag in ("-isystem", path)]
    torch_flags = ["-DUSE_DISTRIBUTED", "-DUSE_C10D_GLOO"] + [flag for path in torch_includes for flag in ("-isystem", path)]
    passed, problems = watched_failing(compiler)
    problem = program_compiles(pathlib.Path(root), pathlib.Path(stamps), compiler, torch_flags)
    passed, problems = passed + (not problem), problems + ([problem] if problem else [])
    results = [result for house in (pathlib.Path(root), pathlib.Path(root, "simdevice"))
               for result in check(house, pathlib.Path(build), pathlib.Path(stamps), compiler, set(torch_free.split(",")), torch_flags, mpi_flags)]
    include = pathlib.Path(root, "include")
    skipped = [] if mpi_flags else [path for path in sorted((include / "muster").rglob("*.h")) if needs_mpi(path.relative_to(include), include)]
    problems += [problem for _, problem, _ in results if problem] + ([] if results else ["there is no public header"])
    passed += sum(not problem for _, problem, _ in results)
    print("\n".join([f"FAILED {problem}" for problem in problems] + [f"skipped {path}: CMake found no MPI" for path in skipped]))
    print(f"compiled {sum(compiled for _, _, compiled in results)} of {len(results)} headers, the others were unchanged")
    print(f"{passed} passed, {len(problems)} failed, {len(skipped)} skipped")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
