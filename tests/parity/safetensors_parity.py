#!/usr/bin/env python3
"""Safetensors files go both ways between Muster and Python's package, byte for byte.

    safetensors_parity.py --program PATH

PATH is the program of tests/checkpoint/safetensors_program.cpp. Exit code 77 if the package is not installed.
"""
import argparse
import json
import subprocess
import sys

from cases import Skip, run_cases

try:
    import torch
    from safetensors import safe_open
    from safetensors.torch import load_file, load_model, save_file, save_model
except ImportError as error:
    print("0 passed, 0 failed, 1 skipped")
    print(f"skipped: {error}; install torch and safetensors beside {sys.executable}")
    sys.exit(77)


def every_dtype():
    generator = torch.Generator().manual_seed(3)
    random = lambda size: torch.randint(256, (5, 4 * size), dtype=torch.uint8, generator=generator)
    sizes = {"uint8": 1, "int8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8, "float16": 2, "bfloat16": 2,
             "float32": 4, "float64": 8, "complex64": 8, "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1,
             "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1, "float4_e2m1fn_x2": 1}
    tensors = {f"of {name}": random(size).view(getattr(torch, name)) for name, size in sizes.items()}
    tensors["of bool"] = torch.rand(7, generator=generator) > 0.5
    tensors |= {"scalar": torch.tensor(2.5), "empty": torch.empty(0, 3), "a\"\u00e9\n\x01/\\\x7f\u2028\U0001f600": torch.ones(1), "": torch.ones(2)}
    return tensors


def equal(one, other):
    bits = lambda tensor: tensor.contiguous().reshape(-1).view(torch.uint8)
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(bits(one), bits(other))


def assert_equal(found, wanted):
    assert sorted(found) == sorted(wanted), f"names: {sorted(found)} and {sorted(wanted)}"
    for name, tensor in wanted.items():
        assert equal(found[name], tensor), f"'{name}' differs"


def metadata_of(path):
    with safe_open(path, framework="pt") as file:
        return file.metadata()


class TiedNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(3, 4)
        self.embedding = torch.nn.Embedding(4, 3)
        with torch.no_grad():
            self.embedding.weight.copy_(torch.arange(12.0).view(4, 3))
            self.head.bias.fill_(0.5)
        self.head.weight = self.embedding.weight


class Cases:
    def __init__(self, program, folder):
        self.program, self.folder = program, folder

    def run(self, *words):
        outcome = subprocess.run([self.program, *map(str, words)], capture_output=True, text=True, timeout=120)
        assert outcome.returncode == 0, outcome.stderr
        return outcome

    def copied_equal_to_the_byte(self, command):
        theirs, ours = self.folder / "theirs", self.folder / "ours"
        save_file(every_dtype(), theirs, metadata={"format": "pt", "z": "\u00e9\"\n"})
        self.run(command, theirs, ours)
        assert_equal(load_file(ours), every_dtype())
        assert metadata_of(ours) == metadata_of(theirs)
        if theirs.read_bytes() != ours.read_bytes():  # their order of metadata is not fixed; ours is sorted
            save_file(every_dtype(), theirs)
            self.run(command, theirs, ours)
            assert theirs.read_bytes() == ours.read_bytes()

    def test_every_dtype_mapped(self):
        self.copied_equal_to_the_byte("copy")

    def test_every_dtype_read_into_tensors(self):
        self.copied_equal_to_the_byte("fill")

    def test_no_tensor(self):
        save_file({}, self.folder / "theirs")
        self.run("copy", self.folder / "theirs", self.folder / "ours")
        assert (self.folder / "ours").read_bytes() == (self.folder / "theirs").read_bytes()

    def test_our_shards_are_read_by_name(self):
        tensors = {f"layer{i}.weight": torch.rand(100 + i) for i in range(7)}
        save_file(tensors, self.folder / "all")
        self.run("shards", self.folder / "all", self.folder / "out", "1KB")
        index = json.loads((self.folder / "out/model.safetensors.index.json").read_text())
        assert index["metadata"]["total_size"] == sum(4 * tensor.numel() for tensor in tensors.values())
        found = {}
        for name, file in index["weight_map"].items():
            with safe_open(self.folder / "out" / file, framework="pt") as shard:
                found[name] = shard.get_tensor(name)
                assert shard.metadata() == {"format": "pt"}
        assert_equal(found, tensors)

    def test_shards_of_accelerate(self):
        try:
            from accelerate import Accelerator
        except ImportError as error:
            raise Skip(str(error))
        model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(5)])
        Accelerator(cpu=True).save_model(model, str(self.folder / "theirs"), max_shard_size=600)
        self.run("copy", self.folder / "theirs", self.folder / "one")
        assert_equal(load_file(self.folder / "one"), model.state_dict())
        # The same tensors, in the same order and at the same limit, give the same files.
        theirs = json.loads((self.folder / "theirs/model.safetensors.index.json").read_text())
        self.run("shards", self.folder / "one", self.folder / "ours", "600B")
        ours = json.loads((self.folder / "ours/model.safetensors.index.json").read_text())
        assert len(theirs["weight_map"]) == 10 and len(set(theirs["weight_map"].values())) > 1
        assert ours["weight_map"].keys() == theirs["weight_map"].keys()
        assert ours["metadata"]["total_size"] == theirs["metadata"]["total_size"]
        assert len(set(ours["weight_map"].values())) == len(set(theirs["weight_map"].values()))

    def test_our_tied_model_is_theirs_to_the_byte(self):
        self.run("tied", self.folder / "ours")
        save_model(TiedNet(), str(self.folder / "theirs"), metadata={"format": "pt"})
        found, wanted = load_file(self.folder / "ours"), load_file(self.folder / "theirs")
        assert_equal(found, wanted)
        assert metadata_of(self.folder / "ours") == metadata_of(self.folder / "theirs")
        model = TiedNet()
        torch.nn.init.zeros_(model.embedding.weight)
        load_model(model, str(self.folder / "ours"))
        assert_equal(model.state_dict(), TiedNet().state_dict())

    def test_their_tied_model_is_restored(self):
        save_model(TiedNet(), str(self.folder / "theirs"))
        self.run("untie", self.folder / "theirs", self.folder / "state")
        assert_equal(load_file(self.folder / "state"), TiedNet().state_dict())

    def test_files_refused_by_them_are_refused_by_us(self):
        save_file({"a": torch.ones(4), "b": torch.ones(3)}, self.folder / "good")
        good = (self.folder / "good").read_bytes()
        bad = {"empty": b"", "cut": good[:-1], "longer": good + b"x", "huge": b"\xff" * 8 + good[8:], "hole": good.replace(b"[0,16]", b"[0,12]"),
               "type": good.replace(b'"F32"', b'"X32"'), "utf-8": good.replace(b'"a"', b'"\xff"')}
        for name, text in bad.items():
            (self.folder / "bad").write_bytes(text)
            outcome = subprocess.run([self.program, "copy", self.folder / "bad", self.folder / "out"], capture_output=True, text=True)
            assert outcome.returncode == 3 and "MU201" in outcome.stderr, f"{name}: {outcome}"
            try:
                load_file(self.folder / "bad")
            except Exception:
                continue
            raise AssertionError(f"{name} is taken by the package")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    run_cases(Cases, parser.parse_args().program)
