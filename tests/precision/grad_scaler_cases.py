#!/usr/bin/env python3
"""Writes grad_scaler_cases.json: what PyTorch's GradScaler does, step by step. Run it where torch is installed.

"steps": one parameter of three elements under SGD(0.1), with given gradients of the unscaled loss.
"training": two ranks in one process under float16 autocast on a CPU; each step's losses, and the scaler after it. Inputs are
functions of step and rank, written down here and in the test; rank 1 overflows in some steps.
"""
import json
import pathlib

import torch

FACTORS = {"init_scale": 1024.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 3}


def steps():
    parameter = torch.nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))
    optimizer = torch.optim.SGD([parameter], 0.1)
    scaler = torch.amp.GradScaler("cpu", **FACTORS)
    bad = {2: float("inf"), 3: float("nan"), 10: float("-inf")}
    rows = []
    for step in range(16):
        gradient = [0.1 * (step + 1), -0.2, 0.05 * step]
        scale = scaler.scale(torch.ones(())).item()
        parameter.grad = torch.tensor(gradient) * scale
        if step in bad:
            parameter.grad[1] = bad[step]
        before = parameter.detach().clone()
        scaler.step(optimizer)
        scaler.update()
        rows.append({"gradient": gradient, "bad": {2: "inf", 3: "nan", 10: "-inf"}.get(step, ""), "parameter": parameter.tolist(),
                     "skipped": bool(torch.equal(before, parameter)), "scale": scaler.get_scale(), "growth_tracker": scaler._get_growth_tracker()})
    return rows


def inputs(step, rank):
    x = torch.cos(torch.arange(12, dtype=torch.float32) * 0.7 + step + 3 * rank).view(3, 4)
    if rank == 1 and step in (1, 4, 5):
        x = x * 60000.0
    return x, torch.sin(torch.arange(3, dtype=torch.float32) + step).view(3, 1)


def training():
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    with torch.no_grad():
        for i, parameter in enumerate(net.parameters()):
            parameter.copy_(torch.sin(torch.arange(parameter.numel(), dtype=torch.float32) * 1.3 + i).view_as(parameter) * 0.5)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", **FACTORS)
    rows = []
    for step in range(12):
        optimizer.zero_grad()
        losses, sums = [], None
        for rank in (0, 1):
            x, y = inputs(step, rank)
            with torch.autocast("cpu", dtype=torch.float16):
                out = net(x)
            loss = torch.nn.functional.mse_loss(out.float(), y)
            losses.append(loss.item() if torch.isfinite(loss) else None)
            gradients = torch.autograd.grad(scaler.scale(loss), list(net.parameters()))
            halves = [gradient * 0.5 for gradient in gradients]
            sums = halves if sums is None else [a + b for a, b in zip(sums, halves)]
        for parameter, gradient in zip(net.parameters(), sums):
            parameter.grad = gradient
        before = net[0].weight.detach().clone()
        scaler.step(optimizer)
        scaler.update()
        rows.append({"losses": losses, "skipped": bool(torch.equal(before, net[0].weight)), "scale": scaler.get_scale(),
                     "growth_tracker": scaler._get_growth_tracker()})
    return rows


if __name__ == "__main__":
    result = {"torch": torch.__version__, "factors": FACTORS, "steps": steps(), "training": training()}
    (pathlib.Path(__file__).parent / "grad_scaler_cases.json").write_text(json.dumps(result, indent=1) + "\n")
