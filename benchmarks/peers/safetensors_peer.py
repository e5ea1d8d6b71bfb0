"""Python's safetensors: 512 MiB in 128 tensors to one file, and from it into tensors that exist. Argument: a folder on a disk."""
import os
import pathlib
import sys
import time

import torch
from safetensors.torch import load_file, save_file

from protocol import serve

folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
folder.mkdir(parents=True, exist_ok=True)
source, target = (folder / f"peer-{kind}-{os.getpid()}.safetensors" for kind in ("in", "out"))
ramp = torch.arange(1 << 20, dtype=torch.float32).view(1024, 1024)
tensors = {f"layer{i // 4}.w{i % 4}": ramp / 1024 + i for i in range(128)}
empty = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
save_file(tensors, source)


def sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def save(durable):
    save_file(tensors, target)  # not timed: see the other side
    target.unlink()
    start = time.perf_counter()
    save_file(tensors, target)
    if durable:
        sync(target)
        sync(folder)
    seconds = time.perf_counter() - start
    loaded = load_file(target)
    verified = all(torch.equal(tensor, loaded[name]) for name, tensor in tensors.items())
    size = target.stat().st_size
    target.unlink()
    return seconds * 1e3, float(size), verified


def load():
    for tensor in empty.values():
        tensor.zero_()
    start = time.perf_counter()
    loaded = load_file(source)
    for name, tensor in empty.items():
        tensor.copy_(loaded[name])
    seconds = time.perf_counter() - start
    return seconds * 1e3, float(list(empty.values())[-1].sum()), all(torch.equal(tensors[name], empty[name]) for name in tensors)


def measure(case):
    return save(case == "save durable") if case.startswith("save") else load()


try:
    serve(measure)
finally:
    source.unlink(missing_ok=True)
    target.unlink(missing_ok=True)
