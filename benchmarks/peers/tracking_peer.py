"""What the training thread pays for logging ten numbers per step by loggers of Lightning and Accelerate. Argument: a folder for the files."""
import logging
import pathlib
import shutil
import sys
import time
import warnings

from protocol import serve

warnings.filterwarnings("ignore")
for name in ("lightning.pytorch", "lightning.fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)
STEPS, WARM_UP, NUMBERS, REST_OF_STEP = 2000, 100, 10, 200e-6
ROOT = pathlib.Path(sys.argv[1])


def compute():
    """Keeps the core busy, as the rest of a training step would."""
    end = time.perf_counter() + REST_OF_STEP
    while time.perf_counter() < end:
        pass


def lightning_logger(kind, folder):
    from lightning.pytorch import loggers
    logger = {"csv": loggers.CSVLogger, "tensorboard": loggers.TensorBoardLogger}[kind](folder)
    return logger.log_metrics, lambda: logger.finalize("success")


def accelerate_tracker(kind, folder):
    from accelerate import Accelerator
    accelerator = Accelerator(cpu=True, log_with=kind, project_dir=folder)
    accelerator.init_trackers("run")
    return accelerator.log, accelerator.end_training


def written(kind, folder):
    """Steps in the file that a logger wrote."""
    file, = folder.rglob("metrics.csv" if kind == "csv" else "*tfevents*")
    return file.read_bytes().count(b"\n") - 1 if kind == "csv" else file.read_bytes().count(b"train/9")


def measure(case):
    package, kind = case.split()
    folder = ROOT / package / kind
    shutil.rmtree(folder, ignore_errors=True)
    log, finish = {"lightning": lightning_logger, "accelerate": accelerate_tracker}[package](kind, str(folder))
    total = 0
    for step in range(WARM_UP + STEPS):
        compute()
        values = {f"train/{i}": 1 / (step + 1) for i in range(NUMBERS)}
        start = time.perf_counter()
        log(values, step)
        if step >= WARM_UP:
            total += time.perf_counter() - start
    finish()
    return total / STEPS * 1e6, float(written(kind, folder))


serve(measure)
