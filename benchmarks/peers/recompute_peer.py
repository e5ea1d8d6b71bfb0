"""Steps of a GPT whose blocks run again in backward: torch.utils.checkpoint, non-reentrant, per block. Arguments: "alone" or fully_shard; a
model. A case is a measure and, last, "rng" (the generators' states are kept, as checkpoint does unless told otherwise) or "no-rng", each
with a model of its own."""
import functools
import resource
import sys
import time

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

from memory import MIB, reset_peak, status_bytes
from models import GPT, GPT_512, GPT_9M, make_text
from protocol import serve

STEPS, WARM_UP = 2, 2
ALLOWED = 512 * MIB   # bytes that the steps of "batch" may take beside the model

kind, name = sys.argv[1:3]
shape = {"gpt-9m": GPT_9M, "gpt-512": GPT_512}[name]
rank = 0
if kind == "fully_shard":
    distributed.init_process_group("gloo")
    mesh, rank = init_device_mesh("cpu", (distributed.get_world_size(),)), distributed.get_rank()
before = status_bytes("VmRSS")


class Recomputed(torch.nn.Module):
    def __init__(self, block, rng):
        super().__init__()
        self.block, self.rng = block, rng

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=False, preserve_rng_state=self.rng)


@functools.lru_cache(None)
def stepper(kept, rng):
    torch.manual_seed(0)
    model = GPT(shape)
    if not kept:
        model.blocks = torch.nn.ModuleList(Recomputed(block, rng) for block in model.blocks)
    if kind == "fully_shard":
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    torch.manual_seed(100 + rank)
    batch = make_text(shape, 4)

    def step(batch=batch):
        optimizer.zero_grad()
        loss = model(batch)
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(WARM_UP):
        step()
    return step


def largest_batch(step):
    def takes(samples):
        try:
            step(make_text(shape, samples))
            return True
        except (RuntimeError, MemoryError):
            return False

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (int(status_bytes("VmData") + ALLOWED), hard))
    fits, fails = 4, 8
    while takes(fails):
        fits, fails = fails, 2 * fails
    while fails - fits > 1:
        middle = (fits + fails) // 2
        fits, fails = (middle, fails) if takes(middle) else (fits, middle)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    return fits


def measure(case):
    words = case.split()
    step = stepper(words[0] == "kept", words[-1] != "no-rng")
    if kind == "fully_shard":
        distributed.barrier()
    reset_peak()
    start = time.perf_counter()
    for _ in range(STEPS):
        loss = step()
    milliseconds = (time.perf_counter() - start) / STEPS * 1e3
    if words[0] == "batch":
        return largest_batch(step), float(loss.detach())
    value = (status_bytes("VmHWM") - before) / MIB if words[0] == "memory" else milliseconds
    return value, float(loss.detach())


serve(measure)
