"""Trains a transformer by PyTorch's fully_shard on two ranks, then lets a C++ program train the same under muster's strategies, and compares.

All start from the same weights and read the same text. Losses of 20 steps and the weights after them have the same bits where every rank's
rows of every parameter count a multiple of 64 elements. Where they do not, fully_shard steps each parameter's rows in a call of its own, whose
last elements PyTorch's fused optimizer rounds unlike the others, and losses agree within 1e-6.

usage: fsdp_parity.py PROGRAM
"""
import os
import socket
import subprocess
import sys

from cases import run_cases
from peer_rank import end_rank

try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as multiprocessing
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
except ImportError as error:
    print(f"fsdp_parity: skipped: {error}")
    print("0 passed, 0 failed, 1 skipped")
    sys.exit(77)

STEPS, BATCH, LENGTH, WORLD, HEADS = 20, 2, 16, 2, 4
SIZES = {"even": (128, 128, 2), "odd": (36, 37, 3)}  # width, vocabulary, blocks


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        scores = torch.softmax(q.matmul(k.transpose(-2, -1)) / 4.0, -1)
        x = x + self.out(scores.matmul(v).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self, width, vocabulary, blocks):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, text):
        given, wanted = text[:, :-1], text[:, 1:]
        x = self.tokens(given) + self.positions(torch.arange(given.shape[1]))
        for block in self.blocks:
            x = block(x)
        return nn.functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), wanted.flatten())


def write(path, tensors):
    with open(path, "wb") as file:
        for tensor in tensors:
            file.write(tensor.detach().contiguous().numpy().tobytes())


def train(rank, folder, port, size):
    """One rank of the peer: writes the first weights, each rank's text, its losses, and the last weights."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD)
    torch.manual_seed(0)
    width, vocabulary, blocks = SIZES[size]
    model = Transformer(width, vocabulary, blocks)
    if rank == 0:
        write(folder / "start", model.parameters())
    mesh = init_device_mesh("cpu", (WORLD,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.01, fused=True)
    generator = torch.Generator().manual_seed(100 + rank)
    texts = [torch.randint(0, vocabulary, (BATCH, LENGTH + 1), generator=generator) for _ in range(STEPS)]
    write(folder / f"texts{rank}", texts)
    losses = []
    for text in texts:
        loss = model(text)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss)
    write(folder / f"losses{rank}", losses)
    whole = [parameter.full_tensor() for parameter in model.parameters()]
    if rank == 0:
        write(folder / "weights", whole)
    end_rank()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def numbers(path):
    return torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.float32)


class FsdpParity:
    def __init__(self, program, folder):
        self.program, self.folder = program, folder

    def run_ours(self, size, strategy):
        width, vocabulary, blocks = SIZES[size]
        arguments = [str(self.folder), strategy, *map(str, (width, vocabulary, blocks, STEPS))]
        variables = {**os.environ, "WORLD_SIZE": str(WORLD), "LOCAL_WORLD_SIZE": str(WORLD), "MASTER_ADDR": "127.0.0.1",
                     "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
        ranks = [subprocess.Popen([self.program, *arguments], env={**variables, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for rank in range(WORLD)]
        texts = [process.communicate(timeout=120)[0] for process in ranks]
        if any(process.returncode for process in ranks):
            raise RuntimeError("\n".join(texts))

    def compare(self, size, strategy, names, same):
        multiprocessing.spawn(train, (self.folder, free_port(), size), nprocs=WORLD)
        self.run_ours(size, strategy)
        for name in names:
            theirs, ours = numbers(self.folder / name), numbers(self.folder / f"our-{name}")
            assert theirs.shape == ours.shape and len(theirs) > 0, (name, theirs.shape, ours.shape)
            largest = float((theirs - ours).abs().max())
            print(f"{size} {strategy} {name}: largest difference {largest:g}")
            assert same(theirs, ours), (name, largest)

    def test_even_sizes_give_the_same_bits(self):
        self.compare("even", "fsdp", ("losses0", "losses1", "weights"), torch.equal)

    def test_odd_sizes_agree_closely(self):
        self.compare("odd", "fsdp", ("losses0", "losses1"), lambda theirs, ours: float((theirs - ours).abs().max()) < 1e-6)


if __name__ == "__main__":
    run_cases(FsdpParity, sys.argv[1])
