"""Writes the files of this folder, which the tests of the format read: torch.save's, new and old.

usage: write.py [FOLDER]
"""
import argparse
import collections
import enum
import functools
import pathlib
import sys
from typing import Dict, List, NamedTuple, Optional, Tuple

import torch


def everything():
    import numpy

    base = torch.arange(12, dtype=torch.float32).view(3, 4)
    tied = torch.nn.Parameter(torch.full((2,), 0.5))
    state = collections.OrderedDict(weight=base, transposed=base.t(), row=base[1], every_second=base[:, ::2], tied=tied, again=tied)
    state._metadata = collections.OrderedDict({"": {"version": 1}})
    return {
        "state_dict": state, "scalar": torch.tensor(7), "half": torch.ones(2, dtype=torch.bfloat16), "empty": torch.empty(0, 3),
        "expanded": torch.ones(1).expand(5), "epoch": 3, "negative": -70000, "large": 2**62, "rate": 0.1, "nothing": None, "yes": True,
        "no": False, "text": "\u00e9\U0001f600", "bytes": b"\x00\xff", "tuple": (1, (2, "x"), ()), "list": [1, [2.5], {}], "set": {4},
        "size": base.size(), "dtype": torch.float16, "device": torch.device("cuda:1"), "numpy": numpy.float64(1.5), "numpy int": numpy.int32(-4),
        "counter": collections.Counter("aab"), "optimizer": {"state": {0: {"step": torch.tensor(2.0)}, 1: {}}, "param_groups": [{"lr": 0.1, "betas": (0.9, 0.99), "params": [0, 1]}]},
    }


class Foreign:
    pass


class Words(list):
    pass


class Kind(enum.Enum):
    GRU = 1
    LSTM = 2


Pair = NamedTuple("Pair", [("size", int), ("point", torch.Tensor)])


class Empty(torch.nn.Module):
    def forward(self, x):
        return x


class Part(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.name, self.lin = "part", torch.nn.Linear(3, 2)

    def forward(self, x):
        return self.lin(x) + len(self.name)


class Scripted(torch.nn.Module):
    """One attribute of each kind that TorchScript knows, among weights."""

    nothing: Optional[torch.Tensor]
    sizes: List[int]
    names: List[str]
    tensors: List[torch.Tensor]
    table: Dict[str, int]
    points: Dict[int, torch.Tensor]
    mixed: Tuple[int, str, torch.Tensor]
    pair: Pair

    def __init__(self):
        super().__init__()
        self.kind, self.deep, self.rate, self.phase, self.enumerated = "rnn", True, 0.5, 1 + 2j, Kind.GRU
        self.device, self.dtype, self.nothing, self.sizes, self.names = torch.device("cpu"), torch.float16, None, [1, 2], ["a"]
        self.tensors, self.table, self.points = [torch.ones(1)], {"a": 1}, {7: torch.ones(1)}
        self.mixed, self.pair = (1, "x", torch.ones(1)), Pair(3, torch.ones(2))
        self.part, self.empty = Part(), Empty()
        self.scale = torch.nn.Parameter(torch.tensor(0.5))
        self.register_buffer("mean", torch.full((2,), 0.25))

    def forward(self, x):
        if self.enumerated == Kind.GRU and self.deep and self.nothing is None:
            x = x + self.rate + abs(self.phase) + self.sizes[0] + self.table["a"] + len(self.names[0]) + len(self.kind) + self.pair.size
        return self.empty(self.part(x)) * self.scale + self.mean + self.tensors[0] + self.points[7] + self.mixed[2] + self.pair.point


def scripted():
    module = torch.jit.script(Scripted())
    with torch.no_grad():
        module.part.lin.weight.copy_(torch.arange(6.0).view(2, 3))
        module.part.lin.bias.fill_(-1)
    return module


def lightning_with_objects():
    """What Lightning saves of a module that Hydra made."""
    current = {"ready": 2, "started": 2, "processed": 2, "completed": 2}
    given = {"rate": 0.25, "width": 3, "optimizer": functools.partial(torch.optim.SGD, lr=0.1), "folder": pathlib.PurePosixPath("data"), "config": Foreign(),
             "recent": collections.deque([1, 2]), "words": Words(["a"]), "kind": Kind.LSTM, "layers": {"size": 4, "make": torch.nn.Linear}, "shares": {0.5: "half"}}
    return {"epoch": 1, "global_step": 6, "pytorch-lightning_version": "2.6.6", "state_dict": collections.OrderedDict(w=torch.tensor(-0.5)),
            "loops": {"fit_loop": {"epoch_progress": {"total": current, "current": current}}}, "callbacks": {"Timer": Foreign()},
            "optimizer_states": [], "lr_schedulers": [], "hparams_name": "kwargs", "hyper_parameters": given}


def script_with_arguments(weight):
    """What a training script saves beside its weights."""
    weights = {"weight": weight, "bias": torch.full((2,), -1.0)}
    return {"model": weights, "args": argparse.Namespace(lr=0.1, out=pathlib.PurePosixPath("out")), "epoch": 3}


def main(folder):
    torch.jit.save(scripted(), str(folder / "scripted.pt"))
    torch.save(lightning_with_objects(), folder / "objects.ckpt")
    torch.jit.save(torch.jit.freeze(torch.jit.script(Part().eval())), str(folder / "frozen.pt"))
    weight = torch.arange(6.0).view(2, 3)
    torch.save(script_with_arguments(weight), folder / "arguments.pt")
    torch.save(script_with_arguments(weight.to_sparse()), folder / "sparse.pt")
    import numpy

    torch.save(everything(), folder / "zip.pt")
    torch.save(everything(), folder / "legacy.pt", _use_new_zipfile_serialization=False)
    torch.save(everything(), folder / "protocol4.pt", pickle_protocol=4)
    new = {"u16": torch.tensor([1, 65535], dtype=torch.uint16), "f8": torch.ones(3).to(torch.float8_e4m3fn), "lazy": torch.ones(2, dtype=torch.complex64).conj()}
    torch.save(new, folder / "new_dtypes.pt")
    foreign = {"model": {"w": torch.ones(2)}, "config": Foreign(), "sparse": torch.ones(2).to_sparse(), "quantized": torch.quantize_per_tensor(torch.ones(2), 0.5, 0, torch.qint8),
               "array": numpy.ones(2), "huge": 2**70, "function": print}
    torch.save(foreign, folder / "foreign.pt")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent))
