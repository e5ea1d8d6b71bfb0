#!/usr/bin/env python3
"""The shell commands of the pages config, kubernetes, sagemaker and several_nodes are run as they stand there.

    commands_test.py SOURCE PAGES MUSTER

`./train` is the program of own loops. kubectl and ssh are scripts: nodes, pods and instances are launchers of this machine, with a port of their own.
"""
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "parity"))
from cases import run_cases

source, pages, muster = (pathlib.Path(word).resolve() for word in sys.argv[1:])


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return str(taken.getsockname()[1])


def blocks(page, language=""):
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", (source / f"docs/howto/{page}.md").read_text(), re.MULTILINE | re.DOTALL)
    return [text for kind, text in fenced if kind == language]


def block_with(page, word, language=""):
    (one,) = [block for block in blocks(page, language) if word in block]
    return one


def here(command):
    """Two nodes of one rank on this machine, instead of two of eight."""
    return re.sub(r"\balpha\b", "127.0.0.1", command).replace("--devices 8", "--devices 1")


class Commands:
    def __init__(self, _, folder):
        self.folder = folder
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "PET_", "SM_", "MUSTER_"))}
        self.environment |= {"PATH": f"{folder / 'bin'}:{muster.parent}:{os.environ['PATH']}", "XDG_CONFIG_HOME": str(folder / "config"), "HF_HOME": str(folder),
                             "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        self.port = free_port()
        (folder / "bin").mkdir()
        self.script("train", f'echo "rank $RANK of ${{WORLD_SIZE:-1}}: $@"\nexec {pages} own_loops')
        self.script("bin/kubectl", f'echo "$@" >> {folder}/kubectl')
        self.script("bin/ssh", 'host=$1; shift; export MUSTER_HOST=$host; exec bash -c "$*"')
        if not shutil.which("openssl"):
            self.script("bin/openssl", "od -An -N32 -tx1 /dev/urandom | tr -d ' \\n'")

    def script(self, name, text):
        (self.folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.folder / name).chmod(0o755)

    def start(self, command, **variables):
        words = ["bash", "-c", command] if isinstance(command, str) else command
        environment = {**self.environment, "MUSTER_MAIN_PORT": self.port, **variables}
        return subprocess.Popen(words, cwd=self.folder, env=environment, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def shell(self, command, answers=None):
        done = subprocess.run(["bash", "-c", command], cwd=self.folder, env=self.environment, text=True, input=answers or "", capture_output=True, timeout=100)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def printed(self, block):
        """A block `$ command`, and what the page says that it prints."""
        command = re.match(r"\$ ((?:.*\\\n)*.*\n)", block)
        found = self.shell(command[1])
        assert found == block[command.end():], f"{command[1]}prints\n{found}"

    def trained(self, launchers, world):
        """All have ended well, and their ranks were one world."""
        try:
            said = [one.communicate(timeout=100)[0] for one in launchers]
        finally:
            for one in launchers:
                one.kill()
        text = "\n".join(said)
        assert not any(one.returncode for one in launchers), text
        for rank in range(world):
            assert f"rank {rank} of {world}:" in text, text
        assert "1 passed, 0 failed" in text, text
        return text

    # config

    def test_config_is_written_shown_and_followed(self):
        asks, shows, launches = block_with("config", "muster launch ./train").splitlines()
        self.shell(asks, "\n" * 20)
        assert "config/muster/config.yaml" in self.shell(shows)
        assert "rank 0 of 1: --lr 0.1" in self.shell(launches)

    def test_config_show(self):
        ours, accelerate, lightning = blocks("config", "yaml")
        (self.folder / "config.yaml").write_text(ours)
        self.printed(block_with("config", "$ MUSTER_TIMEOUT"))
        for text, strategy in ((accelerate, "fsdp"), (lightning, "ddp")):
            (self.folder / "config.yaml").write_text(text)
            assert re.search(rf"^strategy +{strategy} ", self.shell("muster config show --config_file config.yaml"), re.MULTILINE)

    def test_config_completion(self):
        text = (source / "docs/howto/config.md").read_text()
        for command in ("source <(muster completion bash)", "muster completion zsh", "muster completion fish", "muster man run"):
            assert command in text
            self.shell(command)

    # Kubernetes

    def test_kubernetes(self):
        self.shell("set -e\n" + block_with("kubernetes", "muster submit kubernetes"))
        secret, create = (self.folder / "kubectl").read_text().splitlines()
        assert re.fullmatch("create secret generic train-secret --from-literal=secret=[0-9a-f]{64}", secret), secret
        assert create == "create -f job.yaml"
        job = (self.folder / "job.yaml").read_text()
        command = json.loads(re.sub(r"(?<=[\[ ])(muster|run|--devices|--)(?=,)", r'"\1"', re.search(r"command: (\[.*\])", job)[1]))
        variables = dict(re.findall(r'- name: (\w+)\n +value: "(.*)"', job))
        assert variables["MUSTER_MAIN_ADDRESS"] == "train-0.train"
        variables |= {"MUSTER_MAIN_ADDRESS": "127.0.0.1", "MUSTER_SECRET": secret.split("=")[-1]}
        command[command.index("8")] = "1"
        self.trained([self.start(command, MUSTER_HOST=f"pod{i}", MUSTER_NODE_RANK=str(i), **variables) for i in range(2)], 2)

    # SageMaker

    def test_sagemaker(self):
        self.printed(block_with("sagemaker", "muster submit sagemaker"))
        algorithm = json.loads((self.folder / "train-1.json").read_text())["AlgorithmSpecification"]
        command = algorithm["ContainerEntrypoint"] + algorithm["ContainerArguments"]
        assert " ".join(command) in (source / "docs/howto/sagemaker.md").read_text(), command
        command[command.index("auto")] = "1"
        hosts = ["127.0.0.1", "127.0.0.2"]
        self.trained([self.start(command, MUSTER_HOST=host, SM_HOSTS=json.dumps(hosts), SM_CURRENT_HOST=host) for host in hosts], 2)

    # Several nodes

    def by_hand(self, word):
        lines = block_with("several_nodes", word).splitlines()
        starts = [line for line in lines if line.startswith("muster run")]
        self.shell("\n".join(line for line in lines if line not in starts))
        return self.trained([self.start(here(line), MUSTER_HOST=f"node{i}") for i, line in enumerate(starts)], len(starts))

    def test_several_nodes(self):
        self.by_hand("muster run --nodes 2 ")

    def test_several_nodes_by_ssh(self):
        self.shell(block_with("several_nodes", "openssl").splitlines()[0])
        block = block_with("several_nodes", "ssh", "bash").replace("nodes=(alpha beta)", "nodes=(127.0.0.1 127.0.0.2)")
        self.trained([self.start(here(block))], 2)

    def test_as_many_nodes_as_are_there(self):
        self.shell(block_with("several_nodes", "openssl").splitlines()[0])
        self.environment["MUSTER_LAST_CALL_TIMEOUT"] = "3s"
        self.by_hand("muster run --nodes 1:4")


run_cases(Commands, str(muster))
