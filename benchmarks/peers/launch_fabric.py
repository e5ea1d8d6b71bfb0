"""The first DDP step of a small model, by Fabric, which starts the second rank itself."""
import time

import torch
from lightning.fabric import Fabric
from torch import nn

fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
fabric.launch()
torch.manual_seed(0)
model = nn.Linear(64, 10)
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
loss = model(torch.ones(8, 64)).square().mean()
fabric.backward(loss)
optimizer.step()
assert fabric.world_size == 2
if fabric.global_rank == 0:
    print(f"reached {time.monotonic()} {float(loss.detach())}", flush=True)
