"""A file of each branch of `accelerate config` gives the strategy, the precision and the number of ranks that accelerate's own launcher makes of it
(config_vectors.json, recorded by record_config.py), or is refused by name.

usage: config_parity.py MUSTER RANK_PROGRAM
RANK_PROGRAM prints every option as a program resolves it. Where accelerate is installed, the vectors are made again and compared.
"""
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys

from cases import Skip, run_cases

VECTORS = json.loads(pathlib.Path(__file__).with_name("config_vectors.json").read_text())
PRECISIONS = {"no": "32-true", "fp16": "16-mixed", "bf16": "bf16-mixed"}
# Of these the message names the key and what to do; every other case is followed.
REFUSED = {
    "no_fp8_ao": "mixed_precision is 'fp8'", "no_fp8_te": "mixed_precision is 'fp8'", "no_fp8_msamp": "mixed_precision is 'fp8'",
    "cpu_mpirun": "mpirun_hostfile", "megatron": "distributed_type is 'MEGATRON_LM'", "tpu": "distributed_type is", "tpu_cluster": "distributed_type is",
    "xpu": "MULTI_XPU", "hpu": "MULTI_HPU", "npu": "MULTI_NPU", "mlu": "MULTI_MLU", "sdaa": "MULTI_SDAA", "musa": "MULTI_MUSA", "neuron": "MULTI_NEURON",
    "zero2_clipping": "gradient_clipping", "zero2_offload": "offload_optimizer_device", "zero3_nvme": "offload_param_device", "zero_file": "ds.json",
    "zero_moe": "deepspeed_moe_layer_cls_names", "zero_pdsh": "deepspeed_hostfile", "fsdp1_offload": "fsdp_offload_params", "fsdp1_backward_post": "fsdp_backward_prefetch",
    "fsdp1_local_state": "fsdp_state_dict_type", "fsdp2_tensor": "parallelism_config_tp_size",
    "fsdp2_context": "parallelism_config_cp_size", "sagemaker": "compute_environment", "sagemaker_data": "compute_environment",
}
ALONE = ["--devices", "1", "--nodes", "1", "--node-rank", "0", "--accelerator", "cpu", "--no-prefix"]


class ConfigParity:
    def __init__(self, muster, folder):
        self.muster, self.folder = muster, folder

    def call(self, *words, environment=None):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ACCELERATE_", "FSDP_", "LT_", "MUSTER_", "PARALLELISM_CONFIG_"))}
        (self.folder / "proc/driver/nvidia").mkdir(parents=True, exist_ok=True)
        # Eight accelerators, which nobody uses: what is followed is printed, or runs on the CPU.
        kept.update(CUDA_VISIBLE_DEVICES="0,1,2,3,4,5,6,7", MUSTER_TEST_ROOT=str(self.folder), XDG_CONFIG_HOME=str(self.folder), HF_HOME=str(self.folder), **(environment or {}))
        return subprocess.run([self.muster, *words], env=kept, capture_output=True, text=True, timeout=60)

    def options(self, *words, environment=None):
        """Every option as the program resolves it."""
        ended = self.call("run", *words, *ALONE, RANK_PROGRAM, "options", environment=environment)
        assert ended.returncode == 0, ended.stderr
        return dict(line.split("=", 1) for line in ended.stdout.splitlines() if "=" in line)

    def file_of(self, name):
        path = self.folder / f"{name}.yaml"
        path.write_text(VECTORS["cases"][name]["file"])
        return str(path)

    def test_each_branch_is_followed_or_refused_by_name(self):
        wrong = []
        for name, case in VECTORS["cases"].items():
            try:
                if name in REFUSED:
                    self.is_refused(name)
                else:
                    self.is_followed(name, case)
            except AssertionError as error:
                wrong.append(f"{name}: {error}\n{case['file']}")
        assert not wrong, "\n".join(wrong)
        assert len(VECTORS["cases"]) > 60 and REFUSED.keys() <= VECTORS["cases"].keys()

    def is_refused(self, name):
        ended = self.call("launch", "--config_file", self.file_of(name), "/bin/echo", "a process")
        assert ended.returncode == 2 and "a process" not in ended.stdout, "it is not refused"
        assert REFUSED[name] in ended.stderr, ended.stderr

    def is_followed(self, name, case):
        assert "error" not in case, f"accelerate itself refuses it: {case['error']}"
        shown = self.call("config", "show", "--config_file", self.file_of(name))
        assert shown.returncode == 0, shown.stderr
        ranks = int(shown.stdout.split("\nranks")[1].split()[0])
        assert ranks == case["num_processes"], f"{ranks} ranks, but {case['num_processes']} processes"
        ours = self.options("--config", self.file_of(name))
        environment = case["environment"]
        assert ours["precision"] == PRECISIONS[environment["ACCELERATE_MIXED_PRECISION"]], ours["precision"]
        strategies = {"ACCELERATE_USE_FSDP": ours["strategy"] in ("fsdp", "hsdp") or ours.get("fsdp.stage") == "none",
                      "ACCELERATE_USE_DEEPSPEED": ours["strategy"] == {"0": "ddp", "3": "fsdp"}.get(environment.get("ACCELERATE_DEEPSPEED_ZERO_STAGE"), "zero" + environment.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", ""))}
        asked = [variable for variable in strategies if environment.get(variable) == "true"]
        assert all(strategies[variable] for variable in asked), ours["strategy"]
        assert asked or ours["strategy"] == "auto", ours["strategy"]
        # A program that accelerate itself had started resolves its variables to the same options.
        taken = {key: value for key, value in environment.items() if key.startswith(("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_"))}
        theirs = self.options(environment=taken)
        different = {key: (ours.get(key), theirs.get(key)) for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key)}
        assert not different, f"(file, variables) differ: {different}"

    def test_every_flag_of_accelerate_launch_is_known(self):
        page = self.call("man", "launch").stdout.replace("\\-", "-")
        unknown = [flag for flag in VECTORS["flags"] if f"\\fB{flag}\\fR" not in page]
        assert not unknown and len(VECTORS["flags"]) > 200, unknown

    def test_several_ranks_run_on_the_cpu(self):
        ended = self.call("launch", "--quiet", "--config_file", self.file_of("cpu"), "/bin/echo", "a rank")
        assert ended.returncode == 0 and ended.stdout.count("a rank\n") == 4, ended.stdout + ended.stderr

    def test_the_vectors_are_what_accelerate_makes(self):
        try:
            version = importlib.metadata.version("accelerate")
        except importlib.metadata.PackageNotFoundError:
            raise Skip("accelerate is not installed")
        if version != VECTORS["accelerate"]:
            raise Skip(f"accelerate {version} is installed, and the vectors are of {VECTORS['accelerate']}")
        script = pathlib.Path(__file__).with_name("record_config.py")
        made = subprocess.run([sys.executable, str(script)], env={**os.environ, "HF_HOME": str(self.folder)}, capture_output=True, text=True, timeout=300)
        assert made.returncode == 0, made.stderr
        made = json.loads(made.stdout)
        assert made["flags"] == VECTORS["flags"]
        for name, case in VECTORS["cases"].items():
            assert made["cases"][name] == case, f"{name}: {made['cases'][name]}\nis recorded as {case}"


RANK_PROGRAM = str(pathlib.Path(sys.argv[2]).resolve())
run_cases(ConfigParity, sys.argv[1])
