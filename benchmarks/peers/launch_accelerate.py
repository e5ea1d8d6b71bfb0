"""The first DDP step of a small model, by Accelerate."""
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
accelerator.end_training()
