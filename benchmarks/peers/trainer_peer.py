"""Steps of a small MLP under Lightning's Trainer: batches in memory, AdamW with fused, the same options as trainer_bench.cpp."""
import logging
import statistics
import time
import warnings

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.nn import functional as F

from mlp import make_batches, make_mlp, make_one_layer
from protocol import serve

warnings.filterwarnings("ignore")
for name in ("lightning.pytorch", "lightning.fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)
torch.set_num_threads(1)
STEPS, WARM_UP, EPOCHS, BATCHES_OF_TINY_SET, FITS = 1000, 100, 50, 10, 3
COMPARED, LEARNT = 100, 0.02  # as in trainer_bench.cpp
BATCHES = make_batches(WARM_UP + STEPS)
QUIET = {"enable_checkpointing": False, "enable_model_summary": False, "enable_progress_bar": False, "logger": False}


class InMemory:
    """A loader: of a list, Lightning would take each element for one."""

    def __init__(self, batches):
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        return iter(self.batches)


class Mlp(LightningModule):
    def __init__(self, net, every):
        super().__init__()
        self.net, self.every, self.begins, self.last, self.early = net, every, [], [None], [None]

    def training_step(self, batch, batch_idx):
        self.begins.append(time.perf_counter())
        x, y = batch
        self.last[0] = loss = F.cross_entropy(self.net(x), y)
        if len(self.begins) == COMPARED:
            self.early[0] = loss
        if self.every and batch_idx % self.every == 0:
            self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


def fit(batches, every=0, epochs=1, options=QUIET, make_net=make_mlp):
    """One of `every` batches logs; 0: none."""
    module = Mlp(make_net(), every)
    Trainer(accelerator="cpu", devices=1, max_epochs=epochs, **options).fit(module, InMemory(batches))
    return module


def intervals(module):
    return [1e6 * (end - begin) for begin, end in zip(module.begins[WARM_UP:], module.begins[WARM_UP + 1:])]


def measure(case):
    if case == "fit of 50 epochs":
        start = time.perf_counter()
        module = fit(BATCHES[:BATCHES_OF_TINY_SET], epochs=EPOCHS)
        return 1e3 * (time.perf_counter() - start), float(module.early[0]), float(module.last[0]) < LEARNT
    if case == "what a log adds":
        # Every second batch of one fit logs, so that both kinds of step find the same machine.
        fits = [fit(BATCHES, every=2, make_net=make_one_layer) for _ in range(FITS)]
        with_log, without = ([step for module in fits for step in intervals(module)[parity::2]] for parity in (0, 1))
        module = fits[-1]
        more = statistics.median(with_log) - statistics.median(without)
        return more, float(module.last[0]), more > 0
    every, options = {"step bare": (0, QUIET), "step barebones": (0, {"barebones": True}), "step with a log": (1, QUIET)}[case]
    module = fit(BATCHES, every, options=options)
    return statistics.mean(intervals(module)), float(module.last[0])


serve(measure)
