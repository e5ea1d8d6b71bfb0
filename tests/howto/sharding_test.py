"""docs/howto/sharding.cpp on two and three ranks: what muster consolidate makes of its checkpoint is what save_model wrote, byte for byte.

usage: sharding_test.py PAGES MUSTER
"""
import json
import pathlib
import subprocess
import sys
import tempfile

program, muster = sys.argv[1:3]
passed = failed = 0


def expect(what, holds, seen=""):
    global passed, failed
    passed, failed = passed + bool(holds), failed + (not holds)
    if not holds:
        print(f"FAILED {what}: {seen}")


def run(*words):
    outcome = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=120)
    expect(f"{words[1]} ends well", outcome.returncode == 0, outcome.stdout + outcome.stderr)
    return outcome.stdout


def tensors(path):
    """The form and bytes of each tensor of a safetensors file."""
    content = pathlib.Path(path).read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    return {name: (entry["dtype"], entry["shape"], content[begin + entry["data_offsets"][0]:begin + entry["data_offsets"][1]])
            for name, entry in header.items() if name != "__metadata__"}


with tempfile.TemporaryDirectory() as root:
    for ranks in (2, 3):
        folder = pathlib.Path(root, str(ranks))
        text = run(muster, "run", "--no-prefix", "--devices", ranks, program, "sharding", folder)
        expect(f"{ranks} ranks: units are reported", "blocks.0" in text and "head" in text, text)
        run(muster, "consolidate", folder / "state", "--output-file", folder / "one.safetensors")
        whole, written = tensors(folder / "one.safetensors"), list((folder / "model").glob("*.safetensors"))
        expect(f"{ranks} ranks: one file of weights", len(written) == 1, written)
        expected = tensors(written[0])
        expect(f"{ranks} ranks: names", whole.keys() == expected.keys() and len(whole) == 21, whole.keys())
        expect(f"{ranks} ranks: bytes", whole == expected, [name for name in whole if whole[name] != expected.get(name)])

print(f"{passed} passed, {failed} failed, 0 skipped")
sys.exit(failed > 0)
