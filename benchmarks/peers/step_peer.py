"""Steps of a small MLP in Python: raw, Fabric, Accelerate; in-memory batches, fused optimizers."""
import time
import warnings

import torch
from torch.nn import functional as F

from mlp import make_batches, make_mlp
from protocol import serve

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
STEPS, WARM_UP = 1000, 100
BATCHES = make_batches(STEPS)


def parts(optimizer):
    model = make_mlp()
    if optimizer == "sgd":
        return model, torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)


def loop(model, optimizer, backward, batches):
    for x, y in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        backward(loss)
        optimizer.step()
    return loss


def prepared(kind, model, optimizer):
    if kind == "raw":
        return model, optimizer, torch.Tensor.backward
    if kind == "fabric":
        from lightning.fabric import Fabric
        fabric = Fabric(accelerator="cpu", devices=1)
        fabric.launch()
        return *fabric.setup(model, optimizer), fabric.backward
    from accelerate import Accelerator
    accelerator = Accelerator(cpu=True)
    return *accelerator.prepare(model, optimizer), accelerator.backward


def measure(case):
    optimizer, kind = case.split()
    model, optimizer, backward = prepared(kind, *parts(optimizer))
    loop(model, optimizer, backward, BATCHES[:WARM_UP])
    start = time.perf_counter()
    loss = loop(model, optimizer, backward, BATCHES)
    return (time.perf_counter() - start) / STEPS * 1e6, float(loss)


serve(measure)
