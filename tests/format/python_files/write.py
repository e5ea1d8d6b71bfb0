"""Writes the files of this folder, which the tests of the format read: torch.save's, new and old.

usage: write.py [FOLDER]
"""
import collections
import pathlib
import sys

import numpy
import torch


def everything():
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


def main(folder):
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
