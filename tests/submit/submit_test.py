#!/usr/bin/env python3
"""What `muster submit` writes is what sbatch, Kubernetes and SageMaker take, by their own validators where these are installed.

    submit_test.py MUSTER
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "parity"))
from cases import Skip, run_cases

KUBERNETES = ["kubernetes", "--image", "registry/train:1", "--nodes", "2", "--gpus", "8", "--cpus", "4", "--memory", "64G", "--time", "12h",
              "--volume", "data.v1=/data", "--env", 'NOTE=a "quoted" word', "--namespace", "research", "--name", "my-train"]
SAGEMAKER = ["sagemaker", "--image", "123456789012.dkr.ecr.eu-west-1.amazonaws.com/train:1", "--role", "arn:aws:iam::123456789012:role/train",
             "--instance-type", "ml.p4d.24xlarge", "--output", "s3://bucket/out", "--nodes", "2", "--input", "train=s3://bucket/data",
             "--checkpoints", "s3://bucket/checkpoints", "--metric", "loss=loss: ([0-9.]+)", "--env", "LEVEL=1", "--spot", "--time", "2h"]


def leave_out(reason):
    if os.environ.get("MUSTER_TEST_SERVICES"):
        raise RuntimeError(reason)
    raise Skip(f"{reason}; make test-services installs it")


class Submit:
    def __init__(self, muster, folder):
        self.muster, self.folder = muster, folder

    def call(self, *words, path=None, **variables):
        environment = {**os.environ, **variables}
        if path:
            environment["PATH"] = f"{path}:{environment['PATH']}"
        return subprocess.run([self.muster, "submit", *words], capture_output=True, text=True, cwd=self.folder, env=environment, timeout=60)

    def text(self, *words):
        done = self.call(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def refused(self, error, *words, containing):
        done = self.call(*words)
        assert done.returncode == 2 and error in done.stderr and containing in done.stderr, (words, done.stderr)

    def fake(self, name, script):
        """A folder with this script as program `name`, which keeps its words and input in files."""
        folder = self.folder / "bin"
        folder.mkdir(exist_ok=True)
        program = folder / name
        program.write_text(f'#!/bin/sh\necho "$@" > {self.folder}/words\ncat > {self.folder}/input\n{script}\n')
        program.chmod(0o755)
        return folder

    # SLURM

    def test_slurm_script(self):
        script = self.text("slurm", "--nodes", "2", "--gpus", "4", "--cpus", "8", "--memory", "64G", "--time", "01:12:00:05", "--partition", "a100",
                           "--signal-before", "5min", "--setup", "module load cuda", "--setup", "cd /work", "--env", "NOTE=it's", "--sbatch=--exclusive",
                           "build/train.bin", "--lr", "0.1", "two words", "$HOME")
        lines = script.splitlines()
        assert lines[0] == "#!/bin/bash"
        wanted = ["job-name=train", "nodes=2", "ntasks-per-node=4", "gpus-per-node=4", "cpus-per-task=8", "mem=64G", "time=1-12:00:05", "partition=a100",
                  "signal=USR1@300", "requeue", "open-mode=append", "exclusive"]
        assert not [line for line in wanted if f"#SBATCH --{line}" not in lines], script
        head = max(i for i, line in enumerate(lines) if line.startswith("#SBATCH"))
        assert all(line.startswith("#") for line in lines[:head]), "sbatch reads no option after the first command"
        assert lines[-1] == "exec srun --kill-on-bad-exit=1 --cpus-per-task=8 build/train.bin --lr 0.1 'two words' '$HOME'"
        assert lines.index("module load cuda") < lines.index("cd /work") < lines.index("export NOTE='it'\\''s'")

    def test_slurm_script_runs(self):
        """A shell that runs it calls srun with the words of the program, and gives all ranks one secret."""
        script = self.text("slurm", "--devices", "2", "--env", "NOTE=a b", "./train", "two words", "it's")
        folder = self.fake("srun", f'printf "%s\\n" "$@" "$NOTE" "$MUSTER_SECRET" > {self.folder}/called')
        done = subprocess.run(["bash", "-s"], input=script, text=True, capture_output=True, env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"})
        called = (self.folder / "called").read_text().splitlines()
        assert done.returncode == 0 and called[:-1] == ["--kill-on-bad-exit=1", "./train", "two words", "it's", "a b"], (called, done.stderr)
        assert re.fullmatch("[0-9a-f]{64}", called[-1]), called

    def test_slurm_without_requeue(self):
        script = self.text("slurm", "--no-requeue", "./train")
        assert "#SBATCH --no-requeue" in script and "signal" not in script
        assert "MUSTER_SECRET" not in script, "one rank has nobody to know"

    def test_slurm_hands_in(self):
        folder = self.fake("sbatch", "echo Submitted batch job 12")
        done = self.call("slurm", "--submit", "./train", path=folder)
        assert (done.returncode, done.stdout) == (0, "Submitted batch job 12\n"), done
        assert (self.folder / "input").read_text() == self.text("slurm", "./train")

    # Kubernetes

    def manifests(self, *words):
        try:
            import yaml
        except ImportError as error:
            leave_out(str(error))
        return list(yaml.safe_load_all(self.text(*words)))

    def test_kubernetes_manifest(self):
        service, job = self.manifests(*KUBERNETES, "./train", "--lr", "0.1", "two words")
        assert (service["kind"], job["kind"], job["spec"]["completionMode"]) == ("Service", "Job", "Indexed")
        assert service["spec"]["clusterIP"] == "None" and service["spec"]["selector"] == {"job-name": "my-train"}
        assert job["spec"]["completions"] == job["spec"]["parallelism"] == 2 and job["spec"]["activeDeadlineSeconds"] == 43200
        pod = job["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert pod["subdomain"] == service["metadata"]["name"] == "my-train" and service["metadata"]["namespace"] == "research"
        assert container["command"] == ["muster", "run", "--devices", "8", "--", "./train", "--lr", "0.1", "two words"]
        values = {one["name"]: one.get("value") for one in container["env"]}
        assert values["MUSTER_NODES"] == "2" and values["MUSTER_MAIN_ADDRESS"] == "my-train-0.my-train" and values["NOTE"] == 'a "quoted" word'
        assert container["resources"]["limits"] == {"cpu": "32", "memory": "64Gi", "nvidia.com/gpu": "8"}

    def test_kubernetes_on_one_node(self):
        (job,) = self.manifests("kubernetes", "--image", "i", "./train")
        assert "env" not in job["spec"]["template"]["spec"]["containers"][0]

    def test_kubernetes_validates(self):
        try:
            import kubernetes_validate
        except ImportError as error:
            leave_out(str(error))
        found = self.manifests(*KUBERNETES, "./train")
        for document in found + self.manifests("kubernetes", "--image", "i", "./train"):
            for version in ("1.28", kubernetes_validate.latest_version()):
                kubernetes_validate.validate(document, version, strict=True)
        found[1]["spec"]["completionMod"] = "Indexed"
        try:
            kubernetes_validate.validate(found[1], "1.28", strict=True)
        except kubernetes_validate.ValidationError:
            return
        raise AssertionError("the validator takes anything")

    def test_kubernetes_hands_in(self):
        folder = self.fake("kubectl", "echo created")
        done = self.call(*KUBERNETES, "--submit", "./train", path=folder)
        assert (done.returncode, done.stdout) == (0, "created\n"), done
        assert (self.folder / "words").read_text() == "create -f -\n"
        given = (self.folder / "input").read_text()
        assert given.endswith(self.text(*KUBERNETES, "./train"))
        assert re.search(r"^kind: Secret\nmetadata:\n  name: my-train-secret\n  namespace: research\nstringData:\n  secret: [0-9a-f]{64}\n---$", given, re.MULTILINE)

    # SageMaker

    def test_sagemaker_request(self):
        request = json.loads(self.text(*SAGEMAKER, "--name", "train-1", "./train", "--lr", "0.1"))
        algorithm = request["AlgorithmSpecification"]
        assert algorithm["ContainerEntrypoint"] + algorithm["ContainerArguments"] == ["muster", "run", "--devices", "auto", "--", "./train", "--lr", "0.1"]
        assert request["ResourceConfig"] == {"InstanceType": "ml.p4d.24xlarge", "InstanceCount": 2, "VolumeSizeInGB": 30}
        assert request["StoppingCondition"] == {"MaxRuntimeInSeconds": 7200, "MaxWaitTimeInSeconds": 14400}
        assert request["Environment"] == {"LEVEL": "1"} and request["TrainingJobName"] == "train-1"

    def test_sagemaker_validates(self):
        try:
            import botocore.loaders
            import botocore.model
            import botocore.validate
        except ImportError as error:
            leave_out(str(error))
        service = botocore.model.ServiceModel(botocore.loaders.Loader().load_service_model("sagemaker", "service-2"))
        shape = service.operation_model("CreateTrainingJob").input_shape
        request = json.loads(self.text(*SAGEMAKER, "build/my_train.bin", "--lr", "0.1"))
        problems = botocore.validate.ParamValidator().validate(request, shape)
        assert not problems.has_errors(), problems.generate_report()
        assert not list(outside(request, shape)), list(outside(request, shape))
        request["ResourceConfig"]["InstanceCount"] = "2"
        request["RoleArn"] = "nobody"
        assert botocore.validate.ParamValidator().validate(request, shape).has_errors() and list(outside(request, shape))

    def test_sagemaker_prints_the_command(self):
        done = self.call(*SAGEMAKER, "--name", "train-1", "--region", "eu-west-1", "--submit", "./train")
        assert done.stdout == "aws sagemaker create-training-job --cli-input-json file://train-1.json --region eu-west-1\n", done
        assert json.loads((self.folder / "train-1.json").read_text())["TrainingJobName"] == "train-1"

    # All

    def test_refusals(self):
        self.refused("MU490", "slrm", "./train", containing="nearest is 'slurm'")
        self.refused("MU006", "slurm", "--frob", "./train", containing="'--frob'")
        self.refused("MU491", "slurm", containing="PROGRAM is missing")
        for words, flag in ((["slurm", "--time", "3x"], "--time"), (["slurm", "--time", "60"], "--time"), (["slurm", "--memory", "64"], "--memory"), (["slurm", "--env", "1A=2"], "--env"),
                            (["slurm", "--env", "A"], "--env"), (["slurm", "--sbatch", "exclusive"], "--sbatch"), (["kubernetes"], "--image"),
                            (["kubernetes", "--image", "i", "--name", "My_train"], "--name"), (["kubernetes", "--image", "i", "--volume", "d=x"], "--volume"),
                            (SAGEMAKER[:1], "--image"), (SAGEMAKER + ["--name", "my_train"], "--name"), (SAGEMAKER + ["--role", "me"], "--role"),
                            (SAGEMAKER + ["--checkpoints", "/c"], "--checkpoints"), (SAGEMAKER + ["--input", "d=/d"], "--input")):
            self.refused("MU491", *words, "./train", containing=f"MU491: {flag}")
        self.refused("MU491", *SAGEMAKER, "./train", "x" * 257, containing="257 characters")

    def test_a_file_is_written_once(self):
        assert self.text("slurm", "--out", "job.sh", "./train") == ""
        assert (self.folder / "job.sh").read_text() == self.text("slurm", "./train")
        self.refused("MU495", "slurm", "--out", "job.sh", "./train", containing="job.sh is there already")
        self.refused("MU495", "slurm", "--out", "none/job.sh", "./train", containing="cannot write none/job.sh")

    def test_commands_that_fail_or_are_missing(self):
        done = self.call("slurm", "--submit", "./train", path=self.fake("sbatch", "echo no such partition >&2; exit 3"))
        assert done.returncode == 2 and "no such partition" in done.stderr and "MU496: 'sbatch' has failed with exit code 3" in done.stderr, done.stderr
        empty = self.folder / "empty"
        empty.mkdir()
        (empty / "sh").symlink_to(shutil.which("sh"))
        done = self.call("slurm", "--submit", "./train", PATH=str(empty))
        assert done.returncode == 2 and "MU496: sbatch is not installed here" in done.stderr, done.stderr

    def test_help_names_the_clusters(self):
        assert all(name in self.text("--help") for name in ("slurm", "kubernetes", "sagemaker"))
        assert "PROGRAM [ARGUMENTS]" in self.text("slurm", "--help")


def outside(value, shape, place="request"):
    """What botocore leaves to the service: patterns, names of enumerations and greatest lengths."""
    limits = shape.metadata
    if shape.type_name == "structure":
        for name, part in value.items():
            yield from outside(part, shape.members[name], f"{place}.{name}")
    elif shape.type_name == "list":
        for i, part in enumerate(value):
            yield from outside(part, shape.member, f"{place}[{i}]")
    elif shape.type_name == "map":
        for name, part in value.items():
            yield from outside(name, shape.key, f"{place}.{name}")
            yield from outside(part, shape.value, f"{place}.{name}")
    elif shape.type_name == "string":
        if limits.get("enum") and value not in limits["enum"]:
            yield f"{place}: {value} is not in {limits['enum']}"
        if limits.get("pattern") and not re.fullmatch(limits["pattern"], value):
            yield f"{place}: {value} is not {limits['pattern']}"
    if "max" in limits and (value if shape.type_name in ("integer", "long") else len(value)) > limits["max"]:
        yield f"{place}: more than {limits['max']}"


run_cases(Submit, sys.argv[1])
