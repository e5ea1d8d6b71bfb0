#!/usr/bin/env python3
"""Installs the build into a fresh folder and builds users' projects against it: by find_package, add_subdirectory and FetchContent, static and shared.

    install_test.py ROOT BUILD COMPILER [CMAKE_CXX_FLAGS]

With MUSTER_TEST_FULL it also builds all of Muster again within projects, one of them as shared libraries.
"""
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}


class Failed(Exception):
    pass


class Skipped(Exception):
    pass


def run(*command, **options):
    outcome = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if outcome.returncode:
        raise Failed(f"{' '.join(map(str, command))}: exit code {outcome.returncode}\n{outcome.stdout}")
    return outcome.stdout


def refusal(*command):
    """What a command says that must fail."""
    outcome = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if not outcome.returncode:
        raise Failed(f"{' '.join(map(str, command))} was expected to fail\n{outcome.stdout}")
    return " ".join(outcome.stdout.split())  # CMake breaks lines


def expect(text, wanted):
    if text.strip() != wanted:
        raise Failed(f"it printed {text.strip()!r}, expected {wanted!r}")


def expect_words(text, words):
    for word in words:
        if word not in text:
            raise Failed(f"{word!r} is not in {text!r}")


def libraries_of(program):
    """The names of the libraries that it loads. What ldd prints beside them, addresses too, may hold any letters."""
    return [line.split()[0] for line in run("ldd", program).splitlines()]


def expect_no_torch(program):
    torch = [name for name in libraries_of(program) if "torch" in name or "c10" in name]
    if torch:
        raise Failed(f"{program} loads LibTorch: {', '.join(torch)}")


def launch_ran(folder):
    expect(run(folder / "launch"), "world 1, rank 1 of 2, refused by MU")
    expect_no_torch(folder / "launch")


def learnt(program, folder):
    losses = [float(loss) for loss in re.findall(r"epoch \d: loss ([0-9.]+)", run(program, cwd=folder, env=ONE_THREAD))]
    if len(losses) != 5 or losses[-1] >= 0.5 or not list((folder / "out").glob("*.safetensors")):
        raise Failed(f"the new project's program does not learn, or leaves no weights: {losses}")


class Suite:
    def __init__(self, root, build, compiler, flags, scratch):
        self.root, self.build, self.scratch = pathlib.Path(root), pathlib.Path(build), scratch
        self.here = self.root / "tests" / "install"
        self.prefix, self.shared = scratch / "prefix", scratch / "shared"
        self.compiler, self.flags = compiler, flags
        self.torch = re.search(r"^LibTorch_INCLUDE_DIR:PATH=(.*)/include$", (self.build / "CMakeCache.txt").read_text(), re.MULTILINE)[1]

    def configuring(self, project, folder, *arguments):
        return ["cmake", "-S", project, "-B", folder, "-G", "Ninja", f"-DCMAKE_CXX_COMPILER={self.compiler}", f"-DCMAKE_CXX_FLAGS={self.flags}",
                *arguments]

    def build_project(self, project, folder, target, *arguments):
        run(*self.configuring(project, folder, "-DCMAKE_BUILD_TYPE=Debug", *arguments))
        run("cmake", "--build", folder, "--target", target)

    def by_prefix(self, prefix=None):
        return f"-DCMAKE_PREFIX_PATH={prefix or self.prefix}"

    def precompiled(self):
        """Settings with which a program of a user starts from the tests' precompiled header, where the compiler accepts it."""
        entries = json.loads((self.build / "compile_commands.json").read_text())
        words = shlex.split(next((entry["command"] for entry in entries if "/howto_pages.dir/" in entry["command"]), ""))
        if "clang" in self.compiler or "-include" not in words:
            return []
        kept = [word for word in words[1:] if re.match(r"-(O|f|DNDEBUG)", word)] + ["-include", words[words.index("-include") + 1]]
        return ["-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_EXTENSIONS=OFF", f"-DCMAKE_CXX_FLAGS_RELEASE={' '.join(kept)}"]

    def install(self):
        run("cmake", "--install", self.build, "--prefix", self.prefix)
        run("cmake", "--install", self.build, "--prefix", self.shared, "--component", "shared")
        for prefix in (self.prefix, self.shared):
            if not list((prefix / "include" / "muster").glob("*.h")):
                raise Failed(f"no header was installed into {prefix}")
            archives = sorted(path.name for path in prefix.rglob("*.a"))
            if archives != (["libmuster.a", "libmuster_fork_before_main.a", "libmuster_launch.a"] if prefix == self.prefix else ["libmuster_fork_before_main.a"]):
                raise Failed(f"into {prefix} were installed {archives}")
            exported = set(re.findall(r"add_library\((muster::\w+)", "".join(path.read_text() for path in prefix.rglob("muster*Targets.cmake"))))
            if exported != {"muster::muster", "muster::launch", "muster::testing", "muster::sim", "muster::fork_before_main"}:
                raise Failed(f"a project that finds Muster in {prefix} gets the targets {sorted(exported)}")
            if (self.build / "lib" / "libmuster_mpi.so").exists() and not list(prefix.rglob("libmuster_mpi.so")):
                raise Failed(f"libmuster_mpi.so was not installed into {prefix}")

    def command_line(self):
        if "0.1" not in run(self.prefix / "bin" / "muster", "--version"):
            raise Failed("the installed muster does not tell its version")

    def launch(self):
        self.build_project(self.here / "launch", self.scratch / "launch", "launch", self.by_prefix())
        launch_ran(self.scratch / "launch")

    def whole(self):
        self.build_project(self.here / "whole", self.scratch / "whole", "whole", self.by_prefix(), *self.precompiled())
        expect(run(self.scratch / "whole" / "whole", env=ONE_THREAD), "processes 1, loss fell: yes")

    def shared_libraries(self):
        """Their names, what they need and what they export; everything is found beside them."""
        run(sys.executable, self.root / "tools" / "exported_names.py", "--check")
        folder = next(self.shared.rglob("libmuster.so")).parent
        every = set()
        for name in ("muster", "muster_launch"):
            lines = [line.split() for line in run("nm", "--dynamic", "--defined-only", folder / f"lib{name}.so").splitlines()]
            symbols = {words[-1].split("@")[0] for words in lines} - {"MUSTER", "MUSTER_PRIVATE"}
            # GNU ld keeps instances of the standard library's templates that its shared library exports, too.
            alien = [symbol for symbol in symbols if "6muster" not in symbol and not re.match(r"_ZN?K?S[tsaiod]", symbol)]
            if alien or len(symbols) < 20:
                raise Failed(f"lib{name} exports {len(symbols)} symbols, of which these are not of namespace muster: {alien[:5]}")
            private = [symbol for symbol in symbols if re.match(r"_ZNK?6muster(8parallel7Reducer|8launcher10Supervisor)[0-9CD]", symbol)]
            if private:
                raise Failed(f"lib{name} exports {private[0]}, which is of a class that no installed header has")
            every |= symbols
            expect_words(run("readelf", "-d", folder / f"lib{name}.so"), [f"soname: [lib{name}.so.0.1]"])
        expect_no_torch(folder / "libmuster_launch.so")
        # What the pages' programs call, the shared libraries export.
        objects = list((self.build / "tests" / "howto" / "CMakeFiles" / "howto_pages.dir").rglob("*.o"))
        called = {line.split()[-1] for line in run("nm", "--undefined-only", *objects).splitlines() if "6muster" in line}
        if len(called) < 100 or called - every:
            raise Failed(f"of {len(called)} functions of ours that the pages' programs call, the shared libraries lack {sorted(called - every)[:5]}")
        self.build_project(self.here / "launch", self.scratch / "shared_launch", "launch", self.by_prefix(self.shared))
        launch_ran(self.scratch / "shared_launch")

    def blocks(self, language):
        page = (self.root / "docs" / "howto" / "project.md").read_text()
        return re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)

    def new_project(self):
        """What `muster new` writes trains with the shared libraries."""
        muster, folder = self.prefix / "bin" / "muster", self.scratch / "fresh"
        expect_words(run(muster, "new", folder), [f" -DCMAKE_PREFIX_PATH={self.prefix}\n"])
        expect_words((folder / "main.cpp").read_text(), ["#include <torch/torch.h>\n"])  # a precompiled header would hide that it lacks
        self.build_project(folder, folder / "build", "train", self.by_prefix(self.shared), *self.precompiled())
        expect_words(" ".join(libraries_of(folder / "build" / "train")), ["libmuster.so.0.1", "libmuster_launch.so.0.1"])
        learnt(folder / "build" / "train", folder)

    def beside_torch(self):
        """The page's projects with find_package(Torch), before and after Muster: both take the LibTorch that the first found, here by another path."""
        if pathlib.Path(self.torch, "lib", "libtorch_cuda.so").exists():
            raise Skipped("find_package(Torch) of a CUDA build needs a CUDA toolkit")
        blocks = [block for block in self.blocks("cmake") if "find_package(Torch" in block]
        if len(blocks) != 2:
            raise Failed(f"docs/howto/project.md has {len(blocks)} projects with find_package(Torch), not two")
        other = self.scratch / "other_path"
        other.symlink_to(self.torch)
        for index, block in enumerate(blocks):
            project = self.scratch / f"torch{index}"
            project.mkdir()
            (project / "CMakeLists.txt").write_text(block + 'message(STATUS "one LibTorch: ${Torch_DIR} ${LibTorch_ROOT_DIR}")\n')
            shutil.copy(self.root / "docs" / "howto" / "project.cpp", project / "main.cpp")
            place = f"-DTorch_DIR={other}/share/cmake/Torch" if index == 0 else f"-DLibTorch_ROOT={other}"
            said = run(*self.configuring(project, project / "build", self.by_prefix(), place))
            expect_words(said, [f"one LibTorch: {other}/share/cmake/Torch {other}\n"])

    def fetched(self):
        """The page's project by FetchContent; with BUILD_SHARED_LIBS, Muster is two libraries, and its command line stays out."""
        project = self.scratch / "fetched"
        project.mkdir()
        (project / "CMakeLists.txt").write_text(self.blocks("cmake")[0] + "if(TARGET muster_cli OR TARGET muster_probe OR TARGET test_base)\n"
                                                '  message(FATAL_ERROR "the tests and the command line of a subproject must stay out")\nendif()\n')
        shutil.copy(self.root / "docs" / "howto" / "project.cpp", project / "main.cpp")
        run(*self.configuring(project, project / "build", f"-DMUSTER_SOURCE={self.root}", f"-DLibTorch_ROOT={self.torch}", "-DBUILD_SHARED_LIBS=ON"))
        targets = run("cmake", "--build", project / "build", "--target", "help")
        expect_words(targets, ["libmuster.so:", "libmuster_launch.so:"])
        expect_words((project / "build" / "CMakeCache.txt").read_text(), ["MUSTER_JOIN_SOURCES:BOOL=ON\n"])
        if os.environ.get("MUSTER_TEST_FULL"):
            run("cmake", "--build", project / "build", "--target", "train")
            learnt(project / "build" / "train", project)

    def unknown_component(self):
        project = self.scratch / "unknown"
        project.mkdir()
        (project / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.25)\nproject(unknown LANGUAGES CXX)\n"
                                                "find_package(muster REQUIRED COMPONENTS launch banjo)\n")
        expect_words(refusal(*self.configuring(project, project / "build", self.by_prefix())), ["no component 'banjo'"])

    def other_libtorch(self):
        """A LibTorch of another minor version is refused while the project is configured, whichever libraries were installed."""
        torch = self.scratch / "torch"
        version = torch / "include" / "torch" / "headeronly" / "version.h"
        version.parent.mkdir(parents=True)
        version.write_text("#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 10\n#define TORCH_VERSION_PATCH 7\n")
        for name, prefix in (("other_static", self.prefix), ("other_shared", self.shared)):
            said = refusal(*self.configuring(self.here / "whole", self.scratch / name, self.by_prefix(prefix), f"-DLibTorch_ROOT={torch}"))
            expect_words(said, ["this Muster was built with LibTorch", "has 2.10.7"])

    def cuda_headers(self):
        """Where CUDA's headers are not all found, CMake names those packages, of the version of torch's CUDA."""
        for cuda, lacks, words in (("13.2", "CRT", "by pip install 'nvidia-cuda-crt==13.2.*' beside torch"),
                                   ("13.0", "CCCL", "by pip install 'nvidia-cuda-cccl==13.0.*' beside torch"),
                                   (None, "CRT", "by pip install 'nvidia-cuda-crt' beside torch")):
            torch = self.scratch / f"cuda{cuda}" / "torch"
            torch.mkdir(parents=True)
            if cuda:
                (torch / "version.py").write_text(f"__all__ = ['cuda']\ncuda: Optional[str] = '{cuda}'\nhip: Optional[str] = None\n")
            given = [f"-DMUSTER_{name}_INCLUDE={torch}" for name in ("CUDA", "CUDA_CRT", "CUDA_CCCL", "NCCL") if not name.endswith(lacks)]
            said = run("cmake", "-DLibTorch_CUDA=ON", f"-DLibTorch_ROOT_DIR={torch}",
                       "-DCMAKE_IGNORE_PATH=/usr/local/cuda/include;/usr/local/cuda/include/cccl", *given,
                       "-P", self.root / "cmake" / "MusterNccl.cmake", env={**os.environ, "CUDA_HOME": ""})
            expect_words(" ".join(said.split()), [f"not found: MUSTER_CUDA_{lacks}_INCLUDE.", words])

    def cuda_beside_constraints(self):
        """`make cuda` installs its LibTorch though a file of pip's constrains torch, which only a variable that is not empty replaces."""
        tools, binaries = self.scratch / "cuda" / "tools", self.scratch / "cuda" / ".venv-cuda" / "bin"
        tools.mkdir(parents=True)
        binaries.mkdir(parents=True)
        shutil.copy(self.root / "tools" / "cuda.sh", tools)
        pip = binaries / "python"
        pip.write_text('#!/bin/sh\n[ -n "$PIP_CONSTRAINT" ] && mkdir -p "${0%/bin/python}/lib/python3/site-packages/torch"\n')
        pip.chmod(0o755)
        said = subprocess.run([tools / "cuda.sh"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env={name: value for name, value in os.environ.items() if name != "PIP_CONSTRAINT"}).stdout
        expect_words(said, ["trying without pip's constraints", "pip brought a LibTorch without CUDA"])

    def passed_over(self):
        """A LibTorch of CMAKE_PREFIX_PATH that is not taken is named: one that is too old, and one after another."""
        project, old, second = (self.scratch / name for name in ("passed_over", "old", "second"))
        project.mkdir()
        (project / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.25)\nproject(passed_over LANGUAGES CXX)\nfind_package(LibTorch REQUIRED)\n")
        for folder, headers in ((old, ["torch/csrc/api/include/torch"]), (second, ["torch/csrc/api/include/torch", "torch/headeronly"])):
            for header in headers:
                (folder / "include" / header).mkdir(parents=True)
                (folder / "include" / header / "version.h").touch()
        said = run(*self.configuring(project, project / "build", f"-DCMAKE_MODULE_PATH={self.root}/cmake", f"-DCMAKE_PREFIX_PATH={old};{self.torch};{second}"))
        expect_words(" ".join(said.split()), [f"LibTorch in {folder}, which CMAKE_PREFIX_PATH names, is not taken, but that in" for folder in (old, second)] +
                     ["it is older than LibTorch 2.11", f"pass -DLibTorch_INCLUDE_DIR={second}/include"])
        if said.count("is not taken") != 2:
            raise Failed(f"the LibTorch that is taken is named as well:\n{said}")

    def subdirectory(self):
        """Muster as a part of a project, built with the project's settings: one room and the project's own source; all of it in the full tests."""
        folder, full = self.scratch / "subdirectory", bool(os.environ.get("MUSTER_TEST_FULL"))
        for target in ("launch",) if full else ("muster_base", f"{self.here}/launch/main.cpp^"):  # ninja's name for what comes of a source
            self.build_project(self.here / "subdirectory", folder, target, f"-DMUSTER_SOURCE={self.root}", "-DMUSTER_PRECOMPILE=OFF",
                               f"-DLibTorch_ROOT={self.torch}", "-DMUSTER_INSTALL=ON")
        expect_words((folder / "muster" / "cmake_install.cmake").read_text(), ["/lib/libmuster.a", "/lib/libmuster_launch.a"])
        if full:
            launch_ran(folder)
            run("cmake", "--build", folder)
            run("cmake", "--install", folder, "--prefix", self.scratch / "superproject")
            self.build_project(self.here / "launch", self.scratch / "of_superproject", "launch", self.by_prefix(self.scratch / "superproject"))
            launch_ran(self.scratch / "of_superproject")


def outcome(case):
    try:
        case()
        return None
    except Skipped as reason:
        return f"skipped {case.__name__}: {reason}"
    except (Failed, OSError) as failure:
        return f"FAILED {case.__name__}: {failure}"


def main(root, build, compiler, flags=""):
    scratch = pathlib.Path(tempfile.mkdtemp())
    suite = Suite(root, build, compiler, flags, scratch)
    cases = (suite.new_project, suite.whole, suite.subdirectory, suite.fetched, suite.beside_torch, suite.shared_libraries, suite.launch,
             suite.command_line, suite.unknown_component, suite.other_libtorch, suite.cuda_headers, suite.cuda_beside_constraints, suite.passed_over)
    said = [outcome(suite.install)]
    if said[0] is None:
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            said += pool.map(outcome, cases)
    shutil.rmtree(scratch)
    lines = [line for line in said if line]
    failed = sum(line.startswith("FAILED") for line in lines)
    print("\n".join(lines))
    print(f"{said.count(None)} passed, {failed} failed, {len(lines) - failed} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
