"""muster convert and muster show on files of torch, safetensors and a hub's folders, compared with the Python packages.

usage: convert.py MUSTER
"""
import json
import subprocess
import sys

from cases import run_cases

try:
    import torch
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file, save_model
except ImportError as error:
    print(f"convert: skipped: {error}")
    print("0 passed, 0 failed, 1 skipped")
    sys.exit(77)


def weights():
    generator = torch.Generator().manual_seed(1)
    base = torch.rand(6, 4, generator=generator)
    return {"base": base, "transposed": base.t(), "column": base[:, 1], "half": base.bfloat16(), "long": torch.arange(5), "bool": base[0] > 0.5, "scalar": torch.tensor(2.0),
            "empty": torch.empty(0, 2), "f8": base.to(torch.float8_e4m3fn), "complex": torch.view_as_complex(base.clone().view(6, 2, 2))}


def assert_equal(found, wanted):
    assert found.keys() == wanted.keys(), f"{sorted(found)}, not {sorted(wanted)}"
    for name, tensor in wanted.items():
        same = found[name].dtype == tensor.dtype and found[name].shape == tensor.shape
        assert same and torch.equal(found[name].contiguous().reshape(-1).view(torch.uint8), tensor.contiguous().reshape(-1).view(torch.uint8)), name


def parts_of(file):
    """Header and data: the package writes a header's metadata in an order of chance."""
    content = file.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:end]), content[end:]


class Cases:
    def __init__(self, muster, folder):
        self.muster, self.folder = muster, folder

    def run(self, *words, code=0):
        outcome = subprocess.run([self.muster, *map(str, words)], capture_output=True, text=True, timeout=120)
        assert outcome.returncode == code, f"{words}: {outcome.returncode} {outcome.stderr}"
        return outcome.stdout if code == 0 else outcome.stderr

    def test_torch_to_safetensors(self):
        for how in ({}, {"_use_new_zipfile_serialization": False}):
            torch.save(weights(), self.folder / "x.pt", **how)
            self.run("convert", self.folder / "x.pt", self.folder / "x.safetensors")
            assert_equal(load_file(self.folder / "x.safetensors"), weights())

    def test_safetensors_to_torch(self):
        dense = {name: tensor.contiguous().clone() for name, tensor in weights().items()}
        save_file(dense, self.folder / "x.safetensors")
        self.run("convert", self.folder / "x.safetensors", self.folder / "x.pth")
        assert_equal(torch.load(self.folder / "x.pth", weights_only=True), dense)

    def test_folders_of_a_hub(self):
        torch.save(weights(), self.folder / "x.bin")
        self.run("convert", self.folder / "x.bin", self.folder / "hub", "--max-shard-size", "120B")
        index = json.loads((self.folder / "hub/model.safetensors.index.json").read_text())
        found = {}
        for name, file in index["weight_map"].items():
            with safe_open(self.folder / "hub" / file, framework="pt") as shard:
                found[name] = shard.get_tensor(name)
        assert_equal(found, weights())
        assert len(set(index["weight_map"].values())) > 2
        self.run("convert", self.folder / "hub", self.folder / "y.pt")
        assert_equal(torch.load(self.folder / "y.pt", weights_only=True), weights())

    def test_tied_weights(self):
        class Tied(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.head, self.embedding = torch.nn.Linear(3, 4), torch.nn.Embedding(4, 3)
                self.head.weight = self.embedding.weight

        model = Tied()
        save_model(model, str(self.folder / "theirs.safetensors"), metadata={"format": "pt"})
        torch.save(model.state_dict(), self.folder / "x.pt")
        self.run("convert", self.folder / "x.pt", self.folder / "ours.safetensors")
        assert parts_of(self.folder / "ours.safetensors") == parts_of(self.folder / "theirs.safetensors")
        self.run("convert", self.folder / "theirs.safetensors", self.folder / "y.pt")
        found = torch.load(self.folder / "y.pt", weights_only=True)
        assert_equal(found, model.state_dict())
        assert found["head.weight"].data_ptr() == found["embedding.weight"].data_ptr()

    def test_a_part_of_a_checkpoint(self):
        model = torch.nn.Linear(3, 2)
        torch.save({"epoch": 3, "state_dict": {f"module.{k}": v for k, v in model.state_dict().items()}}, self.folder / "x.ckpt")
        self.run("convert", self.folder / "x.ckpt", self.folder / "x.safetensors", "--key", "state_dict", "--strip", "module.")
        assert_equal(load_file(self.folder / "x.safetensors"), model.state_dict())

    def test_what_a_training_script_saves(self):
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}, self.folder / "job.pt")
        printed = self.run("convert", self.folder / "job.pt", self.folder / "job.safetensors")
        assert "left out: optimizer" in printed and "left out: epoch" in printed, printed
        assert_equal(load_file(self.folder / "job.safetensors"), model.state_dict())
        torch.save({"model": model.state_dict(), "ema": model.state_dict(), "epoch": 3}, self.folder / "two.pt")
        assert "model, ema" in self.run("convert", self.folder / "two.pt", self.folder / "two.safetensors", code=2)

    def test_show(self):
        torch.save({"weights": weights(), "epoch": 3, "name": "x\n"}, self.folder / "x.pt")
        listing = json.loads(self.run("show", "--json", self.folder / "x.pt"))
        rows = {row["name"]: row for row in listing["tensors"]}
        assert [row["name"] for row in listing["tensors"]] == sorted(f"weights/{name}" for name in weights())
        for name, tensor in weights().items():
            row = rows[f"weights/{name}"]
            assert row["shape"] == list(tensor.shape) and "torch." + row["dtype"] == str(tensor.dtype) and row["bytes"] == tensor.nbytes, row
        assert listing["values"] == {"epoch": "3", "name": '"x\\n"'} and listing["bytes"] == sum(t.nbytes for t in weights().values())
        plain = self.run("show", self.folder / "x.pt")
        assert "weights/base" in plain and "[6, 4]" in plain and "10 tensors" in plain, plain

    def test_show_names_what_it_does_not_understand(self):
        torch.save({"net": torch.nn.Linear(1, 1), "w": torch.ones(1)}, self.folder / "x.pt")
        assert "<torch.nn.modules.linear.Linear>" in self.run("show", self.folder / "x.pt")
        assert "state_dict()" in self.run("convert", self.folder / "x.pt", self.folder / "y.pt", code=2)
        self.run("convert", self.folder / "x.pt", self.folder / "y.pt", "--leave-out")
        assert_equal(torch.load(self.folder / "y.pt", weights_only=True), {"w": torch.ones(1)})

    def test_mistakes(self):
        (self.folder / "x.txt").write_text("hello")
        assert "MU201" in self.run("show", self.folder / "x.txt", code=2)
        assert "MU200" in self.run("show", self.folder / "none.pt", code=2)
        assert "MU230" in self.run("convert", self.folder / "x.txt", self.folder / "y", "--to", "pickle", code=2)
        assert "MU006" in self.run("convert", self.folder / "x.txt", code=2)


if __name__ == "__main__":
    run_cases(Cases, sys.argv[1])
