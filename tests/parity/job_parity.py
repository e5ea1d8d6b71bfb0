"""save_state's folders against Python: a job begun here goes on there, and one begun there goes on here, to the same losses.

usage: job_parity.py PROGRAM MUSTER
"""
import pathlib
import subprocess
import sys
import tempfile

try:
    import torch
    from safetensors.torch import load_file
    from traded_job import Net, resumed, train
except ImportError as error:
    print(f"job_parity: skipped: {error}")
    print("0 passed, 0 failed, 1 skipped")
    sys.exit(77)

TOLERANCE = 1e-6
program, muster = sys.argv[1:3]
failed = passed = 0


def run(*words, code=0):
    outcome = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=120)
    assert (outcome.returncode == 0) == (code == 0), f"{words}: {outcome.stdout} {outcome.stderr}"
    return outcome.stdout if code == 0 else outcome.stdout + outcome.stderr


def expect(what, holds, seen=""):
    global failed, passed
    passed, failed = passed + bool(holds), failed + (not holds)
    if not holds:
        print(f"FAILED {what}: {seen}")


def close(one, other):
    return len(one) == len(other) == 3 and all(abs(a - b) <= TOLERANCE for a, b in zip(one, other))


def from_muster(root, ranks, strategy):
    folder, what = root / f"{strategy}{ranks}", f"{strategy} on {ranks}"
    ours = [float(line) for line in run(muster, "run", "--no-prefix", "--devices", ranks, "--strategy", strategy, program, "save", folder).split()]
    run(muster, "convert", folder, root / f"{what}.pt")
    net, optimizer = resumed(root / f"{what}.pt")
    run(muster, "consolidate", folder, "--output-file", root / f"{what}.safetensors")
    weights = load_file(root / f"{what}.safetensors")
    expect(f"{what}: weights", weights.keys() == net.state_dict().keys() and all(torch.equal(weights[k], v) for k, v in net.state_dict().items()))
    theirs = train(net, optimizer, 5, 3)
    expect(f"{what}: goes on in Python", close(ours, theirs), (ours, theirs))
    return folder


def from_python(root):
    torch.manual_seed(9)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.1)
    train(net, optimizer, 0, 5)
    torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, root / "python.pt")
    theirs = train(net, optimizer, 5, 3)
    for ranks in (1, 2):
        ours = [float(line) for line in run(muster, "run", "--no-prefix", "--devices", ranks, program, "resume", root / "python.pt").split()]
        expect(f"goes on from Python on {ranks}", close(ours, theirs), (ours, theirs))


def damaged(root, folder):
    file = folder / "rank-00001.safetensors"
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)
    told = run(muster, "convert", folder, root / "damaged.pt", code=1)
    expect("a flipped bit is named", "MU213" in told and file.name in told and not (root / "damaged.pt").exists(), told)


with tempfile.TemporaryDirectory() as name:
    root = pathlib.Path(name)
    for ranks, strategy in ((1, "auto"), (2, "ddp"), (2, "fsdp"), (3, "fsdp")):
        folder = from_muster(root, ranks, strategy)
    damaged(root, folder)
    from_python(root)
print(f"{passed} passed, {failed} failed, 0 skipped")
sys.exit(failed > 0)
