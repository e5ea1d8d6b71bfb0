"""Steps on a device in Python: raw, Fabric, Accelerate, fully_shard; batches on the device, AdamW with fused. Arguments and cases: gpu_step_bench.cpp."""
import contextlib
import ctypes
import sys
import time
import warnings

import torch
from torch import distributed
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import mlp
import models
from protocol import serve

warnings.filterwarnings("ignore")
DEVICE, TINY = sys.argv[1], sys.argv[2:] == ["tiny"]


class Mlp:
    rate, precision = 1e-3, "no"
    steps, warm_up = (4, 2) if TINY else (1000, 100)
    make = staticmethod(mlp.make_mlp)

    @staticmethod
    def batches():
        return [(x.to(DEVICE), y.to(DEVICE)) for x, y in mlp.make_batches(32)]

    @staticmethod
    def loss(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1])


class Gpt:
    rate, precision = 1e-4, "bf16"
    steps, warm_up = (2, 2) if TINY else (20, 5)
    shape = models.TINY_GPT if TINY else models.GPT_124M

    @staticmethod
    def make():
        torch.manual_seed(0)
        return models.GPT(Gpt.shape)

    @staticmethod
    def batches():
        torch.manual_seed(1)
        return [models.make_text(Gpt.shape, 2 if TINY else 8).to(DEVICE) for _ in range(4)]

    @staticmethod
    def loss(model, batch):
        return model(batch)


def adamw(task, model):
    return torch.optim.AdamW(model.parameters(), lr=task.rate, fused=True)


def raw(task):
    model = task.make().to(DEVICE)
    cast = (lambda: torch.autocast(DEVICE, torch.bfloat16)) if task.precision == "bf16" else contextlib.nullcontext

    def forward(batch):
        with cast():
            return task.loss(model, batch)
    return forward, adamw(task, model), torch.Tensor.backward


def accelerate(task):
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    AcceleratorState._reset_state(reset_partial_state=True)   # else a second precision in this process is refused
    accelerator = Accelerator(cpu=DEVICE == "cpu", mixed_precision=task.precision)
    model = task.make()
    model, optimizer = accelerator.prepare(model, adamw(task, model.to(DEVICE)))
    return lambda batch: task.loss(model, batch), optimizer, accelerator.backward


def fabric(task):
    from lightning.fabric import Fabric
    fabric = Fabric(accelerator=DEVICE, devices=1, precision={"no": "32-true", "bf16": "bf16-mixed"}[task.precision])
    fabric.launch()
    model = task.make()
    model, optimizer = fabric.setup(model, adamw(task, model.to(DEVICE)))
    return lambda batch: task.loss(model, batch), optimizer, fabric.backward


def fully_shard(task):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    if not distributed.is_initialized():
        distributed.init_process_group("nccl" if DEVICE == "cuda" else "gloo", store=distributed.HashStore(), rank=0, world_size=1)
    options = {"mesh": init_device_mesh(DEVICE, (1,)), "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}
    model = task.make().to(DEVICE)
    for block in model.blocks:
        fully_shard(block, **options)
    fully_shard(model, **options)
    return lambda batch: task.loss(model, batch), adamw(task, model), torch.Tensor.backward


class Recomputed(torch.nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=False)


class Recomputing:
    """A task whose model runs its blocks again in backward."""
    def __init__(self, task):
        self.task, self.precision, self.rate, self.loss = task, task.precision, task.rate, task.loss

    def make(self):
        model = self.task.make()
        model.blocks = torch.nn.ModuleList(Recomputed(block) for block in model.blocks)
        return model


def checkpointed(task):
    return raw(Recomputing(task))


WAYS = {"raw": raw, "accelerate": accelerate, "fabric": fabric, "fully_shard": fully_shard, "checkpoint": checkpointed}


def host_waits():
    return ctypes.CDLL(None).bench_host_waits()   # of host_waits.cpp


def measure(case):
    waits = case.startswith("waits ")
    model, way = case.removeprefix("waits ").split()
    task = {"mlp": Mlp, "gpt": Gpt}[model]
    batches = task.batches()
    forward, optimizer, backward = WAYS[way](task)
    for i in range(task.warm_up + task.steps):
        if i == task.warm_up:
            float(loss)
            before, start = host_waits() if waits else 0, time.perf_counter()
        optimizer.zero_grad()
        loss = forward(batches[i % len(batches)])
        backward(loss)
        optimizer.step()
    counted = host_waits() - before if waits else 0
    check = float(loss)
    return (counted if waits else (time.perf_counter() - start) * 1e6) / task.steps, check


serve(measure)
if distributed.is_initialized():
    distributed.destroy_process_group()
