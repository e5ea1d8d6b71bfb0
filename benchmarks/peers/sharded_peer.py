"""Steps of PyTorch's replicated and sharded training at its best, one process per rank. Arguments: fully_shard, ZeroRedundancyOptimizer or
DistributedDataParallel; a model. A case is a measure and a set-up: "memory..." gives the peak of a rank's memory in MiB, any other the
milliseconds of a step; a last word "large" or "prefetch" chooses the set-up (see prepare), each with a model of its own."""
import functools
import sys
import time

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from memory import MIB, reset_peak, status_bytes
from models import model_and_input
from protocol import serve

kind, name = sys.argv[1:3]
steps, warm_up = {"gpt-9m": (2, 2), "wide-mlp": (4, 3), "deep-mlp": (2, 2)}[name]
distributed.init_process_group("gloo")
mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
before = status_bytes("VmRSS")
settings = {"lr": 1e-5, "fused": True}


def cut(model, prefetch):
    """One unit per block or layer; `prefetch` asks for the next unit's values before this one computes."""
    units = [part for part in (model.blocks if name == "gpt-9m" else model.layers) if any(True for _ in part.parameters())]
    for unit in units:
        fully_shard(unit, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for one, following in zip(units, units[1:]) if prefetch else ():
        one.set_modules_to_forward_prefetch([following])
        following.set_modules_to_backward_prefetch([one])


def prepare(setup):
    model, batch = model_and_input(name, distributed.get_rank())
    if kind == "fully_shard":
        cut(model, setup == "prefetch")
        return model, torch.optim.AdamW(model.parameters(), **settings), batch
    model = DistributedDataParallel(model, gradient_as_bucket_view=True, static_graph=True, bucket_cap_mb=100 if setup == "large" else 25)
    if kind == "ZeroRedundancyOptimizer":
        return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, parameters_as_bucket_view=True, **settings), batch
    return model, torch.optim.AdamW(model.parameters(), **settings), batch


@functools.lru_cache(None)
def stepper(setup):
    model, optimizer, batch = prepare(setup)

    def step():
        optimizer.zero_grad()
        loss = model(batch)
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(warm_up):
        step()
    return step


def measure(case):
    step = stepper(case.split()[-1])
    distributed.barrier()
    reset_peak()
    start = time.perf_counter()
    for _ in range(steps):
        loss = step()
    milliseconds = (time.perf_counter() - start) / steps * 1e3
    value = (status_bytes("VmHWM") - before) / MIB if case.startswith("memory") else milliseconds
    return value, float(loss.detach())


serve(measure)
distributed.destroy_process_group()
