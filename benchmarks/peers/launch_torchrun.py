"""The first DDP step of a small model, by PyTorch alone."""
import os
import time

import torch
from torch import distributed, nn

torch.set_num_threads(1)
distributed.init_process_group("gloo")
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss = model(torch.ones(8, 64)).square().mean()
loss.backward()
optimizer.step()
if distributed.get_rank() == 0:
    print(f"reached {time.monotonic()} {float(loss.detach())}", flush=True)
# PyTorch 2.13 aborts now and then while a gloo group or the interpreter after it is taken down.
distributed.barrier()
os._exit(0)
