"""Samples a second through torch.utils.data.DataLoader, asked as "HOW WORKLOAD WORKERS"; the same data as data_bench.cpp.
HOW is "single", one sample at a time, or "batch": whole batches by a list of indices, which a BatchSampler as sampler gives.
Arguments, if any: a device to which batches are copied, from pinned memory; then "tiny"."""
import functools
import multiprocessing
import sys
import time

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

import protocol

IMAGES, PIXELS, ROWS, WINDOW = 20000, 3 * 32 * 32, 15000, 256
DEVICE, SECONDS = (sys.argv[1:2] or [None])[0], 0.01 if sys.argv[2:] else 0.3


class Images(Dataset):
    batch = 64

    def __init__(self):
        self.x = (torch.arange(IMAGES).unsqueeze(1) * 7 + torch.arange(PIXELS)).remainder(251).to(torch.uint8).view(-1, 3, 32, 32)
        self.y = torch.arange(IMAGES).remainder(10)

    def __len__(self):
        return IMAGES

    def __getitem__(self, i):
        return self.x[i].float().div_(255), self.y[i]


class Tokens(Dataset):
    batch = 32

    def __init__(self):
        self.text = (torch.arange(ROWS * (WINDOW + 1)) * 31).remainder(50000).to(torch.int32)
        self.rows = self.text.view(ROWS, WINDOW + 1)

    def __len__(self):
        return ROWS

    def __getitem__(self, i):
        if isinstance(i, list):
            rows = self.rows[i].long()
            return rows[:, :-1], rows[:, 1:]
        at = i * (WINDOW + 1)
        return self.text[at:at + WINDOW].long(), self.text[at + 1:at + 1 + WINDOW].long()


@functools.lru_cache(None)
def contender(case):
    how, workload, workers = case.split()
    dataset = Images() if workload == "images" else Tokens()
    batches = {"batch_size": dataset.batch, "shuffle": True}
    if how == "batch":
        batches = {"batch_size": None, "sampler": BatchSampler(RandomSampler(dataset), dataset.batch, drop_last=False)}
    loader = DataLoader(dataset, num_workers=int(workers), persistent_workers=int(workers) > 0, pin_memory=DEVICE == "cuda", **batches)
    check = sum(data.sum(dtype=torch.float64).item() + 3 * target.sum(dtype=torch.float64).item() for data, target in loader)
    return loader, len(dataset), check


def measure(case):
    loader, size, check = contender(case)
    samples, start = 0, time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        for batch in loader:
            if DEVICE:
                batch = [part.to(DEVICE, non_blocking=True) for part in batch]
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        samples += size
    return samples / (time.perf_counter() - start), check


if __name__ == "__main__":
    multiprocessing.set_start_method("fork", force=True)
    torch.set_num_threads(1)
    protocol.serve(measure)
