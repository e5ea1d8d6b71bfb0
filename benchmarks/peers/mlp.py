"""The models of the step and trainer benchmarks, and their batches, as in mlp.h."""
import torch
from torch import nn


def make_mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))


def make_one_layer():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 10))


def make_batches(count):
    torch.manual_seed(1)
    return [(torch.randn(32, 64), torch.randint(0, 10, (32,))) for _ in range(count)]
