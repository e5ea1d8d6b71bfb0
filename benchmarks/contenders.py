"""How a contender of a benchmark is started and asked. A setting says what its processes find:

    as found    what a user finds: each side's own launcher, `muster run` and torchrun, and nothing set or pinned
    equal       the driver starts the ranks, each on a core of its own, with the same variables for all contenders: TUNED, and one thread
    plain       the same without TUNED, and ours keeps no freed memory either
"""
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

# What device/memory.cpp asks of the C library: large blocks come from the heap, and the heap does not shrink. Where these are set
# Muster leaves the allocator alone, so all contenders have the same one.
TUNED = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TOP_PAD_": str(64 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 62)}
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
PATIENCE = 180   # seconds for one answer; a rank whose neighbour died would wait for it much longer


def tuned_text():
    return " ".join(f"{name}={value}" for name, value in TUNED.items())


def untouched():
    """Nothing set that changes speed; Gloo's interface is named since some machines do not know their own name."""
    gone = {*LAUNCHERS, *TUNED, "OMP_NUM_THREADS", "MKL_NUM_THREADS", "GLIBC_TUNABLES", "MUSTER_KEEP_MEMORY", "BENCH_PIPES"}
    return {**{name: value for name, value in os.environ.items() if name not in gone}, "GLOO_SOCKET_IFNAME": "lo", "PYTHONWARNINGS": "ignore",
            "MUSTER_LOG": "error"}


def environment(threads, setting):
    memory = TUNED if setting == "equal" else {"MUSTER_KEEP_MEMORY": "off"}
    return {**untouched(), **memory, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def together(answers):
    """What all ranks answered, as one: the slowest counts."""
    return {"value": max(answer.get("value", 0) for answer in answers), "check": answers[0].get("check", 0),
            "verified": all(answer["verified"] for answer in answers)}


class Ranks:
    """A contender that stays alive: one process per rank, each on a core of its own, asked by a line on standard input."""

    def __init__(self, command, ranks, threads, setting="plain", more=None):
        cores = sorted(os.sched_getaffinity(0))
        port = free_port()
        self.processes = []
        for rank in range(ranks):
            variables = environment(threads, setting) | (more or {})
            if ranks > 1:
                variables |= dict(zip(LAUNCHERS, map(str, (rank, ranks, rank, ranks, "127.0.0.1", port))))
            own = set(cores[rank * threads % len(cores):][:threads]) or set(cores)
            self.processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables,
                                                   preexec_fn=lambda own=own: os.sched_setaffinity(0, own)))

    def measure(self, case):
        for process in self.processes:
            process.stdin.write(f"run {case}\n")
            process.stdin.flush()
        too_late = threading.Timer(PATIENCE, self.kill)
        too_late.start()
        try:
            return together([self.answer(process) for process in self.processes])
        finally:
            too_late.cancel()

    def kill(self):
        for process in self.processes:
            process.kill()

    @staticmethod
    def answer(process):
        for line in process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise RuntimeError(f"{' '.join(process.args)} ended with exit code {process.wait()}")

    def close(self):
        for process in self.processes:
            try:
                process.stdin.close()
            except OSError:
                pass  # it is gone already
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()


class Launched:
    """A contender that stays alive under its own launcher, which has the standard streams: its ranks are asked through pipes in a folder."""

    def __init__(self, command, ranks):
        self.folder = tempfile.TemporaryDirectory(prefix="muster-bench-")
        path = pathlib.Path(self.folder.name)
        for pipe in (f"{kind}.{rank}" for rank in range(ranks) for kind in ("ask", "answer")):
            os.mkfifo(path / pipe)
        # Open at both ends, so that nobody waits for the other side to open.
        self.asks = [os.open(path / f"ask.{rank}", os.O_RDWR | os.O_CLOEXEC) for rank in range(ranks)]
        self.answers = [os.open(path / f"answer.{rank}", os.O_RDWR | os.O_CLOEXEC) for rank in range(ranks)]
        self.output = open(path / "output", "w+")
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.output, stderr=self.output, start_new_session=True,
                                        env={**untouched(), "BENCH_PIPES": str(path)})

    def measure(self, case):
        for ask in self.asks:
            os.write(ask, f"run {case}\n".encode())
        return together([json.loads(self.line(answer)) for answer in self.answers])

    def line(self, answer):
        text, end = b"", time.monotonic() + PATIENCE
        while not text.endswith(b"\n"):
            if select.select([answer], [], [], 0.2)[0]:
                text += os.read(answer, 4096)
            elif self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{' '.join(self.process.args)}: {self.ending()}")
        return text

    def ending(self):
        self.output.seek(0)
        code = self.process.poll()
        return f"{'no answer' if code is None else f'exit code {code}'}\n{self.output.read()[-2000:]}"

    def close(self):
        for pipe in (*self.asks, *self.answers):
            os.close(pipe)
        for how in (None, signal.SIGTERM, signal.SIGKILL):
            try:
                if how:
                    os.killpg(self.process.pid, how)
                self.process.wait(20)
                break
            except (subprocess.TimeoutExpired, ProcessLookupError):
                pass
        self.output.close()
        self.folder.cleanup()


class Whole:
    """A contender measured from outside: seconds from exec, or from the line "died MONOTONIC_SECONDS", to the line "reached MONOTONIC_SECONDS" that it prints."""

    def __init__(self, command, variables=None):
        self.command, self.variables = command, variables or {}

    def measure(self, case):
        start = time.monotonic()
        outcome = subprocess.run(self.command, env=untouched() | self.variables, capture_output=True, text=True, timeout=120)
        after = lambda word: [line.split(word, 1)[1].split() for line in outcome.stdout.splitlines() if word in line]
        words = after("reached ")
        start = float(after("died ")[0][0]) if after("died ") else start
        if outcome.returncode or not words:
            raise RuntimeError(f"{' '.join(self.command)}: exit code {outcome.returncode}\n{outcome.stdout}{outcome.stderr}")
        return {"value": float(words[0][0]) - start, "check": float(words[0][1]), "verified": True}

    def close(self):
        pass


def launcher_of(contender, ranks, muster):
    """The command of a contender under the launcher that its user would take."""
    if contender.command[0] == sys.executable:
        words = [word for word in contender.command[1:] if word != "-u"]
        return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *words]
    return [str(muster), "run", "--devices", str(ranks), *contender.command]


def start(contender, case, setting, muster):
    if case.whole:
        return Whole(contender.command, contender.variables)
    if contender.starts_ranks:
        return Ranks(contender.command, 1, case.threads * case.ranks, setting, contender.variables)
    if setting == "as found":
        return Launched(launcher_of(contender, case.ranks, muster), case.ranks)
    return Ranks(contender.command, case.ranks, case.threads, setting, contender.variables)
