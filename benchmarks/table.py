"""Every case of every benchmark: who runs, how, and in which unit. Ours stands first among a case's contenders."""
import dataclasses
import pathlib
import sys

HERE = pathlib.Path(__file__).parent


@dataclasses.dataclass
class Contender:
    command: list
    case: str = ""            # what it is asked for; the case's name if empty
    variants: tuple = ()      # or several: each is tried before the rounds, and the best one runs in them


@dataclasses.dataclass
class Case:
    benchmark: str
    name: str
    unit: str
    contenders: dict
    lower_is_better: bool = True
    ranks: int = 1
    rounds: int = 0       # 0: as many as the command line says
    threads: int = 1      # per rank
    tolerance: float = 1e-4
    whole: bool = False   # measured from exec on, by a process of its own each time

    def variants(self, contender):
        return self.contenders[contender].variants or (self.contenders[contender].case or self.name,)


def peer(script, *arguments):
    return [sys.executable, "-u", str(HERE / "peers" / f"{script}.py"), *arguments]


def step_cases(programs):
    ours = [str(programs / "step_bench")]
    for optimizer in ("adamw", "sgd"):
        for door in ("accelerator", "fabric"):
            rival = {"accelerator": "accelerate", "fabric": "fabric"}[door]
            yield Case("step", f"{optimizer} {door}", "us/step",
                       {"muster": Contender(ours), rival: Contender(peer("step_peer"), f"{optimizer} {rival}"),
                        "pytorch": Contender(peer("step_peer"), f"{optimizer} raw")})
        yield Case("step", f"{optimizer} raw", "us/step",
                   {"libtorch": Contender(ours, f"{optimizer} fused"), "pytorch": Contender(peer("step_peer"), f"{optimizer} raw"),
                    "torch::optim": Contender(ours, f"{optimizer} raw")})


def ddp_cases(programs):
    for model in ("gpt-9m", "wide-mlp"):
        yield Case("ddp", model, "ms/step",
                   {"muster": Contender([str(programs / "ddp_bench"), model]), "pytorch-ddp": Contender(peer("sharded_peer", "DistributedDataParallel", model))}, ranks=2)


def sharded(programs, strategy, model, rival, **variants):
    ours = Contender([str(programs / "sharded_bench"), strategy, model])
    return {"muster": ours, rival: Contender(peer("sharded_peer", rival, model), **variants)}


def fsdp_cases(programs):
    for model in ("gpt-9m", "wide-mlp"):
        yield Case("fsdp", model, "ms/step", sharded(programs, "fsdp", model, "fully_shard"), ranks=2)


def zero1_cases(programs):
    for model in ("gpt-9m", "wide-mlp"):
        yield Case("zero1", model, "ms/step", sharded(programs, "zero1", model, "ZeroRedundancyOptimizer"), ranks=2)


def memory_cases(programs):
    """The peak of a rank's memory in a step, less what it held before there was a model. One round: it is the same in each."""
    for strategy, rival in (("ddp", "DistributedDataParallel"), ("zero1", "ZeroRedundancyOptimizer"), ("fsdp", "fully_shard")):
        contenders = sharded(programs, strategy, "deep-mlp", rival)
        contenders["formula"] = dataclasses.replace(contenders["muster"], case=f"formula {strategy}")
        yield Case("memory", f"memory {strategy}", "MiB", contenders, ranks=2, rounds=1)


def hooks_cases(programs):
    """Hooks change gradients a little, so losses agree only roughly.

    The gradients of the wide model's layers are sums of 64 outer products (32 rows of the batch on each of two ranks): so many
    columns hold all of them, and fewer let its loss, which goes to zero, depart by far more than a little.
    """
    for model, columns in (("gpt-9m", 1), ("wide-mlp", 64)):
        for what, unit in (("bytes", "MB/step"), ("time", "ms/step")):
            program = lambda hook: Contender([str(programs / "hooks_bench"), model, hook, str(columns)], f"{model} {what}")
            for hook in ("bf16", "powersgd"):
                yield Case("hooks", f"{model} {hook} {what}", unit, {f"muster {hook}": program(hook), "no hook": program("none")},
                           ranks=2, tolerance=0.02)


def accumulate_cases(programs):
    for model in ("gpt-9m", "wide-mlp"):
        yield Case("accumulate", model, "ms/window", {"muster": Contender([str(programs / "accumulate_bench"), model]),
                                                      "pytorch-ddp": Contender(peer("accumulate_peer", model))}, ranks=2)


def launch_cases(programs):
    binaries = pathlib.Path(sys.executable).parent
    program = lambda name: str(HERE / "peers" / f"{name}.py")
    yield Case("launch", "first step of two ranks", "s", {
        "muster": Contender([str(programs.parent / "bin" / "muster"), "run", "--devices", "2", str(programs / "launch_bench")]),
        "torchrun": Contender([str(binaries / "torchrun"), "--nproc-per-node", "2", program("launch_torchrun")]),
        "accelerate": Contender([str(binaries / "accelerate"), "launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
                                 "--mixed_precision", "no", "--dynamo_backend", "no", program("launch_accelerate")]),
        "fabric": Contender([sys.executable, program("launch_fabric")])}, ranks=2, whole=True)


def optim_cases(programs):
    ours = [str(programs / "optim_bench")]
    for size in ("67M in 4", "11.6M in 146", "0.42M in 100"):
        yield Case("optim", size, "ms/step", {"muster": Contender(ours, f"muster {size}"), "torch::optim": Contender(ours, f"torch {size}")})


def data_cases(programs):
    ours = [str(programs / "data_bench")]
    setup = {"lower_is_better": False, "threads": 2, "tolerance": 1e-9}
    workers = lambda words: tuple(f"{words} {count}" for count in (0, 1, 2))
    for workload in ("images", "tokens"):
        rivals = {"torch::data": Contender(ours, variants=workers(f"torch {workload}")),
                  "pytorch": Contender(peer("data_peer"), variants=workers(workload))}
        yield Case("data", f"{workload} per sample", "samples/s", {"muster": Contender(ours, variants=workers(f"get {workload}")), **rivals}, **setup)
        yield Case("data", f"{workload} in place", "samples/s", {"muster": Contender(ours, variants=workers(f"place {workload}")), **rivals}, **setup)
        for count in (1, 2):
            yield Case("data", f"{workload} per sample on {count} threads", "samples/s",
                       {"muster": Contender(ours, f"get {workload} {count}"), "get-only loop": Contender(ours, f"loop {workload} {count}")}, **setup)


def resume_cases(programs):
    for samples in (1_000, 1_000_000):
        yield Case("resume", f"{samples}", "ms", {"muster": Contender([str(programs / "resume_bench")]), "accelerate": Contender(peer("resume_peer"))})


def safetensors_cases(programs):
    folder = str(programs.parent / "bench" / "files")
    for case in ("save", "save durable", "load", "load mapped"):
        yield Case("safetensors", case, "ms", {"muster": Contender([str(programs / "safetensors_bench"), folder]),
                                               "safetensors": Contender(peer("safetensors_peer", folder))})


def checkpoint_cases(programs):
    """Durability none, unless the case says durable. No peer checks what it loads: "load unchecked" is the same work, "load" checks every byte first."""
    folder = str(programs.parent / "bench" / "checkpoints")
    ours = [str(programs / "checkpoint_bench"), folder]
    python = lambda kind: peer("checkpoint_peer", folder, kind)
    rivals = {name: Contender(python(kind)) for name, kind in (("safetensors", "safetensors"), ("torch.save", "torch"), ("dcp.save", "dcp"))}
    for case, raw in (("save", "raw"), ("save durable", "raw durable")):
        yield Case("checkpoint", case, "ms", {"muster": Contender(ours), "raw write": Contender(ours, raw),
                                              "raw write into reserved room": Contender(ours, raw.replace("raw", "raw reserved")), **rivals})
    yield Case("checkpoint", "save by two ranks", "ms", {"muster": Contender(ours), "dcp.save": Contender(python("dcp"))}, ranks=2)
    yield Case("checkpoint", "async", "ms", {"muster": Contender(ours), "memory copy": Contender(ours, "copy"),
                                             "dcp.async_save": Contender(python("dcp"), variants=("async plain", "async cached", "async staged"))})
    for case in ("load", "load unchecked"):
        yield Case("checkpoint", case, "ms", {"muster": Contender(ours), "safetensors": Contender(python("safetensors")),
                                              "torch.load": Contender(python("torch")), "dcp.load": Contender(python("dcp"))})
    for case in ("load four by two", "load four by two unchecked"):
        yield Case("checkpoint", case, "ms", {"muster": Contender(ours), "dcp.load": Contender(python("dcp"))}, ranks=2)


def compile_cases(programs):
    script = [sys.executable, str(HERE / "compile_bench.py"), str(programs.parent)]
    yield Case("compile", "accelerator.h beside torch/torch.h", "s",
               {"muster": Contender(script, "with"), "libtorch": Contender(script, "without")}, rounds=5)


def cases(build):
    programs = build / "benchmarks"
    groups = (step_cases, ddp_cases, fsdp_cases, zero1_cases, memory_cases, hooks_cases, accumulate_cases, launch_cases, optim_cases, data_cases,
              resume_cases, safetensors_cases, checkpoint_cases, compile_cases)
    return [case for group in groups for case in group(programs)]
