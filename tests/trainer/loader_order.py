"""Writes loader_order.json: when Lightning's Trainer asks for its loaders, for hook_traces_test.cpp.

usage: loader_order.py [FILE]        (needs pip's "lightning"; the file says which version wrote it)

A case: the options of a Trainer whose fit() saves at `saved_at` ("epoch": the end of each epoch; or each so many steps),
those of the Trainer that goes on from its first checkpoint by `entry` (null: nothing goes on), and the calls of
the last of them that TRACED names. An epoch of training has 4 batches, every other one 1.
"""
import itertools
import json
import logging
import pathlib
import sys
import tempfile
import warnings

import lightning
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

TRACED = [
    "setup", "on_fit_start", "on_load_checkpoint", "on_sanity_check_start", "on_sanity_check_end", "on_train_start", "on_train_epoch_start", "on_train_epoch_end",
    "on_validation_start", "on_validation_end", "on_test_start", "on_test_end", "on_predict_start", "on_predict_end", "on_train_end", "on_fit_end", "teardown",
]
VALIDATIONS = [
    {"limit_val_batches": 0}, {}, {"val_check_interval": 0.5}, {"val_check_interval": 2}, {"check_val_every_n_epoch": 2},
    {"check_val_every_n_epoch": None, "val_check_interval": 6},
]


class Traced(LightningModule):
    def __init__(self, calls):
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(()))
        self.calls = calls

    def training_step(self, batch, batch_idx):
        return self.w * batch.sum()

    def validation_step(self, batch, batch_idx):
        pass

    def test_step(self, batch, batch_idx):
        pass

    def predict_step(self, batch, batch_idx):
        return batch

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

    def loader(self, name, batches):
        self.calls.append(name)
        return torch.utils.data.DataLoader(torch.ones(batches), batch_size=1)

    def train_dataloader(self):
        return self.loader("train_dataloader", 4)

    def val_dataloader(self):
        return self.loader("val_dataloader", 1)

    def test_dataloader(self):
        return self.loader("test_dataloader", 1)

    def predict_dataloader(self):
        return self.loader("predict_dataloader", 1)


def tracer(calls):
    def traced(name):
        return lambda self, *_, **__: calls.append(name)

    return type("Tracer", (Callback,), {name: traced(name) for name in TRACED})()


def run(entry, folder, saved_at, options, ckpt_path):
    calls = []
    when = {"save_on_train_epoch_end": True} if saved_at == "epoch" else {"every_n_train_steps": saved_at}
    saver = ModelCheckpoint(dirpath=folder, filename="{step}", save_top_k=-1, **when)
    loops = Trainer(accelerator="cpu", logger=False, callbacks=[tracer(calls), saver], enable_progress_bar=False, enable_model_summary=False, **options)
    getattr(loops, entry)(Traced(calls), ckpt_path=ckpt_path, weights_only=False)
    return calls


def cases():
    for validation, sanity in itertools.product(VALIDATIONS, (0, 2)):
        first = {"max_epochs": 2, "num_sanity_val_steps": sanity, **validation}
        yield "epoch", first, None, None
        for saved_at in ("epoch", 3):
            for other in ({}, {"num_sanity_val_steps": 2 - sanity}, {"limit_val_batches": 0} if validation != {"limit_val_batches": 0} else {"limit_val_batches": 1}):
                second = {**first, "max_epochs": 3, **other}
                yield saved_at, first, "fit", second
    for entry in ("validate", "test", "predict"):
        yield "epoch", {"max_epochs": 1}, entry, {}
    yield "epoch", {"max_epochs": 2}, "fit", {"max_epochs": 3, "reload_dataloaders_every_n_epochs": 1}
    yield "epoch", {"max_epochs": 3, "reload_dataloaders_every_n_epochs": 1}, None, None
    yield "epoch", {"max_epochs": 3, "reload_dataloaders_every_n_epochs": 1, "num_sanity_val_steps": 0}, None, None
    yield "epoch", {"max_epochs": 4, "reload_dataloaders_every_n_epochs": 2, "check_val_every_n_epoch": 2}, None, None


def main(path):
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    rows = []
    for saved_at, first, entry, second in cases():
        with tempfile.TemporaryDirectory() as folder:
            calls = run("fit", folder, saved_at, first, None)
            if entry:
                checkpoint = min(pathlib.Path(folder).iterdir(), key=lambda one: int(one.stem.removeprefix("step=")))
                calls = run(entry, folder + "/second", saved_at, second, str(checkpoint))
        rows.append(json.dumps({"saved_at": saved_at, "first": first, "entry": entry, "second": second, "calls": calls}))
    path.write_text('{"lightning": "%s", "cases": [\n%s\n]}\n' % (lightning.__version__, ",\n".join(rows)))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).with_suffix(".json"))
