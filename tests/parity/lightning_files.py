"""Checkpoints of a Trainer against the genuine Lightning, both ways, by muster convert.

usage: lightning_files.py PAGES MUSTER
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import warnings

try:
    import torch
    import lightning.pytorch as pl
    from safetensors.torch import load_file
except ImportError as error:
    print(f"lightning_files: skipped: {error}")
    print("0 passed, 0 failed, 1 skipped")
    sys.exit(77)

warnings.filterwarnings("ignore")
program, muster = (pathlib.Path(word).resolve() for word in sys.argv[1:3])
passed = failed = 0


class Disc(pl.LightningModule):
    """That of docs/tutorial/first_trainer.cpp."""

    def __init__(self, lr=0.5, width=1):
        super().__init__()
        self.save_hyperparameters()
        self.hidden, self.head = torch.nn.Linear(2, width), torch.nn.Linear(width, 2)
        self.began = []

    def forward(self, points):
        return self.head(self.hidden(points).relu())

    def training_step(self, batch, batch_idx):
        points, inside = batch
        self.began.append((self.current_epoch, batch_idx, self.global_step))
        return torch.nn.functional.cross_entropy(self(points), inside)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


class Hostile:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def expect(what, holds, seen=""):
    global passed, failed
    passed, failed = passed + bool(holds), failed + (not holds)
    if not holds:
        print(f"FAILED {what}: {seen}")


def run(folder, *words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=300, cwd=folder)
    expect(f"{words} ends well", done.returncode == 0, done.stdout + done.stderr)
    return done.stdout


def data():
    torch.manual_seed(1)
    points = torch.rand(200, 2) * 2 - 1
    return torch.utils.data.DataLoader(list(zip(points, (points.square().sum(1) < 0.6).long())), batch_size=50)


def trainer(folder, epochs, **options):
    return pl.Trainer(accelerator="cpu", default_root_dir=folder, enable_progress_bar=False, enable_model_summary=False, logger=False, max_epochs=epochs, **options)


def to_lightning(root, ranks, strategy):
    """Trained here, opened there."""
    folder, what = root / f"{strategy}{ranks}", f"{strategy} on {ranks}"
    folder.mkdir()
    run(folder, muster, "run", "--no-prefix", "--devices", ranks, "--strategy", strategy, program, "first_trainer", 2)
    saved, file = folder / "disc/checkpoints/last.ckpt", folder / "disc.ckpt"
    expect(f"{what}: says what it wrote", "-> lightning: 12 tensors" in (text := run(folder, muster, "convert", saved, file)), text)
    run(folder, muster, "convert", saved, folder / "disc.safetensors")
    disc = Disc.load_from_checkpoint(file)
    expect(f"{what}: hyper-parameters", dict(disc.hparams) == {"lr": 0.01, "width": 64}, dict(disc.hparams))
    weights = load_file(folder / "disc.safetensors")
    expect(f"{what}: weights", weights.keys() == disc.state_dict().keys() and all(torch.equal(weights[name], one) for name, one in disc.state_dict().items()))
    expect(f"{what}: it learnt", disc(torch.tensor([[0.1, 0.2], [0.9, -0.9]])).argmax(1).tolist() == [1, 0])
    steps = 2 * 80 // ranks
    fresh = Disc(width=64)
    goes_on = trainer(folder, 3, enable_checkpointing=False)
    goes_on.fit(fresh, data(), ckpt_path=file)
    expect(f"{what}: fit goes on with epoch 2", fresh.began == [(2, i, steps + i) for i in range(4)], fresh.began)
    taken = goes_on.optimizers[0].state_dict()
    expect(f"{what}: Adam goes on", all(state["step"] == steps + 4 for state in taken["state"].values()) and len(taken["state"]) == 4, taken)
    return file, weights


def from_weights(root, weights):
    """Bare weights become a file of Lightning's, too."""
    torch.save({f"net.{name}": one for name, one in weights.items()}, root / "bare.pt")
    run(root, muster, "convert", root / "bare.pt", root / "made.ckpt", "--to", "lightning", "--strip", "net.")
    disc = Disc.load_from_checkpoint(root / "made.ckpt", width=64)
    expect("bare weights", all(torch.equal(weights[name], one) for name, one in disc.state_dict().items()))


def to_muster(root):
    """Trained there, read here; nothing in the file is executed."""
    disc = Disc(lr=0.02, width=8)
    there = trainer(root, 2, enable_checkpointing=False)
    there.fit(disc, data())
    there.save_checkpoint(root / "theirs.ckpt")
    saved = torch.load(root / "theirs.ckpt", weights_only=False)
    saved["callbacks"] = {"hostile": Hostile(root / "executed")}
    torch.save(saved, root / "hostile.ckpt")
    run(root, muster, "convert", root / "hostile.ckpt", root / "theirs.safetensors")
    weights = load_file(root / "theirs.safetensors")
    expect("their weights", all(torch.equal(weights[name], one) for name, one in disc.state_dict().items()))
    values = json.loads(run(root, muster, "show", "--json", root / "hostile.ckpt"))["values"]
    expect("their counters and hyper-parameters", (values["global_step"], values["epoch"], values["hyper_parameters/width"]) == ("8", "2", "8"), values)
    expect("nothing was executed", not (root / "executed").exists())


with tempfile.TemporaryDirectory() as name:
    root = pathlib.Path(name)
    for ranks, strategy in ((1, "auto"), (2, "fsdp")):
        file, weights = to_lightning(root, ranks, strategy)
    from_weights(root, weights)
    to_muster(root)
print(f"{passed} passed, {failed} failed, 0 skipped")
sys.exit(failed > 0)
