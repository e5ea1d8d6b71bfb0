"""docs/howto/python.cpp and the command line against Python: a job begins there, goes on here, and goes on there again, to the same losses.

usage: python_test.py PAGES MUSTER
"""
import json
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "parity"))

try:
    import torch
    from safetensors.torch import load_file
    from traded_job import Net, resumed, train
except ImportError as error:
    print(f"howto_python: skipped: {error}")
    print("0 passed, 0 failed, 1 skipped")
    sys.exit(77)

TOLERANCE = 1e-6


def run(*words):
    outcome = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=120)
    assert outcome.returncode == 0, f"{words}: {outcome.stderr}"
    return outcome.stdout


def close(found, wanted):
    assert len(found) == len(wanted) and max(abs(a - b) for a, b in zip(found, wanted)) <= TOLERANCE, f"{found}, not {wanted}"


def checks(program, muster, folder):
    torch.manual_seed(5)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    train(net, optimizer, 0, 4)
    torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": 4}, folder / "theirs.pt")
    theirs = train(net, optimizer, 4, 6)
    ours = [float(word) for word in run(program, "python", folder / "theirs.pt", folder / "ours.pt").split()]
    yield lambda: close(ours, theirs)
    yield lambda: close(train(*resumed(folder / "ours.pt"), 7, 3), ours[3:])

    def weights_alone():
        run(muster, "convert", folder / "ours.pt", folder / "model.safetensors", "--part", "model")
        found, wanted = load_file(folder / "model.safetensors"), torch.load(folder / "ours.pt", weights_only=True)["model"]
        assert found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in wanted)

    def shown():
        listing = json.loads(run(muster, "show", "--json", folder / "ours.pt"))
        names = [tensor["name"] for tensor in listing["tensors"]]
        assert "model/body.weight" in names and listing["kind"] == "torch file" and listing["values"]["step"] == "7", listing

    yield from (weights_alone, shown)


def main():
    program, muster = (str(pathlib.Path(word).resolve()) for word in sys.argv[1:3])
    passed = failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for check in checks(program, muster, pathlib.Path(folder)):
            try:
                check()
                passed += 1
            except Exception as error:
                print(f"FAILED {check.__name__}: {error}")
                failed += 1
    print(f"{passed} passed, {failed} failed, 0 skipped")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
