"""The models of the benchmarks of training, as in models.h: the same operators, names and order of construction."""
import dataclasses

import torch
from torch import nn
from torch.nn import functional as F


@dataclasses.dataclass(frozen=True)
class GPTShape:
    vocabulary: int
    context: int
    width: int
    layers: int
    heads: int
    tied: bool = False   # the head has the weights of the tokens' embedding


GPT_9M, GPT_124M, TINY_GPT = GPTShape(8192, 256, 256, 6, 8), GPTShape(50304, 1024, 768, 12, 12, True), GPTShape(512, 32, 64, 2, 4, True)
GPT_512 = GPTShape(8192, 256, 512, 6, 8)


class Block(nn.Module):
    def __init__(self, shape):
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(a)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Takes tokens [batch, length + 1] and returns the loss of guessing each next token."""

    def __init__(self, shape=GPT_9M):
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = None if shape.tied else nn.Linear(shape.width, shape.vocabulary, bias=False)

    def forward(self, text):
        given, wanted = text[:, :-1], text[:, 1:]
        x = self.tokens(given) + self.positions(torch.arange(given.shape[1], device=given.device))
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        x = self.head(x) if self.head else F.linear(x, self.tokens.weight)
        return F.cross_entropy(x.flatten(0, 1), wanted.reshape(-1))


class Wide(nn.Module):
    """Layers of 2048 x 2048: 4.2 million parameters each and little arithmetic, so communication counts."""

    def __init__(self, count=4):
        super().__init__()
        self.layers = nn.Sequential(*[layer for _ in range(count) for layer in (nn.Linear(2048, 2048), nn.ReLU())])

    def forward(self, x):
        return self.layers(x).square().mean()


def make_text(shape, batch):
    return torch.randint(0, shape.vocabulary, (batch, shape.context + 1))


def model_and_input(name, rank):
    torch.manual_seed(0)
    model = {"gpt-9m": GPT, "wide-mlp": Wide, "deep-mlp": lambda: Wide(16)}[name]()
    torch.manual_seed(100 + rank)
    return model, make_text(GPT_9M, 4) if name == "gpt-9m" else torch.randn(32, 2048)
