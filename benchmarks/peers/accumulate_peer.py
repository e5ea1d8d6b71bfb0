"""Windows of four micro-batches under PyTorch's DDP at its best: no_sync for all but the last, bucket views, fused AdamW."""
import contextlib
import sys
import time

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from models import model_and_input
from protocol import serve

MICRO_BATCHES = 4

name = sys.argv[1]
windows, warm_up = (1, 1) if name == "gpt-9m" else (4, 2)
distributed.init_process_group("gloo")
model, batch = model_and_input(name, distributed.get_rank())
model = DistributedDataParallel(model, gradient_as_bucket_view=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)


def window():
    for i in range(MICRO_BATCHES):
        with contextlib.nullcontext() if i + 1 == MICRO_BATCHES else model.no_sync():
            loss = model(batch)
            (loss / MICRO_BATCHES).backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


for _ in range(warm_up):
    window()


def measure(case):
    distributed.barrier()
    start = time.perf_counter()
    for _ in range(windows):
        loss = window()
    milliseconds = (time.perf_counter() - start) / windows * 1e3
    return milliseconds, float(loss.detach())


serve(measure)
distributed.destroy_process_group()
