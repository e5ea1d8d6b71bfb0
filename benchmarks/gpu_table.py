"""The cases that are measured where a GPU is, for run.py: `make bench-gpu`. On the CPU the same programs run with tiny models, to be tried."""
import dataclasses

from table import Case, Contender, peer

# One core computes, autograd has a thread for the device, and loaders and writers have theirs.
THREADS = 4
# Kernels differ by how they are called, and bf16 has eight bits; Python and C++ have the same weights and batches.
TOLERANCE = 0.02
RIVALS = {"accelerator": "accelerate", "fabric": "fabric", "trainer": "fabric"}
PACKAGES = {"accelerate": "accelerate", "fabric": "lightning"}


class Programs:
    """How contenders are started on a device."""

    def __init__(self, build, device):
        self.build, self.words = build, [device] + (["tiny"] if device == "cpu" else [])
        self.counter = str(build / "benchmarks" / "libbench_host_waits.so")

    def ours(self, program, case, *before):
        return Contender([str(self.build / "benchmarks" / program), *before, *self.words], case)

    def python(self, script, case, *before, **more):
        return Contender(peer(script, *before, *self.words), case, **more)

    def step(self, model, way):
        return self.ours("gpu_step_bench", f"{model} {way}")

    def step_peer(self, model, way):
        return self.python("gpu_step_peer", f"{model} {way}", package=PACKAGES.get(way, "torch"))

    def counted(self, contender):
        return dataclasses.replace(contender, case=f"waits {contender.case}", needs=(self.counter,), variables={"LD_PRELOAD": self.counter})


def step_cases(programs):
    for model in ("mlp", "gpt"):
        for api, rival in RIVALS.items():
            contenders = {"muster": programs.step(model, api), rival: programs.step_peer(model, rival), "pytorch": programs.step_peer(model, "raw")}
            yield Case("gpu-step", f"{model} {api}", "us/step", contenders)
            yield Case("gpu-waits", f"{model} {api}", "waits/step", {name: programs.counted(one) for name, one in contenders.items()}, rounds=3)


def fsdp_cases(programs):
    """Parameters sharded over a world of one and used in bf16. The peer has a communicator of NCCL; in a world of one ours has none."""
    yield Case("gpu-fsdp", "gpt in a world of one", "us/step", {"muster": programs.step("gpt", "fsdp"), "fully_shard": programs.step_peer("gpt", "fully_shard")})


def recompute_cases(programs):
    """Activations of blocks that are made again."""
    yield Case("gpu-recompute", "gpt", "us/step", {"muster": programs.step("gpt", "recompute"), "checkpoint": programs.step_peer("gpt", "checkpoint"),
                                                   "all kept": programs.step("gpt", "accelerator")}, floors={"checkpoint": 1.0})


def norm_cases(programs):
    """What clipping by a norm without rounding costs of a step."""
    for model in ("mlp", "gpt"):
        yield Case("gpu-norm", f"{model} exact norm", "us/step",
                   {"muster": programs.step(model, "exact"), "plain norm": programs.step(model, "plain"), "no norm": programs.step(model, "unclipped")},
                   floors={"plain norm": 0.98})


def loader_cases(programs):
    """Samples until they are on the device."""
    workers = lambda who, words: tuple(f"{who} {words} {count}" for count in ((1,) if "tiny" in programs.words else (0, 1, 2, 4)))
    choose = lambda contender, variants: dataclasses.replace(contender, case="", variants=variants)
    for words in ("images", "tokens"):
        yield Case("gpu-loader", words, "samples/s",
                   {"muster": choose(programs.ours("data_bench", ""), workers("place", words)),
                    "pytorch": choose(programs.python("data_peer", ""), workers("batch", words))}, lower_is_better=False)


def checkpoint_cases(programs):
    """512 MiB on the device. An asynchronous save has stalled training until host and device go on."""
    folder = str(programs.build / "bench" / "gpu-checkpoints")
    dcp = lambda: programs.python("checkpoint_peer", "", folder, "dcp")
    yield Case("gpu-checkpoint", "save", "ms", {
        "muster": programs.ours("checkpoint_bench", "save", folder), "dcp.save": dataclasses.replace(dcp(), case="save"),
        "torch.save": programs.python("checkpoint_peer", "save", folder, "torch"),
        "safetensors": programs.python("checkpoint_peer", "save", folder, "safetensors", package="safetensors")})
    yield Case("gpu-checkpoint", "async", "ms", {
        "muster": programs.ours("checkpoint_bench", "async", folder),
        "dcp.async_save": dataclasses.replace(dcp(), case="", variants=("async plain", "async cached", "async staged"))})


def cases(build, device):
    """`device`: "cuda", or "cpu": tiny models and one round."""
    programs = Programs(build, device)
    groups = (step_cases, fsdp_cases, recompute_cases, norm_cases, loader_cases, checkpoint_cases)
    threads, rounds = (1, {"rounds": 1}) if device == "cpu" else (THREADS, {})
    return [dataclasses.replace(case, threads=threads, tolerance=TOLERANCE, **rounds) for group in groups for case in group(programs)]
