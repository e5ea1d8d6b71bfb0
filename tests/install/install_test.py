#!/usr/bin/env python3
"""Installs the build into a fresh folder and builds users' projects against it, and one with add_subdirectory.

    install_test.py ROOT BUILD COMPILER [CMAKE_CXX_FLAGS]
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile


class Failed(Exception):
    pass


def run(*command, **options):
    outcome = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if outcome.returncode:
        raise Failed(f"{' '.join(map(str, command))}: exit code {outcome.returncode}\n{outcome.stdout}")
    return outcome.stdout


def build_project(project, folder, compiler, flags, *arguments):
    run("cmake", "-S", project, "-B", folder, "-G", "Ninja", f"-DCMAKE_CXX_COMPILER={compiler}", f"-DCMAKE_CXX_FLAGS={flags}",
        "-DCMAKE_BUILD_TYPE=Debug", *arguments)
    run("cmake", "--build", folder, "--target", "launch" if project.name != "whole" else "whole")


def expect(text, wanted):
    if text.strip() != wanted:
        raise Failed(f"it printed {text.strip()!r}, expected {wanted!r}")


def libraries_of(program):
    """The names of the libraries that it loads. What ldd prints beside them, addresses too, may hold any letters."""
    return [line.split()[0] for line in run("ldd", program).splitlines()]


def launch_ran(folder):
    expect(run(folder / "launch"), "world 1, rank 1 of 2, refused by MU")
    torch = [name for name in libraries_of(folder / "launch") if "torch" in name or "c10" in name]
    if torch:
        raise Failed(f"a program of muster::launch loads LibTorch: {', '.join(torch)}")


def main(root, build, compiler, flags=""):
    here = pathlib.Path(root, "tests", "install")
    scratch = pathlib.Path(tempfile.mkdtemp())
    prefix = scratch / "prefix"
    installed = f"-DCMAKE_PREFIX_PATH={prefix}"

    def install():
        run("cmake", "--install", build, "--prefix", prefix)
        doors = list((prefix / "include" / "muster").glob("*.h"))
        if not doors:
            raise Failed("no header was installed")

    def command_line():
        if "0.1" not in run(prefix / "bin" / "muster", "--version"):
            raise Failed("the installed muster does not tell its version")

    def launch():
        build_project(here / "launch", scratch / "launch", compiler, flags, installed)
        launch_ran(scratch / "launch")

    def whole():
        build_project(here / "whole", scratch / "whole", compiler, flags, installed)
        expect(run(scratch / "whole" / "whole", env={**os.environ, "OMP_NUM_THREADS": "1"}), "processes 1, loss fell: yes")

    def expect_refusal(project, folder, words, *arguments):
        """Configuring the project fails, and what CMake prints, which breaks lines, has these words."""
        try:
            run("cmake", "-S", project, "-B", folder, "-G", "Ninja", f"-DCMAKE_CXX_COMPILER={compiler}", installed, *arguments)
        except Failed as failure:
            said = " ".join(str(failure).split())
            if not all(word in said for word in words):
                raise
        else:
            raise Failed(f"{project} was configured, which should say: {words}")

    def unknown_component():
        project = scratch / "unknown"
        project.mkdir()
        (project / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.25)\nproject(unknown LANGUAGES CXX)\n"
                                                "find_package(muster REQUIRED COMPONENTS launch banjo)\n")
        expect_refusal(project, project / "build", ["no component 'banjo'"])

    def other_libtorch():
        """A LibTorch of another minor version is refused while the project is configured."""
        torch = scratch / "torch"
        version = torch / "include" / "torch" / "headeronly" / "version.h"
        version.parent.mkdir(parents=True)
        version.write_text("#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 11\n#define TORCH_VERSION_PATCH 0\n")
        expect_refusal(here / "whole", scratch / "other", ["this Muster was built with LibTorch", "has 2.11.0"], f"-DLibTorch_ROOT={torch}")

    def subdirectory():
        build_project(here / "subdirectory", scratch / "subdirectory", compiler, flags, f"-DMUSTER_SOURCE={root}", "-DMUSTER_PRECOMPILE=OFF")
        launch_ran(scratch / "subdirectory")

    passed, problems = 0, []
    for case in (install, command_line, launch, whole, unknown_component, other_libtorch, subdirectory):
        try:
            case()
            passed += 1
        except (Failed, OSError) as failure:
            problems.append(f"FAILED {case.__name__}: {failure}")
    shutil.rmtree(scratch)
    print("\n".join(problems))
    print(f"{passed} passed, {len(problems)} failed, 0 skipped")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
