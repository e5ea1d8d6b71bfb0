"""The first DDP step of a small model, by Accelerate."""
import os
import time

import torch
from accelerate import Accelerator
from torch import nn

torch.set_num_threads(1)
accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
model = nn.Linear(64, 10)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
loss = model(torch.ones(8, 64)).square().mean()
accelerator.backward(loss)
optimizer.step()
assert accelerator.num_processes == 2
if accelerator.is_main_process:
    print(f"reached {time.monotonic()} {float(loss.detach())}", flush=True)
# PyTorch 2.13 aborts now and then while a gloo group or the interpreter after it is taken down.
accelerator.wait_for_everyone()
os._exit(0)
