"""Microseconds of one all-reduce of DeepSpeed's operator for ranks of one host, measured as in collectives_bench.cpp.

DeepSpeed compiles it at first use, and takes gloo without a word where it cannot, or where the processor lacks what a dtype needs: then this fails.
"""
import os
import pathlib
import time

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("LOCAL_SIZE", os.environ.get("WORLD_SIZE", "1"))

import torch  # noqa: E402
from torch import distributed  # noqa: E402
from deepspeed import comm  # noqa: E402
from deepspeed.comm import comm as backends  # noqa: E402

from protocol import serve  # noqa: E402

torch.set_num_threads(1)
comm.init_distributed(dist_backend="gloo", verbose=False)
RANK, SIZE = distributed.get_rank(), distributed.get_world_size()
HAS_OPERATOR = hasattr(torch.ops.deepspeed, "inference_all_reduce_")


def forget_the_name():
    """DeepSpeed never unlinks its segments, 69 MB per rank and start; all ranks have mapped them when it has started."""
    if not HAS_OPERATOR:
        return
    distributed.barrier()
    place = "_".join(map(str, (os.getuid(), os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"], RANK)))
    pathlib.Path(f"/dev/shm/deepspeed_allreduce_buffer_{place}").unlink()


def check_operator(dtype):
    if not HAS_OPERATOR:
        raise SystemExit("DeepSpeed could not build its operator for ranks of one host")
    if getattr(backends.cdb, "shm_vector_kernel_level", 2) < (1 if dtype == torch.float32 else 2):
        raise SystemExit(f"DeepSpeed's operator does not take {dtype} on this processor")


def measure(case):
    _, dtype_name, size = case.split()[:3]  # a word after these is about our memory
    dtype, size = getattr(torch, dtype_name), int(size)
    check_operator(dtype)
    own = torch.full((size // dtype.itemsize,), RANK + 1, dtype=dtype)
    tensor = own.clone()
    times = min(max((64 << 20) // size, 4), 400)

    def loop(communicates):
        distributed.barrier()
        start = time.perf_counter()
        for _ in range(times):
            tensor.copy_(own)
            if communicates:
                comm.inference_all_reduce(tensor)
        return time.perf_counter() - start

    loop(True)
    both = loop(True)
    total = sum(range(1, SIZE + 1))
    right = bool(tensor.eq(total).all())
    writes = loop(False)
    return max(both - writes, 1e-9) / times * 1e6, float(total), right


forget_the_name()
serve(measure)
distributed.destroy_process_group()
