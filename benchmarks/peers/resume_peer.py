"""Milliseconds to the first batch after accelerate's skip_first_batches, asked as "SAMPLES"; the same rows as resume_bench.cpp."""
import time

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset

import protocol

ROWS, BATCH = 2_000_000, 100


class Rows(Dataset):
    def __len__(self):
        return ROWS

    def __getitem__(self, i):
        return torch.arange(8, dtype=torch.float32) + i % 1000


accelerator = Accelerator(cpu=True)


def measure(case):
    skipped = int(case) // BATCH
    loader = accelerator.prepare(DataLoader(Rows(), batch_size=BATCH, shuffle=True))
    start = time.perf_counter()
    batch = next(iter(accelerator.skip_first_batches(loader, skipped)))
    return (time.perf_counter() - start) * 1e3, batch.shape[0] * (skipped + 1)


if __name__ == "__main__":
    torch.set_num_threads(1)
    protocol.serve(measure)
