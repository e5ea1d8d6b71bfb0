#!/usr/bin/env python3
"""A job of two nodes under a real SLURM: started by srun, queued again by a signal and by the time limit, and continued to the bit.

    slurm_test.py PROGRAM MUSTER EXAMPLE

One slurmctld and two slurmd run on this machine as the nodes 127.0.0.1 and 127.0.0.2. It takes minutes, so only `make test-services` runs it.
"""
import os
import pathlib
import pwd
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

SERVERS = ("munged", "slurmctld", "slurmd")
COMMANDS = ("sbatch", "scancel", "scontrol", "srun")
PATIENCE = 240
program, muster, example = (str(pathlib.Path(word).resolve()) for word in sys.argv[1:])


class CannotStart(Exception):
    """SLURM does not run on this machine; says why."""


def fail(reason):
    """`make test-services` asks for SLURM: a test that cannot run there has failed."""
    print(f"FAILED slurm: {reason}\n0 passed, 1 failed, 0 skipped")
    sys.exit(1)


def wait_until(what, found):
    """`found()` once it is true; ends the test after PATIENCE."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        result = found()
        if result:
            return result
        time.sleep(0.1)
    raise AssertionError(f"not seen in {PATIENCE} s: {what}")


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


CONFIGURATION = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=10
SlurmctldPort={ports[0]}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SchedulerParameters=bf_interval=1,sched_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
KillWait=20
NodeName=127.0.0.1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1 RealMemory=500 State=UNKNOWN
NodeName=127.0.0.2 NodeHostname={host} NodeAddr=127.0.0.2 Port={ports[2]} CPUs=1 RealMemory=500 State=UNKNOWN
PartitionName=all Nodes=127.0.0.[1-2] Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """The servers, which end with it."""

    def __init__(self, folder):
        self.folder, self.servers = folder, []
        (folder / "state").mkdir()
        (folder / "munge.key").write_bytes(os.urandom(1024))
        (folder / "munge.key").chmod(0o600)
        host, user = socket.gethostname().split(".")[0], pwd.getpwuid(os.getuid()).pw_name
        self.configuration = folder / "slurm.conf"
        self.configuration.write_text(CONFIGURATION.format(folder=folder, host=host, ports=free_ports(3), user=user))
        self.environment = {**os.environ, "SLURM_CONF": str(self.configuration)}

    def __enter__(self):
        try:
            at = str(self.folder) + "/munge."
            self.start("munged", "--foreground", "--force", f"--key-file={at}key", f"--socket={at}socket", f"--pid-file={at}pid", f"--log-file={at}log",
                       f"--seed-file={at}seed")
            self.ready(lambda: pathlib.Path(at + "socket").exists())
            self.start("slurmctld", "-D", "-c")
            for node in ("127.0.0.1", "127.0.0.2"):
                self.start("slurmd", "-D", "-N", node)
            self.ready(lambda: self.run("sinfo", "--noheader", "--format=%T %D", check=False).stdout.split() == ["idle", "2"])
            return self
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_):
        for server in reversed(self.servers):
            server.terminate()
        for server in self.servers:
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()

    def start(self, name, *words):
        log = open(self.folder / f"server{len(self.servers)}.log", "w")
        self.servers.append(subprocess.Popen([shutil.which(name), *words], stdout=log, stderr=log, env=self.environment))

    def ready(self, found):
        """Waits half a minute for the servers, and passes on why one of them has ended."""
        end = time.monotonic() + 30
        while not found():
            for i, server in enumerate(self.servers):
                lines = (self.folder / f"server{i}.log").read_text().splitlines()
                if server.poll() is not None:
                    raise CannotStart(f"{server.args[0]} ended: {' '.join(lines[-1:])}")
                if time.monotonic() > end:
                    raise CannotStart(f"{server.args[0]} is not ready after 30 s: {' '.join(lines[-1:])}")
            time.sleep(0.1)

    def run(self, *words, check=True, text=None):
        done = subprocess.run(words, capture_output=True, text=True, env=self.environment, cwd=self.folder, input=text, timeout=60)
        if check and done.returncode:
            raise AssertionError(f"{words}: {done.stderr}")
        return done

    def field(self, job, name):
        return re.search(rf"\b{name}=(\S+)", self.run("scontrol", "--oneliner", "show", "job", job).stdout).group(1)


class Job:
    def __init__(self, slurm, name, what, *options):
        self.slurm, self.folder = slurm, slurm.folder / name
        self.folder.mkdir()
        command = [muster, "submit", "slurm", "--nodes", "2", "--name", name, "--submit", "--env", "OMP_NUM_THREADS=1", *options, program, name, what]
        done = slurm.run(*command)
        self.number = re.fullmatch(r"Submitted batch job (\d+)\n", done.stdout).group(1)

    def output(self):
        file = self.slurm.folder / f"{self.folder.name}-{self.number}.out"
        return file.read_text() if file.exists() else ""

    def wait_for(self, text, times=1):
        wait_until(f"{text!r} in\n{self.output()}", lambda: self.output().count(text) >= times)

    def finish(self):
        ended = lambda: self.slurm.field(self.number, "JobState") in ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL")
        wait_until(f"the end of job {self.number}", ended)
        assert self.slurm.field(self.number, "JobState") == "COMPLETED", self.output()


def result_of(output):
    """(steps, weights) that the last process of rank 0 printed."""
    return re.findall(r"^steps (.*)$", output, re.MULTILINE)[-1:], re.findall(r"^weights (.*)$", output, re.MULTILINE)[-1:]


def expect_continued(job, whole):
    """It was saved at the end of the step, queued again, saved once more as SLURM ended it, and went on as if nothing had been."""
    job.finish()
    output = job.output()
    assert job.slurm.field(job.number, "Restarts") == "1" and f"SLURM queues job {job.number} again" in output, output
    for signal, name in (("SIGUSR1", "hpc_ckpt_1.ckpt"), ("SIGTERM", "hpc_ckpt_2.ckpt")):
        assert re.search(rf"{signal}: .*{name} holds it", output) and (job.folder / name).is_dir(), output
    steps, weights = result_of(output)
    # SIGTERM comes as soon as scontrol has been called: in step 4, or in step 5, which waits for it.
    assert steps in (["5 6 7 8 9 10 11"], ["6 7 8 9 10 11"]), output
    assert weights == whole, "the weights differ from those of an uninterrupted run"


def case_srun_starts_two_nodes(slurm, whole):
    job = Job(slurm, "plain", "go")
    job.finish()
    steps, weights = result_of(job.output())
    assert steps == ["0 1 2 3 4 5 6 7 8 9 10 11"] and weights == whole, job.output()
    assert slurm.field(job.number, "NodeList") == "127.0.0.[1-2]"


def case_srun_starts_an_example(slurm, _):
    """Without a batch script: the program finds the first node in srun's variables."""
    done = slurm.run("srun", "--nodes", "2", "--ntasks", "2", example)
    losses = [float(loss) for loss in re.findall(r"epoch \d: loss ([0-9.]+)", done.stdout)]
    assert len(losses) == 3 and losses[2] < losses[0], done.stdout + done.stderr


def case_a_launcher_on_each_node(slurm, whole):
    """`muster run` takes the node's number and the first node from SLURM."""
    slurm.folder.joinpath("launchers").mkdir()
    done = slurm.run("srun", "--nodes", "2", "--ntasks", "2", muster, "run", "--no-prefix", "--nodes", "2", "--devices", "1", "--threads", "1", program,
                     "launchers", "go")
    assert result_of(done.stdout)[1] == whole, done.stdout + done.stderr


def case_a_signal_queues_the_job_again(slurm, whole):
    job = Job(slurm, "signal", "wait")
    job.wait_for("waits in step 3", times=2)
    slurm.run("scancel", "--signal=USR1", job.number)
    expect_continued(job, whole)


def case_the_time_limit_queues_the_job_again(slurm, whole):
    """SLURM counts limits in minutes, and looks every half a minute."""
    job = Job(slurm, "limit", "wait", "--time", "2min", "--signal-before", "45s")
    job.wait_for("waits in step 3", times=2)
    expect_continued(job, whole)


def uninterrupted():
    """The weights that two ranks have without SLURM."""
    with tempfile.TemporaryDirectory() as folder:
        command = [muster, "run", "--devices", "2", "--no-prefix", "--threads", "1", program, folder, "go"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return result_of(done.stdout)[1]


def main():
    if not os.environ.get("MUSTER_TEST_SERVICES"):
        print("it takes minutes; make test-services runs it")
        sys.exit(77)
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    missing = [name for name in SERVERS + COMMANDS if not shutil.which(name)]
    if missing:
        fail(f"not installed: {', '.join(missing)} (Debian: slurmctld slurmd slurm-client munge)")
    for variable in [name for name in os.environ if name.startswith("SLURM_")]:
        del os.environ[variable]
    counts = {"passed": 0, "failed": 0}
    cases = [case_srun_starts_two_nodes, case_srun_starts_an_example, case_a_launcher_on_each_node, case_a_signal_queues_the_job_again,
             case_the_time_limit_queues_the_job_again]
    whole = uninterrupted()
    with tempfile.TemporaryDirectory() as folder:
        try:
            with Slurm(pathlib.Path(folder)) as slurm:
                for case in cases:
                    try:
                        case(slurm, whole)
                        counts["passed"] += 1
                    except AssertionError as error:
                        counts["failed"] += 1
                        print(f"FAILED {case.__name__}: {error}")
        except CannotStart as reason:
            fail(f"SLURM does not run here: {reason}")
    print(f"{counts['passed']} passed, {counts['failed']} failed, 0 skipped")
    sys.exit(counts["failed"] > 0)


main()
