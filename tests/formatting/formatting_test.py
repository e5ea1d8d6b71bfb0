#!/usr/bin/env python3
"""Is every source formatted as .clang-format says?

    formatting_test.py ROOT CLANG_FORMAT
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile

VERSION = "16.0.6"


def sources(root):
    known = subprocess.run(["git", "-C", root, "ls-files", "*.h", "*.cpp"], stdout=subprocess.PIPE, text=True)
    if known.returncode == 0:
        return [pathlib.Path(root, name) for name in known.stdout.splitlines()]
    return [path for folder in ("include", "src", "apps", "simdevice", "tests", "examples", "benchmarks", "docs")
            for path in pathlib.Path(root, folder).rglob("*") if path.suffix in (".h", ".cpp")]


def complaints(clang_format, files):
    """The first line of each complaint, which names the file and the place."""
    outcome = subprocess.run([clang_format, "--dry-run", "--Werror", *files], stderr=subprocess.PIPE, text=True)
    return [line for line in outcome.stderr.splitlines() if "error:" in line]


def notices_a_change(root, clang_format):
    """Each of these is a rule of ours: a source that breaks it is found."""
    bad = {"columns": "int " + ", ".join(f"number_{i}" for i in range(20)) + ";\n",
           "includes": "#include <torch/torch.h>\n#include <vector>\n",
           "indent": "int f() {\n    return 1;\n}\n"}
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, ".clang-format").write_text(pathlib.Path(root, ".clang-format").read_text())
        for name, text in {"good": "int f() { return 1; }\n", **bad}.items():
            path = pathlib.Path(folder, f"{name}.cpp")
            path.write_text(text)
            if bool(complaints(clang_format, [path])) != (name in bad):
                yield f"the check does not tell a good source from a bad one: {name}"


def main(root, clang_format):
    found = shutil.which(clang_format)
    version = subprocess.run([found, "--version"], stdout=subprocess.PIPE, text=True).stdout.strip() if found else "none"
    if VERSION not in version:
        print(f"skipped: clang-format {VERSION} is needed, since another version formats differently; found: {version}")
        return 77
    files = sources(root)
    failed = list(notices_a_change(root, clang_format)) + complaints(clang_format, files)
    failed += [] if files else ["no source was found"]
    print("\n".join(f"FAILED {problem}" for problem in failed))
    if failed:
        print("`make format` mends what is above")
    print(f"{max(0, len(files) + 1 - len(failed))} passed, {len(failed)} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
