"""Trains by PyTorch's DistributedDataParallel on two ranks, then lets a C++ program train the same by ReplicatedModel and compare.

Both start from the same weights and batches, which are written here as raw numbers in the order of the parameters. Gradients of the
first step have the same bits; so have weights after 20 steps where every parameter's size is a multiple of 64. Where it is not,
PyTorch's fused optimizer rounds the last elements of a parameter unlike the others, and weights agree within 1e-6.

usage: ddp_parity.py PROGRAM
"""
import os
import subprocess
import sys
import tempfile

from peer_rank import end_rank

try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as multiprocessing
    from torch import nn
except ImportError as error:
    print(f"ddp_parity: skipped: {error}")
    print("0 passed, 0 failed, 1 skipped")
    sys.exit(77)

STEPS, PART, WORLD = 20, 4, 2


class Mlp(nn.Module):
    def __init__(self, inputs, hidden, outputs):
        super().__init__()
        self.first = nn.Linear(inputs, hidden)
        self.second = nn.Linear(hidden, outputs)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(4, 64, 3, padding=1)
        self.norm = nn.BatchNorm2d(64)
        self.head = nn.Linear(64, 64)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.convolution(x))).mean((2, 3)))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.inputs = nn.Linear(64, 192)
        self.output = nn.Linear(64, 64)
        self.wide = nn.Linear(64, 128)
        self.narrow = nn.Linear(128, 64)

    def forward(self, x):
        batch, time, width = x.shape
        parts = self.inputs(self.norm(x)).view(batch, time, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        mixed = torch.softmax(parts[0].matmul(parts[1].transpose(-2, -1)) / 4.0, -1).matmul(parts[2])
        x = x + self.output(mixed.transpose(1, 2).reshape(batch, time, width))
        return x + self.narrow(torch.nn.functional.gelu(self.wide(x)))


MODELS = {
    "mlp": (lambda: Mlp(64, 128, 64), (64,)),
    "odd": (lambda: Mlp(10, 33, 7), (10,)),
    "cnn": (Cnn, (4, 6, 6)),
    "attention": (Attention, (5, 64)),
}
OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.01, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01, fused=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01, fused=True),
}
CASES = [(model, dtype, "adamw") for model in MODELS for dtype in ("float32", "float64")]
CASES += [("mlp", "float32", optimizer) for optimizer in ("adam", "sgd", "adagrad")]


def write(path, tensors):
    with open(path, "wb") as file:
        for tensor in tensors:
            file.write(tensor.detach().contiguous().numpy().tobytes())


def train(rank, folder, model_name, dtype, optimizer_name):
    build, shape = MODELS[model_name]
    torch.manual_seed(rank)  # the values of rank 0 count
    model = build().to(getattr(torch, dtype))
    if rank == 0:
        write(f"{folder}/start", model.parameters())
    wrapped = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    generator = torch.Generator().manual_seed(100 + rank)
    batches = [torch.randn((PART, *shape), generator=generator).to(getattr(torch, dtype)) for _ in range(STEPS)]
    write(f"{folder}/batches{rank}", batches)
    for step, batch in enumerate(batches):
        output = wrapped(batch)
        ((output * output).mean() + output.sin().mean()).backward()
        if step == 0 and rank == 0:
            write(f"{folder}/gradients", [p.grad for p in model.parameters()])
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and step in (0, STEPS - 1):
            write(f"{folder}/weights{step + 1}", model.parameters())
    if rank == 0:
        write(f"{folder}/buffers", [b for b in model.buffers() if b.dim() > 0])


def run_rank(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD)
    for case in CASES:
        train(rank, f"{folder}/{'-'.join(case)}", *case)
    end_rank()


def main():
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            os.mkdir(f"{folder}/{'-'.join(case)}")
        multiprocessing.spawn(run_rank, (folder,), nprocs=WORLD)
        result = subprocess.run([sys.argv[1], folder, *("-".join(case) for case in CASES)], capture_output=True, text=True, timeout=600)
    lines = [line for line in result.stdout.splitlines() if line.startswith(("passed ", "failed "))]
    print(result.stdout + result.stderr)
    passed = sum(line.startswith("passed ") for line in lines)
    failed = len(CASES) - passed
    print(f"{passed} passed, {failed} failed, 0 skipped")
    sys.exit(1 if failed or result.returncode else 0)


if __name__ == "__main__":
    main()
