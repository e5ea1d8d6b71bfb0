"""Milliseconds of AdamW's fused step in Python, asked by a size; the same parameters and gradients as in optim_bench.cpp."""
import functools
import time

import torch

from protocol import serve

torch.set_num_threads(1)
BLOCK = [(768, 256), (768,), (256, 256), (256,), (1024, 256), (1024,), (256, 1024), (256,), (256,), (256,), (256,), (256,)]
SHAPES = {"67M in 4": [(4096, 4096)] * 4, "0.42M in 100": [(128, 64), (128,)] * 50, "11.6M in 146": [(8192, 256), (256, 256), *BLOCK * 12]}
STEPS = {"67M in 4": 3, "0.42M in 100": 200, "11.6M in 146": 10}


@functools.lru_cache(None)
def contender(size):
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(shape)) for shape in SHAPES[size]]
    for parameter in parameters:
        parameter.grad = parameter.detach() / 2
    return torch.optim.AdamW(parameters, lr=1e-3, fused=True), parameters[0]


def measure(size):
    optimizer, first = contender(size)
    optimizer.step()
    start = time.perf_counter()
    for _ in range(STEPS[size]):
        optimizer.step()
    milliseconds = (time.perf_counter() - start) / STEPS[size] * 1e3
    return milliseconds, first.detach().abs().sum(dtype=torch.float64).item()


serve(measure)
