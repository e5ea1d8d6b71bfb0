"""Writes python_names.json: names, shapes and dtypes of state_dict() of modules that state_dict_test.cpp builds too.

usage: python_names.py [FILE]
"""
import json
import pathlib
import sys

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, inputs, planes, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = None
        if stride != 1 or inputs != planes:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, planes, 1, stride, bias=False), nn.BatchNorm2d(planes))


class ResNet18(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        inputs = 64
        for number, planes in enumerate((64, 128, 256, 512), 1):
            setattr(self, f"layer{number}", nn.Sequential(Block(inputs, planes, 1 if number == 1 else 2), Block(planes, planes, 1)))
            inputs = planes
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(512, 1000)


def modules():
    layer = nn.TransformerEncoderLayer(16, 4, 32)
    return {
        "resnet18": ResNet18(),
        "transformer": nn.Transformer(16, 4, 2, 2, 32),
        "encoder": nn.TransformerEncoder(layer, 3, nn.LayerNorm(16)),
        "decoder layer": nn.TransformerDecoderLayer(16, 4, 32),
        "attention": nn.MultiheadAttention(16, 4),
        "attention of other sizes": nn.MultiheadAttention(16, 4, kdim=8, vdim=12, add_bias_kv=True),
        "lstm": nn.LSTM(5, 7, 2, bidirectional=True),
        "projected lstm": nn.LSTM(5, 7, proj_size=3),
        "gru": nn.GRU(5, 7, bias=False),
        "rnn": nn.RNN(5, 7),
        "lstm cell": nn.LSTMCell(5, 7),
        "gru cell": nn.GRUCell(5, 7),
        "embedding": nn.Embedding(10, 4, padding_idx=0),
        "embedding bag": nn.EmbeddingBag(10, 4),
        "layer norm": nn.LayerNorm([3, 4]),
        "group norm": nn.GroupNorm(2, 4),
        "batch norm": nn.BatchNorm1d(4),
        "batch norm untracked": nn.BatchNorm1d(4, track_running_stats=False),
        "instance norm": nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
        "transposed convolution": nn.ConvTranspose2d(3, 4, 2),
        "bilinear": nn.Bilinear(2, 3, 4),
        "prelu": nn.PReLU(3),
        "adaptive softmax": nn.AdaptiveLogSoftmaxWithLoss(32, 20, [5, 10]),
        "weighted loss": nn.CrossEntropyLoss(weight=torch.ones(3)),
        "weighted binary loss": nn.BCEWithLogitsLoss(weight=torch.ones(2), pos_weight=torch.ones(3)),
        "list": nn.ModuleList([nn.Linear(1, 2), nn.Linear(2, 1)]),
        "parameter list": nn.ParameterList([torch.ones(2), torch.ones(3)]),
        "parameter dict": nn.ParameterDict({"a": nn.Parameter(torch.ones(2)), "b": nn.Parameter(torch.ones(3))}),
        "module dict": nn.ModuleDict({"a": nn.Linear(1, 2), "b": nn.PReLU()}),
    }


def main(path):
    rows = {name: [[key, list(value.shape), str(value.dtype)[6:]] for key, value in module.state_dict().items()] for name, module in modules().items()}
    body = ",\n".join(f"{json.dumps(name)}: {json.dumps(keys)}" for name, keys in rows.items())
    path.write_text("{\n" + body + "\n}\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).with_suffix(".json"))
