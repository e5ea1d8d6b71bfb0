"""Averages a module's weights by Python's AveragedModel and compares every value with that of a C++ program, to 1e-12.

usage: averaging_parity.py PROGRAM
"""
import subprocess
import sys

try:
    import torch
    from torch import nn
    from torch.optim import swa_utils
except ImportError as error:
    print(f"averaging_parity: skipped: {error}")
    print("0 passed, 0 failed, 1 skipped")
    sys.exit(77)

STEPS, TOLERANCE = 25, 1e-12
CASES = {
    "swa": lambda net: swa_utils.AveragedModel(net),
    "ema": lambda net: swa_utils.AveragedModel(net, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9)),
    "swa buffers": lambda net: swa_utils.AveragedModel(net, use_buffers=True),
    "ema buffers": lambda net: swa_utils.AveragedModel(net, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.99), use_buffers=True),
}


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 4)
        self.norm = nn.BatchNorm1d(4)


def by_name(net):
    return [tensor for _, tensor in sorted([*net.named_parameters(), *net.named_buffers()])]


def set_values(net, n):
    with torch.no_grad():
        for k, tensor in enumerate(by_name(net)):
            if tensor.is_floating_point():
                index = torch.arange(tensor.numel(), dtype=torch.float64).view(tensor.shape)
                tensor.copy_(torch.sin(index * 0.7 + (0.3 * n + k)))
            else:
                tensor.fill_(3 * n + 1)


def expected(name):
    net = Normed().double()
    average, values = CASES[name](net), []
    for n in range(STEPS):
        set_values(net, n)
        average.update_parameters(net)
        for tensor in by_name(average.module):
            values += tensor.double().flatten().tolist()
    return values


def main():
    lines = subprocess.run([sys.argv[1]], capture_output=True, text=True, check=True).stdout.splitlines()
    found = dict(zip(lines[::2], lines[1::2]))
    failed = [f"{name} is in one list only" for name in found.keys() ^ CASES.keys()]
    passed = 0
    for name in found.keys() & CASES.keys():
        got, want = [float.fromhex(word) for word in found[name].split()], expected(name)
        worst = max((abs(a - b) for a, b in zip(got, want)), default=1.0)
        if len(got) == len(want) and worst <= TOLERANCE:
            passed += 1
        else:
            failed.append(f"{name}: {len(got)} values, expected {len(want)}; largest difference {worst}")
    print("\n".join(f"FAILED {problem}" for problem in failed))
    print(f"{passed} passed, {len(failed)} failed, 0 skipped")
    sys.exit(1 if failed else 0)


main()
