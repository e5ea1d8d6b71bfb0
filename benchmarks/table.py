"""Every case of every benchmark: who runs, how, and in which unit. Ours stands first among a case's contenders."""
import dataclasses
import pathlib
import sys

HERE = pathlib.Path(__file__).parent


BOTH = ("as found", "equal")


@dataclasses.dataclass
class Contender:
    command: list
    case: str = ""            # what it is asked for; the case's name if empty
    variants: tuple = ()      # or several: each is tried before the rounds, and the best one runs in them
    package: str = "torch"    # a contender in Python needs it
    needs: tuple = ()         # programs without which it cannot run
    variables: dict = dataclasses.field(default_factory=dict)   # its environment has these, too; not under its own launcher
    starts_ranks: bool = False   # the driver starts one process, which starts all ranks and answers for them


@dataclasses.dataclass
class Case:
    benchmark: str
    name: str
    unit: str
    contenders: dict
    lower_is_better: bool = True
    ranks: int = 1
    rounds: int = 9
    threads: int = 1      # per rank, but for "as found"
    tolerance: float = 1e-4
    whole: bool = False   # measured from exec on, by a process of its own each time
    repeats: int = 0      # how often a failed round of a peer is measured again, before the peer is left out; only where `whole`
    settings: tuple = ("plain",)   # see contenders.py
    floors: dict = dataclasses.field(default_factory=dict)   # peer: the least ratio, at equal settings
    goals: dict = dataclasses.field(default_factory=dict)
    shown: bool = True    # in the table of README.md

    def variants(self, contender):
        return self.contenders[contender].variants or (self.contenders[contender].case or self.name,)


def peer(script, *arguments):
    return [sys.executable, "-u", str(HERE / "peers" / f"{script}.py"), *arguments]


def step_cases(programs):
    ours = [str(programs / "step_bench")]
    for optimizer in ("adamw", "sgd"):
        for api in ("accelerator", "fabric"):
            rival = {"accelerator": "accelerate", "fabric": "fabric"}[api]
            yield Case("step", f"{optimizer} {api}", "us/step",
                       {"muster": Contender(ours),
                        rival: Contender(peer("step_peer"), f"{optimizer} {rival}", package={"fabric": "lightning"}.get(rival, rival)),
                        "pytorch": Contender(peer("step_peer"), f"{optimizer} raw")},
                       rounds=7, floors={rival: {"accelerate": 2.5, "fabric": 1.9}[rival]})
        # LibTorch's AdamW rounds otherwise than fused ones: losses agree to six digits at step 500, and differ by 4e-4 at step 2000.
        yield Case("step", f"{optimizer} raw", "us/step",
                   {"libtorch": Contender(ours, f"{optimizer} fused"), "pytorch": Contender(peer("step_peer"), f"{optimizer} raw"),
                    "torch::optim": Contender(ours, f"{optimizer} raw")}, shown=False, tolerance=1e-3 if optimizer == "adamw" else 1e-4)


def trainer_cases(programs):
    """Neither side has checkpoints, a progress bar, a summary or a logger, and neither is barebones unless the case says so."""
    ours = Contender([str(programs / "trainer_bench"), str(programs.parent / "bench" / "trainer")])
    beside = {"muster": ours, "lightning": Contender(peer("trainer_peer"), package="lightning")}
    yield Case("trainer", "step bare", "us/step", beside, floors={"lightning": 3.5})
    yield Case("trainer", "step barebones", "us/step", beside, shown=False)
    yield Case("trainer", "step with a log", "us/step", beside, floors={"lightning": 5})
    yield Case("trainer", "what a log adds", "us/step", beside, rounds=5, floors={"lightning": 50})
    yield Case("trainer", "what two logs and the default callbacks add", "us/step",
               {"muster": ours, "a limit of 5 us": dataclasses.replace(ours, case="limit")}, floors={"a limit of 5 us": 1})
    # The floor is a fifth under what was measured first. The losses of step 100 are compared, where those of PyTorch's own ways to run AdamW
    # (fused, foreach, single) differ from each other by 2e-6; training amplifies this rounding to 3e-4 at step 500, and to 2e-3 between.
    yield Case("trainer", "fit of 50 epochs", "ms", beside, floors={"lightning": 3.4})


def tracking_cases(programs):
    """Two cores: one trains, and on the other both sides' threads write."""
    folder = programs.parent / "bench" / "tracking"
    ours = Contender([str(programs / "tracking_bench"), str(folder / "muster")])
    python = lambda case, package: Contender(peer("tracking_peer", str(folder)), case, package=package)
    lightning_csv = {"lightning csv": python("lightning csv", "lightning")}
    boards = {f"{name} tensorboard": python(f"{name} tensorboard", "tensorboard") for name in ("lightning", "accelerate")}
    limit = {"a limit of 25 us": dataclasses.replace(ours, case="limit")}
    for tracker, rivals in (("csv", lightning_csv), ("jsonl", lightning_csv), ("tensorboard", boards)):
        yield Case("tracking", f"ten numbers to {tracker}", "us", {"muster": dataclasses.replace(ours, case=tracker), **rivals, **limit}, threads=2,
                   rounds=5, floors={**dict.fromkeys(rivals, 10), **dict.fromkeys(limit, 1)})


MODELS = ("gpt-9m", "wide-mlp")
SETUPS = {"DistributedDataParallel": ("plain", "large"), "ZeroRedundancyOptimizer": ("plain", "large"), "fully_shard": ("plain", "prefetch")}


def sharded(programs, strategy, model, rival, **more):
    ours = Contender([str(programs / "sharded_bench"), strategy, model])
    return {"muster": ours, rival: Contender(peer("sharded_peer", rival, model), **more)}


def ddp_cases(programs):
    rival = "DistributedDataParallel"
    for model, floor, goal in zip(MODELS, (1.05, 1.25), (1.06, 1.45)):
        yield Case("ddp", model, "ms/step", sharded(programs, "ddp", model, rival, variants=SETUPS[rival]), ranks=2, settings=BOTH,
                   floors={rival: floor}, goals={rival: goal})


def fsdp_cases(programs):
    rival = "fully_shard"
    for model, floor, goal in zip(MODELS, (1.25, 2.2), (1.3, 3.0)):
        yield Case("fsdp", model, "ms/step", sharded(programs, "fsdp", model, rival, variants=SETUPS[rival]), ranks=2, settings=BOTH,
                   floors={rival: floor}, goals={rival: goal})


def zero1_cases(programs):
    rival = "ZeroRedundancyOptimizer"
    for model, floor, goal in zip(MODELS, (1.10, 1.40), (1.15, 1.5)):
        yield Case("zero1", model, "ms/step", sharded(programs, "zero1", model, rival, variants=SETUPS[rival]), ranks=2, settings=BOTH,
                   floors={rival: floor}, goals={rival: goal})


def synchronisation_cases(programs):
    """What a step of two ranks takes beyond the same step of two processes that know nothing of each other, and what copy and addition alone take.

    Only the first losses agree: a rank that is alone follows its own gradients.
    """
    ours = lambda strategy, model, *way: Contender([str(programs / "sharded_bench"), strategy, model, *way], f"first loss of {model}")
    for strategy in ("ddp", "zero1", "fsdp"):
        for model in MODELS:
            goal = {"ddp": {"gpt-9m": 0.98, "wide-mlp": 0.8}, "fsdp": {"gpt-9m": 0.95, "wide-mlp": 0.77}}.get(strategy, {}).get(model)
            yield Case("synchronisation", f"{strategy} {model}", "ms/step",
                       {"muster": ours(strategy, model), "no other rank": ours(strategy, model, "alone"),
                        "copy and add": ours(strategy, model, "limit")},
                       ranks=2, settings=("equal",), goals={"no other rank": goal} if goal else {})


def crowded_cases(programs):
    """Four ranks on two cores, where waiting by spinning would take the time of those that work: no slower than gloo, which sleeps."""
    ours = lambda strategy, model, *way: Contender([str(programs / "sharded_bench"), strategy, model, *way])
    for strategy in ("ddp", "fsdp"):
        for model in MODELS:
            yield Case("crowded", f"{strategy} {model}", "ms/step",
                       {"muster": ours(strategy, model), "muster over gloo": ours(strategy, model, "gloo")}, ranks=4, rounds=5, settings=("equal",),
                       floors={"muster over gloo": 1}, shown=False)


def memory_cases(programs):
    """The peak of a rank's memory in a step, less what it held before there was a model. One round: it is the same in each."""
    for strategy, rival in (("ddp", "DistributedDataParallel"), ("zero1", "ZeroRedundancyOptimizer"), ("fsdp", "fully_shard")):
        contenders = sharded(programs, strategy, "deep-mlp", rival)
        floors = {rival: 1.3} if strategy == "fsdp" else {}
        yield Case("memory", f"memory {strategy}", "MiB", contenders, ranks=2, rounds=1, settings=BOTH, floors=floors)
        ours = contenders["muster"]
        yield Case("memory", f"memory {strategy} beside the formula", "MiB",
                   {"muster": ours, "formula": dataclasses.replace(ours, case=f"formula {strategy}")}, ranks=2, rounds=1, shown=False)


def recompute_cases(programs):
    """Blocks whose activations are made again, beside torch.utils.checkpoint with and without the states of generators, and what that costs."""
    for strategy, rival, ranks in (("no", "checkpoint", 1), ("fsdp", "checkpoint under fully_shard", 2)):
        ours = lambda model: Contender([str(programs / "recompute_bench"), "auto" if strategy == "no" else strategy, model])
        # One variant for memory: a peer that has tried the other one holds the freed memory of two models.
        theirs = lambda model, measure: Contender(peer("recompute_peer", "alone" if ranks == 1 else "fully_shard", model),
                                                  variants=("memory no-rng",) if measure == "memory" else ("step rng", "step no-rng"))
        for model in ("gpt-9m", "gpt-512"):
            for measure, unit in (("step", "ms/step"), ("memory", "MiB")):
                name = f"{strategy} {model} {measure}"
                yield Case("recompute", name, unit,
                           {"muster": dataclasses.replace(ours(model), case=f"{measure} {model}"), rival: theirs(model, measure)},
                           ranks=ranks, rounds=5 if measure == "step" else 1, settings=BOTH, floors={rival: 1.0}, goals={rival: 1.1} if measure == "step" else {},
                           shown=model == "gpt-9m")
    for model in ("gpt-9m", "gpt-512"):
        ours = Contender([str(programs / "recompute_bench"), "auto", model])
        yield Case("recompute", f"largest batch of {model} in 512 MiB", "samples",
                   {"muster": dataclasses.replace(ours, case="batch"), "checkpoint": Contender(peer("recompute_peer", "alone", model), case="batch rng")},
                   lower_is_better=False, rounds=1, floors={"checkpoint": 1.0}, shown=model == "gpt-9m")
        yield Case("recompute", f"what it adds to {model}", "ms/step",
                   {"muster": dataclasses.replace(ours, case=f"step {model}"), "all kept": dataclasses.replace(ours, case=f"kept {model}")},
                   settings=("equal",), shown=False)


def hooks_cases(programs):
    """Hooks change gradients a little, so losses agree only roughly.

    The gradients of the wide model's layers are sums of 64 outer products (32 rows of the batch on each of two ranks): so many
    columns hold all of them, and fewer let its loss, which goes to zero, depart by far more than a little.
    """
    for model, columns in zip(MODELS, (1, 64)):
        for what, unit in (("bytes", "MB/step"), ("time", "ms/step")):
            program = lambda hook: Contender([str(programs / "hooks_bench"), model, hook, str(columns)], f"{model} {what}")
            for hook in ("bf16", "powersgd"):
                # An allocator changes no bytes.
                yield Case("hooks", f"{model} {hook} {what}", unit, {f"muster {hook}": program(hook), "no hook": program("none")},
                           ranks=2, tolerance=0.02, rounds=1 if what == "bytes" else 3, settings=("plain",) if what == "bytes" else BOTH,
                           shown=what == "bytes" or model == "gpt-9m" or hook == "bf16")


def accumulate_cases(programs):
    for model in MODELS:
        yield Case("accumulate", model, "ms/window", {"muster": Contender([str(programs / "accumulate_bench"), model]),
                                                      "DistributedDataParallel": Contender(peer("accumulate_peer", model))},
                   ranks=2, rounds=3, settings=BOTH)


def collectives_cases(programs):
    """Bytes are what a rank gives. Peers: what PyTorch has for the ranks of one host, OpenMPI in C, and DeepSpeed's operator, which only adds."""
    mpi = Contender(["mpirun", "--allow-run-as-root", "-np", "2", "--bind-to", "none", str(programs / "collectives_mpi")],
                    needs=("mpirun", str(programs / "collectives_mpi")), starts_ranks=True)
    deepspeed = Contender(peer("collectives_deepspeed"), package="deepspeed")
    both = {"muster": Contender([str(programs / "collectives_bench"), "shm"]), "gloo": Contender(peer("collectives_peer"))}
    yield Case("collectives", "barrier", "us", both | {"openmpi": mpi}, ranks=2, settings=("equal",))
    for operation in ("all_reduce", "all_gather"):
        for dtype in ("float32", "bfloat16"):
            contenders = both | ({} if (operation, dtype) == ("all_reduce", "bfloat16") else {"openmpi": mpi}) \
                | ({"deepspeed": deepspeed} if operation == "all_reduce" else {})   # MPI has no bfloat16 to add
            of_all = lambda gloo, others: {name: gloo if name == "gloo" else others for name in contenders if name != "muster"}
            for size in (8, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20):
                yield Case("collectives", f"{operation} {dtype} {size}", "us", contenders, ranks=2, settings=("equal",),
                           floors=of_all(4, 1.0) if size > 8 else {}, goals=of_all(4, 2.0 if size == 64 << 20 else 1.3) if size > 8 else {},
                           shown=dtype == "float32" and size not in (64 << 10, 16 << 20))
            for size in (4 << 20, 16 << 20, 64 << 20):
                add = {"in-place add": Contender([str(programs / "collectives_bench"), "shm"], case=f"add {dtype} {size}")}
                copy = {"copy of the peer's": Contender([str(programs / "collectives_bench"), "shm"], case=f"copy {dtype} {size}")}
                limit = add if operation == "all_reduce" else copy
                least = 3.0 if operation == "all_reduce" else 2.0
                yield Case("collectives", f"{operation} {dtype} {size} shared", "us", contenders | limit, ranks=2, settings=("equal",),
                           floors=of_all(least, least), goals=of_all(12, 5.0) | dict.fromkeys(limit, 0.87),
                           shown=dtype == "float32" and size == 64 << 20)


def launch_cases(programs):
    binaries = pathlib.Path(sys.executable).parent
    program = lambda name: str(HERE / "peers" / f"{name}.py")
    yield Case("launch", "first step of two ranks", "s", {
        "muster": Contender([str(muster_of(programs)), "run", "--devices", "2", str(programs / "launch_bench"), "2"]),
        "torchrun": Contender([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", program("launch_torchrun")]),
        "accelerate": Contender([str(binaries / "accelerate"), "launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
                                 "--mixed_precision", "no", "--dynamo_backend", "no", program("launch_accelerate")], package="accelerate"),
        "fabric": Contender([sys.executable, program("launch_fabric")], package="lightning")},
        ranks=2, rounds=3, whole=True, settings=("as found",), floors={"torchrun": 5, "accelerate": 6, "fabric": 12})
    yield Case("launch", "first step of eight ranks", "s", {
        "muster": Contender([str(muster_of(programs)), "run", "--devices", "8", str(programs / "launch_bench"), "8"]),
        "torchrun": Contender([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "8", program("launch_torchrun")])},
        ranks=8, rounds=3, whole=True, settings=("as found",), floors={"torchrun": 5})


def restart_cases(programs):
    yield Case("restart", "first step of two ranks after a rank was killed", "s", {
        "muster": Contender([str(muster_of(programs)), "run", "--max-restarts", "1", "--devices", "2", str(programs / "restart_bench")]),
        "torchrun": Contender([sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts", "1", "--nproc-per-node", "2",
                               str(HERE / "peers" / "restart_torchrun.py")],
                              # In the store that it shares by default, ranks find addresses of the round that died, and most restarts fail.
                              variables={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})},
        ranks=2, rounds=3, whole=True, repeats=5, settings=("as found",), floors={"torchrun": 2.5})


def optim_cases(programs):
    ours = [str(programs / "optim_bench")]
    for size, floor in zip(("67M in 4", "11.6M in 146", "0.42M in 100"), (5, 2.5, 2.5)):
        yield Case("optim", size, "ms/step", {"muster": Contender(ours, f"muster {size}"), "torch::optim": Contender(ours, f"torch {size}"),
                                              "pytorch fused": Contender(peer("optim_peer"))}, floors={"torch::optim": floor})


def data_cases(programs):
    ours = [str(programs / "data_bench")]
    setup = {"lower_is_better": False, "threads": 2, "tolerance": 1e-9}
    workers = lambda words: tuple(f"{words} {count}" for count in (0, 1, 2))
    torch_data = lambda how, workload: Contender(ours, variants=workers(f"{how} {workload}"))
    pytorch = lambda how, workload: Contender(peer("data_peer"), variants=workers(f"{how} {workload}"))
    for workload in ("images", "tokens"):
        single = {"torch::data": torch_data("torch", workload), "pytorch": pytorch("single", workload)}
        yield Case("data", f"{workload} per sample", "samples/s", {"muster": torch_data("get", workload), **single}, **setup,
                   floors={"torch::data": 1.25})
        yield Case("data", f"{workload} in place against get_batch", "samples/s",
                   {"muster": torch_data("place", workload), "torch::data": torch_data("batch", workload), "pytorch": pytorch("batch", workload)},
                   **setup, floors={"torch::data": 1.0}, goals={"torch::data": 1.3})
        yield Case("data", f"{workload}: whole batches of ours against single samples of the peer", "samples/s",
                   {"muster": torch_data("place", workload), **single}, **setup, shown=False)
        for count in (1, 2):
            yield Case("data", f"{workload} per sample on {count} threads", "samples/s",
                       {"muster": Contender(ours, f"get {workload} {count}"), "get-only loop": Contender(ours, f"loop {workload} {count}")}, **setup,
                       rounds=5, floors={"get-only loop": 0.85})


def resume_cases(programs):
    for samples in (1_000, 1_000_000):
        yield Case("resume", f"{samples}", "ms", {"muster": Contender([str(programs / "resume_bench")]),
                                                  "accelerate": Contender(peer("resume_peer"), package="accelerate")}, rounds=5)


def safetensors_cases(programs):
    folder = str(programs.parent / "bench" / "files")
    for case in ("save", "save durable", "load", "load mapped"):
        yield Case("safetensors", case, "ms", {"muster": Contender([str(programs / "safetensors_bench"), folder]),
                                               "safetensors": Contender(peer("safetensors_peer", folder), package="safetensors")},
                   floors={"safetensors": 0.95})


def checkpoint_cases(programs):
    """Durability none, unless the case says durable. Ours writes a checksum of every byte and no peer does, so a save has one pass over memory more.

    No peer checks what it loads: "load unchecked" is the same work; "load" reads every byte twice, since nothing in memory may change before all are
    known to be right.
    """
    folder = str(programs.parent / "bench" / "checkpoints")
    ours = [str(programs / "checkpoint_bench"), folder]
    python = lambda kind: Contender(peer("checkpoint_peer", folder, kind), package="safetensors" if kind == "safetensors" else "torch")
    rivals = {name: python(kind) for name, kind in (("safetensors", "safetensors"), ("torch.save", "torch"), ("dcp.save", "dcp"))}
    for case, raw in (("save", "raw"), ("save durable", "raw durable")):
        yield Case("checkpoint", case, "ms", {"muster": Contender(ours), "raw write": Contender(ours, raw),
                                              "raw write into reserved room": Contender(ours, raw.replace("raw", "raw reserved")), **rivals},
                   rounds=7, floors={"raw write": 0.87, "dcp.save": 2.7} if case == "save" else {}, shown=case == "save")
    yield Case("checkpoint", "save by two ranks", "ms", {"muster": Contender(ours), "dcp.save": python("dcp")}, ranks=2, shown=False)
    staging = dataclasses.replace(python("dcp"), variants=("async plain", "async cached", "async staged"))
    yield Case("checkpoint", "async", "ms", {"muster": Contender(ours), "memory copy": Contender(ours, "copy"), "dcp.async_save": staging},
               rounds=7, floors={"memory copy": 0.67, "dcp.async_save": 2.5})
    for case in ("load", "load unchecked"):
        yield Case("checkpoint", case, "ms", {"muster": Contender(ours), "safetensors": python("safetensors"), "torch.load": python("torch"),
                                              "dcp.load": python("dcp")}, rounds=7,
                   floors={"safetensors": 1.0, "torch.load": 1.0, "dcp.load": 2.5})
    for case in ("load four by two", "load four by two unchecked"):
        yield Case("checkpoint", case, "ms", {"muster": Contender(ours), "dcp.load": python("dcp")}, ranks=2, shown=False)


def compile_cases(programs):
    """The trainer's header may cost a tenth more than LibTorch's own."""
    script = [sys.executable, str(HERE / "compile_bench.py"), str(programs.parent)]
    for header, floors in (("accelerator.h", {}), ("trainer.h", {"libtorch": 0.91})):
        yield Case("compile", f"{header} beside torch/torch.h", "s", {"muster": Contender(script, header), "libtorch": Contender(script, "none")},
                   rounds=5, floors=floors, shown=False)


def muster_of(programs):
    """The command line beside the programs."""
    return programs.parent / "bin" / "muster"


def cases(build):
    programs = build / "benchmarks"
    groups = (step_cases, trainer_cases, tracking_cases, ddp_cases, fsdp_cases, zero1_cases, synchronisation_cases, crowded_cases, memory_cases, recompute_cases,
              hooks_cases, accumulate_cases, collectives_cases, launch_cases, restart_cases, optim_cases, data_cases, resume_cases, safetensors_cases, checkpoint_cases, compile_cases)
    return [case for group in groups for case in group(programs)]
