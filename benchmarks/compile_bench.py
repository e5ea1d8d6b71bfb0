"""Seconds that a user's source takes to compile (-fsyntax-only): torch/torch.h with a header of Muster beside it, or alone, "none"."""
import json
import pathlib
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent / "peers"))
import subprocess  # noqa: E402

from protocol import serve  # noqa: E402

root = pathlib.Path(__file__).resolve().parents[1]
commands = json.loads(pathlib.Path(sys.argv[1], "compile_commands.json").read_text())
words = next(entry["command"].split() for entry in commands if "/torch/include" in entry["command"])
torch = [flag for i, word in enumerate(words) if word == "-isystem" for flag in (word, words[i + 1])]
compiler = next(word for word in words if word.endswith(("c++", "g++", "clang++")))


def measure(case):
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "user.cpp")
        source.write_text("#include <torch/torch.h>\n" + (f"#include <muster/{case}>\n" if case != "none" else "") + "int main() {}\n")
        start = time.perf_counter()
        subprocess.run([compiler, "-std=c++20", "-fsyntax-only", "-DUSE_DISTRIBUTED", "-DUSE_C10D_GLOO", "-I", root / "include", *torch, source], check=True)
        return time.perf_counter() - start, 0.0


serve(measure)
