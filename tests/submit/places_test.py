#!/usr/bin/env python3
"""`muster run` takes from a cluster what neither flag nor variable says of nodes.

    places_test.py MUSTER
"""
import os
import pathlib
import socket
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "parity"))
from cases import run_cases

SAGEMAKER = '{"current_host": "algo-2", "hosts": ["algo-1", "algo-2"]}'
KUBEFLOW = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_NPROC_PER_NODE": "3", "PET_MASTER_ADDR": "first", "PET_MASTER_PORT": "4711"}
NAMES = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return str(taken.getsockname()[1])


class Places:
    def __init__(self, muster, folder):
        self.muster, self.folder = muster, folder

    def run(self, variables, *flags):
        """The variables of the ranks that are started here, one text each; and what the launcher says."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "PBS_", "PET_", "SM_"))}
        program = ["sh", "-c", f"echo {' '.join('$' + name for name in NAMES)}"]
        done = subprocess.run([self.muster, "run", "--no-prefix", *flags, *program], capture_output=True, text=True, timeout=60, env={**environment, **variables})
        return sorted(done.stdout.splitlines()), done.stderr

    def expect(self, wanted, variables, *flags):
        found, said = self.run(variables, *flags)
        assert found == wanted, (found, said)

    def test_sagemaker(self):
        config = self.folder / "input/config/resourceconfig.json"
        config.parent.mkdir(parents=True)
        config.write_text(SAGEMAKER)
        here = {"TRAINING_JOB_ARN": "arn:job", "SAGEMAKER_BASE_DIR": str(self.folder)}
        self.expect(["2 4 2 1 algo-1 29400", "3 4 2 1 algo-1 29400"], here, "--devices", "2")
        self.expect(["1 2 1 1 algo-1 4711"], {**here, "MUSTER_MAIN_PORT": "4711"}, "--devices", "1")
        found, _ = self.run(here, "--devices", "1", "--nodes", "1")
        assert [line.split()[:2] for line in found] == [["0", "1"]], "a flag counts more"
        config.write_text("{")
        assert "MU494" in self.run(here, "--devices", "1")[1]

    def test_kubeflow(self):
        self.expect([f"{rank} 6 3 1 first 4711" for rank in (3, 4, 5)], KUBEFLOW)
        self.expect(["1 2 1 1 first 4711"], KUBEFLOW, "--devices", "1")

    def test_kubernetes(self):
        self.expect(["1 2 1 1 train-0.train 29400"], {"JOB_COMPLETION_INDEX": "1", "MUSTER_NODES": "2", "MUSTER_MAIN_ADDRESS": "train-0.train"}, "--devices", "1")
        found, _ = self.run({"JOB_COMPLETION_INDEX": "1"}, "--devices", "1")
        assert [line.split()[:2] for line in found] == [["0", "1"]], "pods that have nothing to do with each other"

    def test_slurm(self):
        task = {"SLURM_NTASKS": "2", "SLURM_PROCID": "1", "SLURM_NODEID": "1", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "5", "SLURM_JOB_NODELIST": "n[3-4]"}
        self.expect(["1 2 1 1 n3 15005"], task, "--nodes", "2", "--devices", "1")
        self.expect(["1 2 1 1 alpha 15005"], task, "--nodes", "2", "--devices", "1", "--main-address", "alpha")
        found, _ = self.run(task, "--devices", "1")
        assert [line.split()[:2] for line in found] == [["0", "1"]], "a launcher of one node"

    def test_pbs(self):
        hosts = self.folder / "hosts"
        hosts.write_text("127.0.0.1\nbeta\n")
        job = {"PBS_NODEFILE": str(hosts), "PBS_JOBID": "12.server", "PBS_NODENUM": "1"}
        self.expect(["1 2 1 1 127.0.0.1 15012"], job, "--nodes", "2", "--devices", "1")
        port = free_port()
        self.expect([f"0 2 1 0 127.0.0.1 {port}"], {**job, "PBS_NODENUM": "0"}, "--nodes", "2", "--devices", "1", "--main-port", port)


run_cases(Places, sys.argv[1])
