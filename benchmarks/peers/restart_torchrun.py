"""The first DDP step of a small model after its ranks were started again, by PyTorch alone."""
import os
import signal
import time

import torch
from torch import distributed, nn

torch.set_num_threads(1)
again = int(os.environ["TORCHELASTIC_RESTART_COUNT"]) > 0
distributed.init_process_group("gloo")
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    loss = model(torch.ones(8, 64)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if again:
        break
    if distributed.get_rank() == 0:
        continue   # into a step that its peer does not make
    print(f"died {time.monotonic()}", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
if distributed.get_rank() == 0:
    print(f"reached {time.monotonic()} {float(loss.detach())}", flush=True)
# PyTorch 2.13 aborts now and then while a gloo group or the interpreter after it is taken down.
distributed.barrier()
os._exit(0)
