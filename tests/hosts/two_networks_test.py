#!/usr/bin/env python3
"""Two launcher nodes of two ranks each, each node in a network of its own, over a link of which the kernel has both ends: one that drops ends the job on
both with the cause, and one that is slow trains to the same bits.

    two_networks_test.py SOURCE BUILD
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from counted import close, report, skip  # noqa: E402

source, build = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
ADDRESSES = ["10.213.7.1", "10.213.7.2"]
STEPS = {"few": "2", "many": "800"}


class Node:
    """A network namespace, held by a process that waits for its input to end."""

    def __init__(self):
        self.holder = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo there; exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.holder.stdout.readline()

    def inside(self, *command):
        return ["nsenter", f"--net=/proc/{self.holder.pid}/ns/net", *map(str, command)]

    def run(self, *command):
        done = subprocess.run(self.inside(*command), capture_output=True, text=True)
        return done.stderr.strip() if done.returncode else ""

    def close(self):
        self.holder.stdin.close()
        self.holder.wait()


class Link:
    """Two nodes and the link between them."""

    def __enter__(self):
        self.nodes = [Node(), Node()]
        first, second = self.nodes
        steps = [first.run("ip", "link", "add", "name", "link0", "type", "veth", "peer", "name", "link1", "netns", second.holder.pid)]
        for i, node in enumerate(self.nodes):
            steps += [node.run("ip", "link", "set", "lo", "up"), node.run("ip", "address", "add", f"{ADDRESSES[i]}/30", "dev", f"link{i}"),
                      node.run("ip", "link", "set", f"link{i}", "up")]
        self.error = next((step for step in steps if step), None)
        return self

    def __exit__(self, *_):
        for node in self.nodes:
            node.close()

    def start(self, folder, steps, *flags):
        """Both launchers; their output goes to files of the folder."""
        folder.mkdir()
        started = []
        for i, node in enumerate(self.nodes):
            command = node.inside(build / "bin/muster", "run", "--nodes", "2", "--node-rank", i, "--main-address", ADDRESSES[0], "--main-port", "29400", "--devices", "2",
                                  "--threads", "1", "--no-prefix", *flags, build / "examples/fsdp", book, folder, "ddp", "32-true", "auto", steps, "32")
            environment = {**os.environ, "GLOO_SOCKET_IFNAME": f"link{i}"}
            with open(folder / f"node{i}.txt", "w") as said:
                started.append(subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, env=environment))
        return started


def ended(launchers, seconds):
    """Their exit codes; None for one that had to be killed."""
    until, codes = time.monotonic() + seconds, []
    for launcher in launchers:
        try:
            codes.append(launcher.wait(max(0.1, until - time.monotonic())))
        except subprocess.TimeoutExpired:
            codes.append(None)
    for launcher in launchers:
        launcher.kill()
        launcher.wait()
    return codes


def said(folder):
    return [(folder / f"node{i}.txt").read_text(errors="replace") for i in range(2)]


def trained(link, folder, *flags):
    """What was wrong, and the weights and losses."""
    codes = ended(link.start(folder, STEPS["few"], *flags), 180)
    if codes != [0, 0]:
        return f"exit codes {codes}\n" + "\n".join(text[-1500:] for text in said(folder)), None
    weights = {file.name: file.read_bytes() for file in sorted(folder.glob("*.safetensors"))}
    return None, (weights, [line.split(",")[1] for line in (folder / "rank0.csv").read_text().splitlines()[1:]])


def wait_for_training(folder, launchers):
    """Until the first lines of the curve are on the disk."""
    curve, until = folder / "rank0.csv", time.monotonic() + 120
    while not (curve.exists() and curve.stat().st_size) and time.monotonic() < until and all(one.poll() is None for one in launchers):
        time.sleep(0.05)
    return curve.exists() and curve.stat().st_size > 0


def slowed(link):
    """The name of what slows each end of the link down, or None."""
    for kind, how in (("netem", ["delay", "10ms", "2ms"]), ("tbf", ["rate", "16mbit", "burst", "16kbit", "latency", "2s"])):
        errors = [node.run("tc", "qdisc", "add", "dev", f"link{i}", "root", kind, *how) for i, node in enumerate(link.nodes)]
        if not any(errors):
            return kind
    return None


def tries(scratch):
    with Link() as link:
        if link.error:
            return skip("two networks", f"the kernel gives no link between two networks: {link.error}")
        error, expected = trained(link, scratch / "plain", "--backend", "gloo")
        report("two networks train over gloo", error or (None if len(expected[1]) == 6 else f"losses {expected[1]}"))
        error, other = trained(link, scratch / "auto")
        plan = "backend: hierarchical (shared memory on each of 2 hosts, gloo between them)"
        report("a host is the launcher's node", error or (None if plan in said(scratch / "auto")[0] else said(scratch / "auto")[0]))
        report("auto gives the bits of gloo", error or (None if other == expected else f"losses {other[1]}, not {expected and expected[1]}"))
        if kind := slowed(link):
            error, slow = trained(link, scratch / "slow", "--backend", "gloo")
            report(f"a link slowed down by {kind} gives the same bits", error or (None if slow == expected else f"losses {slow[1]}, not {expected and expected[1]}"))
        else:
            skip("a slow link", "the kernel has neither netem nor tbf")
    for name, flags in (("gloo", ("--backend", "gloo")), ("auto", ())):
        with Link() as link:
            folder = scratch / f"dropped_{name}"
            launchers = link.start(folder, STEPS["many"], "--timeout", "4", "--grace", "5s", *flags)
            went = wait_for_training(folder, launchers)
            link.nodes[1].run("ip", "link", "set", "link1", "down")
            codes = ended(launchers, 90)
            texts = said(folder)
            report(f"{name}: training went before the link dropped", None if went else "\n".join(text[-1500:] for text in texts))
            for i in range(2):
                right = codes[i] not in (None, 0) and "MU051: rank " in texts[i] and " waited " in texts[i]
                report(f"{name}: node {i} ends with the cause when the link drops", None if right else f"exit code {codes[i]}\n{texts[i][-3000:]}")


missing = [tool for tool in ("unshare", "nsenter", "ip", "tc") if not shutil.which(tool)]
if os.geteuid() != 0 or missing:
    print("0 passed, 0 failed, 1 skipped")
    print("only root can make networks" if os.geteuid() else f"not installed: {' '.join(missing)}")
    sys.exit(77)
probe = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True)
if probe.returncode:
    print("0 passed, 0 failed, 1 skipped")
    print(f"no network can be made here: {probe.stderr.strip()}")
    sys.exit(77)
with tempfile.TemporaryDirectory() as scratch:
    book = pathlib.Path(scratch) / "book"
    book.write_bytes(100 * b"".join(page.read_bytes() for page in sorted((source / "docs/concepts").glob("*.md"))))
    tries(pathlib.Path(scratch))
close()
