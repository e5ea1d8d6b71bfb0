"""Steps Python's schedulers 300 times and compares every rate and momentum with those of a C++ program, to 1e-12.

The program has the same cases by the same names (tests/optim/schedule_cases.h).

usage: schedules_parity.py PROGRAM
"""
import math
import subprocess
import sys
import warnings

try:
    import torch
    from torch.optim import lr_scheduler as s
except ImportError as error:
    print(f"schedules_parity: skipped: {error}")
    print("0 passed, 0 failed, 1 skipped")
    sys.exit(77)

STEPS, TOLERANCE = 300, 1e-12


def optimizer(kind):
    groups = [{"params": [torch.zeros(2, requires_grad=True)], "lr": lr} for lr in (0.1, 0.04)]
    return {"sgd": lambda: torch.optim.SGD(groups, momentum=0.9), "adam": lambda: torch.optim.Adam(groups),
            "adamw": lambda: torch.optim.AdamW(groups), "rmsprop": lambda: torch.optim.RMSprop(groups)}[kind]()


def values(o):
    return [x for g in o.param_groups for x in (g["lr"], g["betas"][0] if "betas" in g else g["momentum"])]


def warmup(o, warm, total=None, decay=None, end=0.0):
    """The factors of transformers' get_*_schedule_with_warmup."""
    def factor(n):
        if n < warm:
            return n / max(1, warm)
        part = (n - warm) / max(1, total - warm) if total else 0.0
        if decay == "linear":
            return end + (1 - end) * max(0.0, 1.0 - part)
        if decay == "cosine":
            return end + (1 - end) * (0.5 * (1.0 + math.cos(math.pi * 0.5 * 2.0 * min(1.0, part))))
        return 1.0
    return s.LambdaLR(o, factor)


def sequential(milestones, *makers):
    return lambda o: s.SequentialLR(o, [make(o) for make in makers], milestones)


def chained(*makers):
    return lambda o: s.ChainedScheduler([make(o) for make in makers])


def of(kind, **options):
    return lambda o: kind(o, **options)


CASES = {
    "lambda": ("sgd", of(s.LambdaLR, lr_lambda=lambda n: 0.95 ** n)),
    "lambda each": ("adam", of(s.LambdaLR, lr_lambda=[lambda n: n // 30, lambda n: 1 / (1 + 0.1 * n)])),
    "multiplicative": ("sgd", of(s.MultiplicativeLR, lr_lambda=lambda n: 1.03 if n % 7 == 0 else 0.99)),
    "step": ("sgd", of(s.StepLR, step_size=30)),
    "step gamma": ("adamw", of(s.StepLR, step_size=7, gamma=0.97)),
    "multi step": ("sgd", of(s.MultiStepLR, milestones=[80, 30, 30, 200], gamma=0.3)),
    "constant": ("sgd", of(s.ConstantLR)),
    "constant long": ("sgd", of(s.ConstantLR, factor=0.7, total_iters=120)),
    "linear": ("adam", of(s.LinearLR)),
    "linear down": ("sgd", of(s.LinearLR, start_factor=1.0, end_factor=0.1, total_iters=250)),
    "exponential": ("sgd", of(s.ExponentialLR, gamma=0.98)),
    "polynomial": ("sgd", of(s.PolynomialLR, total_iters=222, power=1.7)),
    "polynomial short": ("sgd", of(s.PolynomialLR)),
    "cosine": ("sgd", of(s.CosineAnnealingLR, T_max=300)),
    "cosine waves": ("adam", of(s.CosineAnnealingLR, T_max=17, eta_min=0.001)),
    "restarts": ("sgd", of(s.CosineAnnealingWarmRestarts, T_0=23)),
    "restarts longer": ("sgd", of(s.CosineAnnealingWarmRestarts, T_0=10, T_mult=3, eta_min=0.002)),
    "warmup cosine": ("adamw", of(warmup, warm=25, total=280, decay="cosine")),
    "warmup linear": ("adamw", of(warmup, warm=25, total=280, decay="linear")),
    "warmup constant": ("adamw", of(warmup, warm=25)),
    "warmup cosine to a tenth": ("adamw", of(warmup, warm=0, total=280, decay="cosine", end=0.1)),
    "cyclic": ("sgd", of(s.CyclicLR, base_lr=0.01, max_lr=0.1, step_size_up=20)),
    "cyclic uneven": ("adam", of(s.CyclicLR, base_lr=[0.01, 0.02], max_lr=[0.1, 0.3], step_size_up=17, step_size_down=33,
                                 base_momentum=[0.7, 0.75], max_momentum=[0.9, 0.99])),
    "cyclic triangular2": ("rmsprop", of(s.CyclicLR, base_lr=0.001, max_lr=0.1, step_size_up=13, mode="triangular2")),
    "cyclic exp_range": ("adamw", of(s.CyclicLR, base_lr=0.001, max_lr=0.1, step_size_up=25, mode="exp_range", gamma=0.99)),
    "cyclic function": ("sgd", of(s.CyclicLR, base_lr=0.001, max_lr=0.1, step_size_up=9, scale_fn=lambda x: 1 / 1.1 ** x,
                                  cycle_momentum=False)),
    "cyclic function of iterations": ("sgd", of(s.CyclicLR, base_lr=0.001, max_lr=0.1, step_size_up=9,
                                                scale_fn=lambda x: 1 / (1 + 0.01 * x), scale_mode="iterations")),
    "one cycle": ("sgd", of(s.OneCycleLR, max_lr=0.2, total_steps=301)),
    "one cycle linear": ("adam", of(s.OneCycleLR, max_lr=[0.2, 0.4], epochs=7, steps_per_epoch=43, anneal_strategy="linear")),
    "one cycle three phases": ("adamw", of(s.OneCycleLR, max_lr=0.2, total_steps=301, pct_start=0.4, three_phase=True,
                                           div_factor=10, final_div_factor=100, base_momentum=[0.8, 0.7])),
    "one cycle without momentum": ("rmsprop", of(s.OneCycleLR, max_lr=0.2, total_steps=310, pct_start=0.0, cycle_momentum=False)),
    "sequential linear cosine": ("adamw", sequential([20], of(s.LinearLR, start_factor=0.1, total_iters=20),
                                                     of(s.CosineAnnealingLR, T_max=280))),
    "sequential three": ("sgd", sequential([30, 100], of(s.ConstantLR, factor=0.5, total_iters=10), of(s.ExponentialLR, gamma=0.99),
                                           of(s.StepLR, step_size=40, gamma=0.7))),
    "sequential others": ("sgd", sequential([40, 80, 120, 200], of(s.LambdaLR, lr_lambda=lambda n: 0.99 ** n),
                                            of(s.PolynomialLR, total_iters=40, power=2), of(s.MultiStepLR, milestones=[5, 9]),
                                            of(s.CosineAnnealingWarmRestarts, T_0=10, T_mult=2),
                                            of(s.MultiplicativeLR, lr_lambda=lambda n: 0.98))),
    "sequential at once": ("sgd", sequential([0], of(s.StepLR, step_size=3), of(s.ExponentialLR, gamma=0.9))),
    "sequential one cycle": ("adam", sequential([50], of(s.LinearLR, total_iters=50), of(s.OneCycleLR, max_lr=0.3, total_steps=260))),
    "chained": ("sgd", chained(of(s.ConstantLR, factor=0.1, total_iters=20), of(s.ExponentialLR, gamma=0.99),
                               of(s.MultiStepLR, milestones=[60, 61, 150], gamma=0.5))),
    "chained linear": ("adam", chained(of(s.LinearLR, total_iters=9), of(s.StepLR, step_size=11, gamma=0.9))),
    "chained cosine": ("sgd", chained(of(s.CosineAnnealingLR, T_max=100), of(s.ExponentialLR, gamma=0.999))),
    "chained sequential": ("sgd", chained(sequential([10], of(s.LinearLR, total_iters=10), of(s.ExponentialLR, gamma=0.999)),
                                          of(s.StepLR, step_size=100, gamma=0.5))),
    "plateau": ("sgd", of(s.ReduceLROnPlateau, patience=5)),
    "plateau cooldown": ("sgd", of(s.ReduceLROnPlateau, patience=3, cooldown=7, factor=0.5, min_lr=[0.01, 0.001], threshold=0.01)),
    "plateau max abs": ("sgd", of(s.ReduceLROnPlateau, mode="max", patience=4, factor=0.9, threshold=0.02, threshold_mode="abs")),
    "plateau min abs": ("sgd", of(s.ReduceLROnPlateau, patience=2, factor=0.7, threshold=0.001, threshold_mode="abs")),
    "plateau max rel": ("sgd", of(s.ReduceLROnPlateau, mode="max", patience=8, factor=0.9)),
}


def metric(step):
    return 1.0 / (1.0 + 0.05 * min(step, 60)) + 0.01 * (step * 37 % 11)


def expected(name):
    kind, make = CASES[name]
    o = optimizer(kind)
    scheduler = make(o)
    rows = [values(o)]
    for step in range(STEPS):
        scheduler.step(*([metric(step)] if name.startswith("plateau") else []))
        rows.append(values(o))
    return rows


def compare(name, line):
    flat = [float.fromhex(word) for word in line.split()]
    rows = [flat[i:i + 4] for i in range(0, len(flat), 4)]
    wanted = expected(name)
    if len(rows) != len(wanted):
        return f"{len(rows)} steps, expected {len(wanted)}"
    for step, (got, want) in enumerate(zip(rows, wanted)):
        if not all(abs(a - b) <= TOLERANCE for a, b in zip(got, want)):
            return f"step {step} set {got}, Python sets {want}"
    if max(row[0] for row in wanted) == min(row[0] for row in wanted):
        return "the rate never changes, so nothing was compared"
    return None


def main():
    warnings.simplefilter("ignore")
    lines = subprocess.run([sys.argv[1]], capture_output=True, text=True, check=True).stdout.splitlines()
    found = dict(zip(lines[::2], lines[1::2]))
    failed = [f"{name} is in one list only" for name in found.keys() ^ CASES.keys()]
    passed = 0
    for name in found.keys() & CASES.keys():
        problem = compare(name, found[name])
        passed += problem is None
        failed += [f"{name}: {problem}"] if problem else []
    print("\n".join(f"FAILED {problem}" for problem in failed))
    print(f"{passed} passed, {len(failed)} failed, 0 skipped")
    sys.exit(1 if failed else 0)


main()
