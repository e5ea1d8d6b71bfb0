"""Files of torch.save go both ways between Python and Muster: values, dtypes, sharing, and training that continues.

usage: python_files.py PROGRAM
"""
import collections
import subprocess
import sys

from cases import run_cases

try:
    import torch
    from torch import nn
except ImportError as error:
    print(f"python_files: skipped: {error}")
    print("0 passed, 0 failed, 1 skipped")
    sys.exit(77)

STEPS_BEFORE, STEPS_AFTER, TOLERANCE = 4, 3, 1e-6
DTYPES = ["uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex32", "complex64", "complex128", "bool", "bfloat16",
          "float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz", "uint16", "uint32", "uint64", "float8_e8m0fnu", "float4_e2m1fn_x2"]
RULES = {
    "SGD": lambda groups: torch.optim.SGD(groups(0.05), momentum=0.9, nesterov=True, lr=0.05),
    "Adam": lambda groups: torch.optim.Adam(groups(0.01), amsgrad=True),
    "AdamW": lambda groups: torch.optim.AdamW(groups(0.01), weight_decay=0.1),
    "AdamW fused": lambda groups: torch.optim.AdamW(groups(0.01), weight_decay=0.1, fused=True),
    "Adagrad": lambda groups: torch.optim.Adagrad(groups(0.05), lr_decay=0.1),
    "RMSprop": lambda groups: torch.optim.RMSprop(groups(0.01), momentum=0.5, centered=True),
    "LBFGS": lambda groups: torch.optim.LBFGS(groups(None), lr=0.5, max_iter=3, history_size=4),
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(6, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.norm(self.layer(self.embed(x).unsqueeze(0)).squeeze(0)))


def optimizer_of(rule, net):
    matrices = [p for p in net.parameters() if p.dim() > 1]
    vectors = [p for p in net.parameters() if p.dim() == 1]
    both = lambda lr: list(net.parameters()) if lr is None else [{"params": matrices, "lr": lr}, {"params": vectors, "lr": lr / 2}]
    return RULES[rule](both)


def wave(rows, columns, shift):
    return torch.sin(torch.arange(rows * columns, dtype=torch.float64) * 0.37 + shift).view(rows, columns).float()


def train(net, optimizer, first, steps):
    """The loss before each step."""
    losses = []
    for step in range(first, first + steps):
        x, y, seen = wave(10, 6, step), wave(10, 2, step + 0.5), []

        def closure():
            optimizer.zero_grad()
            loss = (net(x) - y).pow(2).mean()
            loss.backward()
            seen.append(loss.item())
            return loss

        optimizer.step(closure)
        losses.append(seen[0])
    return losses


def bits(tensor):
    return tensor.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def assert_same(found, wanted, place=""):
    if isinstance(wanted, torch.Tensor):
        assert found.dtype == wanted.dtype and found.shape == wanted.shape, f"{place}: {found.dtype} {found.shape}"
        assert torch.equal(bits(found), bits(wanted)), f"{place} differs"
    elif isinstance(wanted, dict):
        assert list(found) == list(wanted), f"{place}: {list(found)}"
        for key in wanted:
            assert_same(found[key], wanted[key], f"{place}/{key}")
    elif isinstance(wanted, (list, tuple)):
        assert type(found) is type(wanted) and len(found) == len(wanted), f"{place}: {found}"
        for i, (a, b) in enumerate(zip(found, wanted)):
            assert_same(a, b, f"{place}/{i}")
    else:
        assert type(found) is type(wanted) and found == wanted, f"{place}: {found!r}, not {wanted!r}"


class Cases:
    def __init__(self, program, folder):
        self.program, self.folder = program, folder

    def run(self, *words):
        outcome = subprocess.run([self.program, *map(str, words)], capture_output=True, text=True, timeout=120)
        assert outcome.returncode == 0, outcome.stderr
        return [float(word) for word in outcome.stdout.split()]

    def copied(self, value, **how):
        torch.save(value, self.folder / "theirs.pt", **how)
        self.run("copy", self.folder / "theirs.pt", self.folder / "ours.pt")
        return torch.load(self.folder / "ours.pt", weights_only=True)

    def both_ways(self, value):
        for how in ({}, {"_use_new_zipfile_serialization": False}, {"pickle_protocol": 4}):
            assert_same(self.copied(value, **how), value)

    def test_every_dtype(self):
        generator = torch.Generator().manual_seed(3)
        value = {}
        for name in DTYPES:
            dtype = getattr(torch, name)
            raw = torch.randint(256, (3, 4 * dtype.itemsize), dtype=torch.uint8, generator=generator)
            value[name] = raw[:, :4] > 127 if dtype == torch.bool else raw.view(dtype)
        self.both_ways(value)

    def test_values_of_all_kinds(self):
        self.both_ways({"none": None, "yes": True, "large": 2**62, "small": -1, "middle": 40000, "rate": 0.1, "nan": "\u00e9\U0001f600", "list": [1, [2, {}], []],
                        "indices": {0: {"a": 1}, 11: 2, -3: 1}, "betas": (0.9, 0.999), "empty": torch.empty(0, 3), "scalar": torch.tensor(1.5),
                        "ordered": dict(a=1), "bytes": b"\x00\xff\xfe"})

    def test_ordered_dictionaries_and_parameters(self):
        module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
        assert_same(self.copied(module.state_dict()), dict(module.state_dict()))
        assert_same(self.copied(dict(module.named_parameters())), {name: p.detach() for name, p in module.named_parameters()})
        assert_same(self.copied(collections.OrderedDict(a=1)), {"a": 1})

    def test_views_and_shared_storages(self):
        base = torch.arange(24.0).view(4, 6)
        value = {"base": base, "transposed": base.t(), "row": base[2], "strided": base[::2, 1::3], "again": base, "wide": torch.ones(1).expand(1000)}
        found = self.copied(value)
        assert_same(found, value)
        assert (self.folder / "ours.pt").stat().st_size < 3500
        found["base"].fill_(5)
        assert all((found[name] == 5).all() for name in ("transposed", "row", "strided", "again"))
        assert found["transposed"].stride() == base.t().stride() and found["wide"].stride() == (0,)

    def test_views_of_different_types(self):
        module = nn.Linear(2, 3)
        self.run("start", "SGD", self.start("SGD", 0), self.folder / "x.pt")
        found = torch.load(self.folder / "x.pt", weights_only=True, mmap=True)
        assert found["step"] == STEPS_BEFORE and list(found["model"]) == list(Net().state_dict()), module

    def test_python_can_map_what_we_write(self):
        value = {"a": torch.arange(1000.0), "b": torch.ones(3, dtype=torch.bfloat16)}
        self.copied(value)
        assert_same(torch.load(self.folder / "ours.pt", mmap=True, weights_only=True), value)
        import zipfile
        assert zipfile.ZipFile(self.folder / "ours.pt").testzip() is None

    def start(self, rule, steps):
        torch.manual_seed(5)
        net = Net()
        optimizer = optimizer_of(rule, net)
        train(net, optimizer, 0, steps)
        torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": steps}, self.folder / "start.pt")
        self.net, self.optimizer = net, optimizer
        return self.folder / "start.pt"

    def close(self, ours, theirs):
        assert len(ours) == len(theirs) == STEPS_AFTER and max(abs(a - b) for a, b in zip(ours, theirs)) <= TOLERANCE, f"{ours} and {theirs}"
        assert abs(theirs[0] - theirs[-1]) > 1e-4, "the losses hardly change, so they show nothing"

    def theirs_continued_by_us(self, rule):
        path = self.start(rule, STEPS_BEFORE)
        self.close(self.run("continue", rule, path), train(self.net, self.optimizer, STEPS_BEFORE, STEPS_AFTER))

    def ours_continued_by_them(self, rule):
        ours = self.run("start", rule, self.start(rule, 0), self.folder / "ours.pt")
        saved = torch.load(self.folder / "ours.pt", weights_only=True)
        net = Net()
        net.load_state_dict(saved["model"])
        optimizer = optimizer_of(rule, net)
        fresh = optimizer.state_dict()["param_groups"][0]
        optimizer.load_state_dict(saved["optimizer"])
        assert set(saved["optimizer"]["param_groups"][0]) >= set(fresh) - {"fused", "decoupled_weight_decay"}, "options are missing"
        self.close(ours, train(net, optimizer, STEPS_BEFORE, STEPS_AFTER))


for rule in RULES:
    setattr(Cases, f"test_{rule.replace(' ', '_')}_of_theirs_continued_by_us", lambda self, rule=rule: self.theirs_continued_by_us(rule))
    setattr(Cases, f"test_{rule.replace(' ', '_')}_of_ours_continued_by_them", lambda self, rule=rule: self.ours_continued_by_them(rule))


if __name__ == "__main__":
    run_cases(Cases, sys.argv[1])
