"""The job that Python and Muster trade in job_parity.py and in tests/howto/python_test.py: a net, its data, and how it trains."""
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Linear(16, 2)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.body(x))))


def wave(rows, columns, shift):
    return torch.sin(torch.arange(rows * columns, dtype=torch.float64) * 0.37 + shift).view(rows, columns).float()


def train(net, optimizer, first, steps):
    losses = []
    for step in range(first, first + steps):
        optimizer.zero_grad()
        loss = (net(wave(10, 6, step)) - wave(10, 2, step + 0.5)).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def resumed(path):
    saved = torch.load(path, weights_only=True)
    net = Net()
    net.load_state_dict(saved["model"])
    optimizer = torch.optim.AdamW(net.parameters(), lr=1)
    optimizer.load_state_dict(saved["optimizer"])
    return net, optimizer
