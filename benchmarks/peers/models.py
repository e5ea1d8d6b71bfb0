"""The models of the ddp benchmark, as in models.h: the same operators, names and order of construction."""
import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY, CONTEXT, WIDTH, LAYERS, HEADS = 8192, 256, 256, 6, 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(a)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """9.0 million parameters. Takes tokens [batch, length + 1] and returns the loss of guessing each next token."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, text):
        given, wanted = text[:, :-1], text[:, 1:]
        x = self.tokens(given) + self.positions(torch.arange(given.shape[1]))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).view(-1, VOCABULARY), wanted.reshape(-1))


class Wide(nn.Module):
    """Layers of 2048 x 2048: 4.2 million parameters each and little arithmetic, so communication counts."""

    def __init__(self, count=4):
        super().__init__()
        self.layers = nn.Sequential(*[layer for _ in range(count) for layer in (nn.Linear(2048, 2048), nn.ReLU())])

    def forward(self, x):
        return self.layers(x).square().mean()


def model_and_input(name, rank):
    torch.manual_seed(0)
    model = {"gpt-9m": GPT, "wide-mlp": Wide, "deep-mlp": lambda: Wide(16)}[name]()
    torch.manual_seed(100 + rank)
    return model, torch.randint(0, VOCABULARY, (4, CONTEXT + 1)) if name == "gpt-9m" else torch.randn(32, 2048)
