"""Microseconds of one collective of torch.distributed over gloo, measured as in collectives_bench.cpp."""
import time

import torch
from torch import distributed

from protocol import serve

torch.set_num_threads(1)
distributed.init_process_group("gloo")
RANK, SIZE = distributed.get_rank(), distributed.get_world_size()


def barriers():
    distributed.barrier()
    start = time.perf_counter()
    for _ in range(100):
        distributed.barrier()
    return (time.perf_counter() - start) / 100 * 1e6, 1.0


def measure(case):
    operation, *rest = case.split()
    if operation == "barrier":
        return barriers()
    dtype, size = getattr(torch, rest[0]), int(rest[1])  # a word after these is about our memory
    own = torch.full((size // dtype.itemsize,), RANK + 1, dtype=dtype)
    tensor, gathered = own.clone(), own.new_empty(SIZE * own.numel())
    times = min(max((64 << 20) // size, 4), 50)  # a millisecond each at least, so that more tell no more

    def loop(communicates):
        distributed.barrier()
        start = time.perf_counter()
        for _ in range(times):
            tensor.copy_(own)
            if communicates and operation == "all_reduce":
                distributed.all_reduce(tensor)
            elif communicates:
                distributed.all_gather_into_tensor(gathered, tensor)
        return time.perf_counter() - start

    loop(True)
    both = loop(True)
    total = sum(range(1, SIZE + 1))
    if operation == "all_reduce":
        right = bool(tensor.eq(total).all())
    else:
        right = all(bool(part.eq(rank + 1).all()) for rank, part in enumerate(gathered.chunk(SIZE)))
    writes = loop(False)
    return max(both - writes, 1e-9) / times * 1e6, float(total), right


serve(measure)
distributed.destroy_process_group()
