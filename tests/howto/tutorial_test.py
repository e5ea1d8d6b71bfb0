"""docs/tutorial/first_trainer.cpp: it learns, goes on where it was stopped, and ends as if it had not been, on one rank and on two.

usage: tutorial_test.py PAGES MUSTER
"""
import pathlib
import re
import subprocess
import sys
import tempfile

program, muster = (pathlib.Path(word).resolve() for word in sys.argv[1:3])
passed = failed = 0


def expect(what, holds, seen=""):
    global passed, failed
    passed, failed = passed + bool(holds), failed + (not holds)
    if not holds:
        print(f"FAILED {what}: {seen}")


def run(folder, *words):
    """The lines of the epochs, and all that is printed."""
    pathlib.Path(folder).mkdir(exist_ok=True)
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=300, cwd=folder)
    expect(f"{words} ends well", done.returncode == 0, done.stdout + done.stderr)
    return re.findall(r"epoch (\d+): (loss .*)", done.stdout), done.stdout


with tempfile.TemporaryDirectory() as root:
    for ranks in (1, 2):
        start = [muster, "run", "--no-prefix", "--threads", "1", "--devices", ranks, program, "first_trainer"]
        apart, at_once = pathlib.Path(root, f"apart{ranks}"), pathlib.Path(root, f"at_once{ranks}")
        first, _ = run(apart, *start, 2)
        expect(f"{ranks} ranks: two epochs", [epoch for epoch, _ in first] == ["0", "1"], first)
        second, text = run(apart, *start, 4)
        expect(f"{ranks} ranks: goes on", [epoch for epoch, _ in second] == ["2", "3"], second)
        expect(f"{ranks} ranks: it learnt", "the center: 1, a corner: 0" in text, text)
        whole, _ = run(at_once, *start, 4)
        expect(f"{ranks} ranks: as if it had not been stopped", whole == first + second, (whole, first + second))
        for name in ("checkpoints/last.ckpt/manifest.json", "logs/version_0/metrics.csv"):
            expect(f"{ranks} ranks: {name}", (apart / "disc" / name).is_file(), list(apart.rglob("*")))

print(f"{passed} passed, {failed} failed, 0 skipped")
sys.exit(failed > 0)
