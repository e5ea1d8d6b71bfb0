#!/usr/bin/env python3
"""Two launcher nodes of two ranks each on this machine: what is trained over shared memory on each, and gloo between them, is to the bit what gloo gives.

    two_nodes_test.py SOURCE BUILD
"""
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from counted import close, report  # noqa: E402

source, build = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def train(folder, book, strategy, *flags):
    """Both nodes' output, and the weights and losses that rank 0 leaves."""
    port = free_port()
    nodes = []
    for node in range(2):
        command = [build / "bin/muster", "run", "--nodes", "2", "--node-rank", node, "--main-address", "127.0.0.1", "--main-port", port, "--devices", "2",
                   "--threads", "1", "--no-prefix", *flags, build / "examples/fsdp", book, folder, strategy, "32-true", "auto", "2", "128"]
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "MUSTER_HOST": f"host{node}"}
        nodes.append(subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment))
    try:
        said = [node.communicate(timeout=180)[0] for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    if any(node.returncode for node in nodes):
        return f"exit codes {[node.returncode for node in nodes]}\n" + "\n".join(text[-1500:] for text in said), None
    weights = {file.name: file.read_bytes() for file in sorted(folder.glob("*.safetensors"))}
    losses = [line.split(",")[1] for line in (folder / "rank0.csv").read_text().splitlines()[1:]]
    return said[0], (weights, losses)


with tempfile.TemporaryDirectory() as scratch:
    folder = pathlib.Path(scratch)
    book = folder / "book"
    book.write_bytes(b"".join(page.read_bytes() for page in sorted((source / "docs/concepts").glob("*.md"))))
    said, expected = train(folder / "gloo", book, "ddp", "--backend", "gloo")
    report("gloo trains", None if expected and expected[0] and len(expected[1]) == 6 else said)
    for strategy in ("ddp", "fsdp"):
        said, trained = train(folder / strategy, book, strategy)
        reason = "backend: hierarchical (shared memory on each of 2 hosts, gloo between them)"
        report(f"plan() of {strategy} says how ranks communicate", None if reason in said else said)
        report(f"{strategy} gives the bits of gloo", None if trained and trained == expected else f"losses {trained and trained[1]}, not {expected and expected[1]}\n{said}")
    said, trained = train(folder / "levels", book, "ddp", "--two-level-sums")
    report("sums of two levels train", None if trained and len(trained[1]) == 6 else said)
close()
