"""The same checkpoints by Python: safetensors, torch.save, torch.distributed.checkpoint. Arguments: a folder on a disk,
safetensors|torch|dcp; a device, cpu if there is none; then "tiny"."""
import os
import pathlib
import shutil
import sys
import time

import torch
import torch.distributed as dist

from protocol import serve

kind, device = sys.argv[2], (sys.argv[3:] or ["cpu"])[0]
rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
folder = pathlib.Path(sys.argv[1]) / kind
if rank == 0:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
ramp = torch.arange(1 << 20, dtype=torch.float32).view(1024, 1024)
tensors = {f"layer{i // 4}.w{i % 4}": (ramp / 1024 + i).to(device) for i in range(4 if sys.argv[4:] else 128)}


def sync(path):
    for place in [path, *(path.iterdir() if path.is_dir() else []), path.parent]:
        descriptor = os.open(place, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def remove(path):
    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


class Safetensors:
    def __init__(self):
        from safetensors.torch import load_file, save_file
        self.write, self.read = save_file, load_file
        self.own = tensors
        self.empty = {name: torch.zeros_like(value) for name, value in tensors.items()}

    def save(self, path, durable):
        self.write(self.own, path)
        if durable:
            sync(path)

    def load(self, path):
        loaded = self.read(path)
        for name, tensor in self.empty.items():
            tensor.copy_(loaded[name])


class Torch(Safetensors):
    def __init__(self):
        super().__init__()
        from torch.utils.serialization import config
        config.save.compute_crc32 = False  # its documented way to be fast
        self.write = torch.save
        self.read = lambda path: torch.load(path, mmap=True)


class Dcp:
    def __init__(self):
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
        self.dcp = dcp
        self.planner = lambda: DefaultSavePlanner(enable_plan_caching=True)
        # It keeps its memory. From a device it copies into pinned memory without waiting for each copy; staged when the call returns, as ours is.
        pinned = device != "cpu"
        self.stager = DefaultStager(StagingOptions(use_pinned_memory=pinned, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=pinned))
        if not dist.is_initialized():
            os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
            os.environ.setdefault("MASTER_PORT", "0")
            dist.init_process_group("gloo", rank=rank, world_size=world)
        self.own = tensors if world == 1 else self.sharded(tensors, rank, world)
        self.empty = {name: torch.zeros_like(value) for name, value in self.own.items()}

    @staticmethod
    def sharded(whole, rank, world):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, Shard
        mesh = init_device_mesh("cpu", (world,))
        return {name: DTensor.from_local(value.chunk(world)[rank].clone(), mesh, [Shard(0)]) for name, value in whole.items()}

    def writer(self, path, durable):
        return self.dcp.FileSystemWriter(path, sync_files=durable)

    def save(self, path, durable):
        self.dcp.save(self.own, storage_writer=self.writer(path, durable), planner=self.planner())
        if durable and rank == 0:
            sync(path)

    def start(self, path, variant):
        options = {"planner": self.planner()} if variant != "plain" else {}
        if variant == "staged":
            options["async_stager"] = self.stager
        return self.dcp.async_save(self.own, storage_writer=self.writer(path, False), **options)

    def load(self, path):
        self.dcp.load(self.empty, checkpoint_id=str(path))


def barrier():
    if world > 1:
        dist.barrier()


peer = {"safetensors": Safetensors, "torch": Torch, "dcp": Dcp}[kind]()
local = lambda value: value.to_local() if hasattr(value, "to_local") else value


def check():
    return float(local(list(peer.own.values())[-1]).sum(dtype=torch.float64))


def clear():
    for value in peer.empty.values():
        local(value).zero_()


def filled_well():
    return all(torch.equal(local(value), local(peer.empty[name])) for name, value in peer.own.items())


def save(durable):
    path = folder / "saved"
    for timed in (False, True):  # the first one is not timed: see the other side
        if rank == 0:
            remove(path)
        barrier()
        start = time.perf_counter()
        peer.save(path, durable and timed)
        seconds = time.perf_counter() - start
    clear()
    peer.load(path)
    good = filled_well()
    barrier()
    if rank == 0:
        remove(path)
    return seconds * 1e3, check(), good


started = set()


def start(variant):
    path = folder / "started"
    if variant not in started:  # measured from the second save on
        wait(peer.start(path, variant))
        started.add(variant)
    remove(path)
    begin = time.perf_counter()
    future = peer.start(path, variant)
    if device == "cuda":
        torch.cuda.synchronize()  # see the other side
    seconds = time.perf_counter() - begin
    wait(future)
    clear()
    peer.load(path)
    good = filled_well()
    remove(path)
    return seconds * 1e3, check(), good


def wait(future):
    (future if hasattr(future, "result") else future.upload_completion).result()


def save_by_four(path):
    """Four processes of this script save what two will load."""
    import subprocess
    variables = {**os.environ, "WORLD_SIZE": "4", "MASTER_PORT": str(29400 + os.getpid() % 1000), "TORCHELASTIC_USE_AGENT_STORE": "False"}
    program = ("import sys; sys.argv[1:] = %r\nsys.path.insert(0, %r)\nimport runpy, io; sys.stdin = io.StringIO()\n"
               "space = runpy.run_path(%r)\nspace['peer'].save(space['pathlib'].Path(%r), False)\n")
    scratch = str(folder) + "-four"
    texts = program % ([scratch, kind], str(pathlib.Path(__file__).parent), __file__, str(path))
    ranks = [subprocess.Popen([sys.executable, "-c", texts], env={**variables, "RANK": str(r), "LOCAL_RANK": str(r)}, stdin=subprocess.DEVNULL) for r in range(4)]
    if any(process.wait(120) for process in ranks):
        raise RuntimeError("the checkpoint of four ranks was not saved")
    shutil.rmtree(scratch, ignore_errors=True)


def load():
    path = folder / "to load"
    barrier()
    if not path.exists():
        barrier()
        if world == 1:
            peer.save(path, False)
        elif rank == 0:
            save_by_four(path)
        barrier()
    clear()
    barrier()
    begin = time.perf_counter()
    peer.load(path)
    seconds = time.perf_counter() - begin
    return seconds * 1e3, check(), filled_well()


def measure(case):
    if case.startswith("save"):
        return save(case.endswith("durable"))
    return start(case.split()[-1]) if case.startswith("async") else load()


try:
    serve(measure)
finally:
    if rank == 0:
        shutil.rmtree(folder, ignore_errors=True)
