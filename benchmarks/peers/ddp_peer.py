"""Steps of PyTorch's DDP at its best: gradients as bucket views, static graph, fused AdamW. One process per rank."""
import sys
import time

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from models import model_and_input
from protocol import serve

torch.set_num_threads(1)
name = sys.argv[1]
steps, warm_up = (3, 2) if name == "gpt-9m" else (10, 5)
distributed.init_process_group("gloo")
model, batch = model_and_input(name, distributed.get_rank())
model = DistributedDataParallel(model, gradient_as_bucket_view=True, static_graph=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)


def step():
    optimizer.zero_grad()
    loss = model(batch)
    loss.backward()
    optimizer.step()
    return loss


for _ in range(warm_up):
    step()


def measure(case):
    distributed.barrier()
    start = time.perf_counter()
    for _ in range(steps):
        loss = step()
    milliseconds = (time.perf_counter() - start) / steps * 1e3
    return milliseconds, float(loss.detach())


serve(measure)
distributed.destroy_process_group()
