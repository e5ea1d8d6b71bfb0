"""Writes checkpoint_names.json: what Lightning's ModelCheckpoint leaves in its folder, for model_checkpoint_test.cpp.

usage: checkpoint_names.py [FILE]        (needs pip's "lightning"; the file says which version wrote it)

A case: what the callback and the Trainer were given, and for each name that is left the global_step it was saved at.
The cases are drawn from all products of the options so that every pair of values is among them. The module trains 4 batches in each of 3 epochs. It logs "v", one of VALUES after the other, in each validation, and "t"
in each training batch, and raises in training batch `raises_at`, counted over all epochs.
"""
import datetime
import itertools
import json
import logging
import pathlib
import random
import sys
import tempfile
import warnings

import lightning
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

VALUES = [3.0, 2.0, 4.0, 1.0, 5.0, 6.0, 0.5]
TRIGGERS = [
    {}, {"every_n_epochs": 0}, {"every_n_epochs": 2}, {"every_n_train_steps": 0}, {"every_n_train_steps": 3},
    {"every_n_train_steps": 4}, {"train_time_interval_us": 1}, {"train_time_interval_us": 3600 * 10**6},
]
VALIDATIONS = [{"limit_val_batches": 0}, {}, {"val_check_interval": 0.5}, {"check_val_every_n_epoch": 2}]


class Saver(ModelCheckpoint):
    """Lightning 2.6 forgets a save that waits for a validation's metric where it saves at the ends of training epochs."""

    def on_validation_end(self, trainer, module):
        if not self._defer_save_until_validation or self._should_skip_saving_checkpoint(trainer):
            return super().on_validation_end(trainer, module)
        self._defer_save_until_validation = False
        self._save_topk_checkpoint(trainer, self._monitor_candidates(trainer))
        self._save_last_checkpoint(trainer, self._monitor_candidates(trainer))


class Measured(LightningModule):
    def __init__(self, raises_at):
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(()))
        self.raises_at, self.trained, self.validated = raises_at, 0, 0

    def training_step(self, batch, batch_idx):
        self.trained += 1
        if self.trained == self.raises_at:
            raise RuntimeError("as the case wants")
        self.log("t", VALUES[self.trained % len(VALUES)])
        return self.w * batch.sum()

    def validation_step(self, batch, batch_idx):
        self.log("v", VALUES[self.validated % len(VALUES)])
        self.validated += 1

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.ones(4), batch_size=1)

    def val_dataloader(self):
        return torch.utils.data.DataLoader(torch.ones(1), batch_size=1)


def left(callback, trainer, raises_at):
    given = dict(callback)
    if "train_time_interval_us" in given:
        given["train_time_interval"] = datetime.timedelta(microseconds=given.pop("train_time_interval_us"))
    with tempfile.TemporaryDirectory() as folder:
        saver = Saver(dirpath=folder, filename="{step}", **given)
        loops = Trainer(accelerator="cpu", logger=False, callbacks=[saver], max_epochs=3, num_sanity_val_steps=0, enable_progress_bar=False, enable_model_summary=False, **trainer)
        try:
            loops.fit(Measured(raises_at))
        except RuntimeError as error:
            if str(error) != "as the case wants":
                raise
        return {path.name: torch.load(path, weights_only=False)["global_step"] for path in sorted(pathlib.Path(folder).iterdir())}


def cases():
    for save_last, top_k, monitor, trigger, validation in itertools.product((False, True), (-1, 0, 1, 2), ("", "v", "t"), TRIGGERS, VALIDATIONS):
        if top_k == 2 and not monitor or monitor == "v" and validation == {"limit_val_batches": 0}:
            continue
        own = {"save_top_k": top_k, "save_last": save_last, **trigger, **({"monitor": monitor} if monitor else {})}
        for at_epoch_end in (None, False, True):
            yield {**own, **({} if at_epoch_end is None else {"save_on_train_epoch_end": at_epoch_end})}, validation, 0
    for save_last, top_k, trigger, raises_at in itertools.product((False, True), (-1, 0, 1), TRIGGERS, (1, 2, 6, 9)):
        yield {"save_top_k": top_k, "save_last": save_last, "save_on_exception": True, **trigger}, {}, raises_at


def pairs(case):
    values = [f"{key}={value}" for given in case for key, value in (given.items() if isinstance(given, dict) else [("raises_at", given)])]
    return set(itertools.combinations(sorted(values), 2))


def drawn(count):
    """So many of the cases at random, and then those that are needed for every pair."""
    everything = list(cases())
    random.Random(42).shuffle(everything)
    kept = everything[:count]
    seen = set().union(*map(pairs, kept))
    for case in everything[count:]:
        if not pairs(case) <= seen:
            kept.append(case)
            seen |= pairs(case)
    return kept


def main(path):
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    rows = []
    for callback, trainer, raises_at in drawn(300):
        row = {"callback": callback, "trainer": trainer, "raises_at": raises_at, "left": left(callback, trainer, raises_at)}
        rows.append(json.dumps(row))
    path.write_text('{"lightning": "%s", "cases": [\n%s\n]}\n' % (lightning.__version__, ",\n".join(rows)))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).with_suffix(".json"))
