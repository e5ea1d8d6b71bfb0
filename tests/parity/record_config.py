"""Records what accelerate makes of files of each branch of its questionnaire, as vectors for config_parity.py.

usage: record_config.py > config_vectors.json

The questions are accelerate's own, answered by a table: the files are what `accelerate config` writes. The environments are those of its own
prepare_*_env functions, called by its own `accelerate launch` up to the point where a process would start.
"""
import contextlib
import io
import json
import os
import pathlib
import re
import sys
import tempfile

MACHINES = ["XPU", "HPU", "NPU", "MLU", "SDAA", "MUSA", "NEURON"]
FAMILIES = re.compile(r"(ACCELERATE|FSDP|PARALLELISM_CONFIG|MEGATRON_LM)_|(MASTER_ADDR|MASTER_PORT|CUDA_VISIBLE_DEVICES)$")
GPU = {"type of machine": "multi-GPU", "GPU(s) should be used": 4}
CPU = {"type of machine": "multi-CPU", "processes should be used": 4}
SHARDED = {**GPU, "use FullyShardedDataParallel": "yes"}
FIRST = {**SHARDED, "FSDP version": "1"}
STAGES = {**GPU, "use DeepSpeed": "yes"}
NODES = {"different machines": 2, "rank of this machine": "1", "IP address of the machine": "10.0.0.1", "port you will use": 29501}


def branches():
    """(name, answers): the beginning of a question, and what is answered; other questions get their default."""
    yield "no", {}
    yield "no_cpu", {"CPU only": "yes"}
    yield from ((f"no_{word}", {"use mixed precision": word}) for word in ("fp16", "bf16"))
    yield from ((f"no_fp8_{word}", {"use mixed precision": "fp8", "Which FP8 backend": word}) for word in ("ao", "te", "msamp"))
    yield "no_dynamo", {"optimize your script": "yes", "Which dynamo backend": "inductor", "customize the defaults": "yes", "Which mode": "max-autotune"}
    yield "no_gpu_1", {"GPU(s) (by id)": "1"}
    yield "no_numa", {"numa efficiency": "yes"}
    yield "cpu", CPU
    yield "cpu_bf16", {**CPU, "use mixed precision": "bf16"}
    yield "cpu_mpirun", {**CPU, "launch mpirun": "yes", "hostfile": "/etc/hosts"}
    yield "cpu_nodes", {**CPU, **NODES}
    yield "gpu", GPU
    yield from ((f"gpu_{word}", {**GPU, "use mixed precision": word}) for word in ("fp16", "bf16"))
    yield "gpu_ids", {**GPU, "GPU(s) (by id)": "4,5,6,7"}
    yield "gpu_debug_numa", {**GPU, "checked while running": "yes", "numa efficiency": "yes"}
    yield "gpu_nodes", {**GPU, **NODES}
    yield "gpu_nodes_c10d", {**GPU, **NODES, "same local network": "no", "rendezvous backend": "c10d"}
    yield from ((name.lower(), {"type of machine": f"multi-{name}", "should be used for distributed": 2}) for name in MACHINES)
    yield "tpu", {"type of machine": "TPU"}
    yield "tpu_cluster", {"type of machine": "TPU", "using a TPU cluster": "yes", "name of your TPU": "pod", "zone of your TPU": "zone"}
    yield from ((f"zero{stage}", {**STAGES, "ZeRO optimization stage": str(stage)}) for stage in range(4))
    yield "zero2_windows_bf16", {**STAGES, "gradient accumulation steps": 4, "use mixed precision": "bf16"}
    yield "zero2_clipping", {**STAGES, "use gradient clipping": "yes"}
    yield "zero2_offload", {**STAGES, "offload optimizer states?": "cpu"}
    yield "zero3_nvme", {**STAGES, "ZeRO optimization stage": "3", "offload parameters?": "nvme"}
    yield "zero3_16bit", {**STAGES, "ZeRO optimization stage": "3", "16-bit model": "yes"}
    yield "zero_file", {**STAGES, "json file to a DeepSpeed": "yes", "json DeepSpeed config": "ds.json"}
    yield "zero_moe", {**STAGES, "Mixture-of-Experts": "yes", "MoE layer class": "Expert"}
    yield "zero_pdsh", {**STAGES, **NODES, "Which Type of launcher": "pdsh", "location of hostfile": "/etc/hosts"}
    yield "zero_standard", {**STAGES, **NODES, "Which Type of launcher": "standard"}
    words = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
    classes = {"layer class names": "Block,Head"}
    yield from ((f"fsdp1_{word.lower()}", {**FIRST, **classes, "sharding strategy": word}) for word in words)
    yield "fsdp1_size", {**FIRST, "auto wrap policy": "SIZE_BASED_WRAP", "minimum number": 2000}
    yield "fsdp1_no_wrap_bf16", {**FIRST, "auto wrap policy": "NO_WRAP", "use mixed precision": "bf16"}
    yield "fsdp1_no_split", {**FIRST, "_no_split_modules": "yes"}
    yield "fsdp1_offload", {**FIRST, **classes, "to CPU?": "yes"}
    yield "fsdp1_backward_post", {**FIRST, **classes, "backward prefetch": "BACKWARD_POST"}
    yield "fsdp1_local_state", {**FIRST, **classes, "state dict type": "LOCAL_STATE_DICT"}
    yield "fsdp1_other_words", {**FIRST, **classes, "state dict type": "SHARDED_STATE_DICT", "forward prefetch": "yes", "use_orig_params": "no", "RAM efficient": "no"}
    yield "fsdp1_activations", {**FIRST, **classes, "activation checkpointing": "yes"}
    yield "fsdp2", {**SHARDED, **classes}
    yield "fsdp2_keep", {**SHARDED, **classes, "resharding after forward": "no"}
    yield "fsdp2_nodes_fp16", {**SHARDED, **NODES, **classes, "use mixed precision": "fp16"}
    mesh = {**SHARDED, **classes, "parallelism config": "yes"}
    yield "fsdp2_mesh", {**mesh, "replicate size": 2, "FSDP shard size": 2}
    yield "fsdp2_tensor", {**mesh, "tensor parallelism size": 2, "FSDP shard size": 2}
    yield "fsdp2_context", {**mesh, "context parallelism size": 2, "FSDP shard size": 2}
    yield "megatron", {**GPU, "use Megatron-LM": "yes"}
    yield "sagemaker", {"": "sagemaker", "IAM role name": "role"}
    yield "sagemaker_data", {"": "sagemaker", "IAM role name": "role", "distributed mode": "Data parallelism"}


class Questionnaire:
    """Stands in for the two functions that ask."""

    def __init__(self, answers):
        self.answers, self.used = answers, {""}

    def answer_to(self, question):
        for begin, answer in self.answers.items():
            if begin and begin in question:
                self.used.add(begin)
                return str(answer)
        return None

    def field(self, question, convert=None, default=None, error_message=None):
        answer = self.answer_to(question)
        return default if answer is None else convert(answer) if convert else answer

    def options(self, question, options=(), convert=None, default=0):
        answer = self.answer_to(question)
        index = default if answer is None else [str(option) for option in options].index(answer)
        return convert(index) if convert else index


@contextlib.contextmanager
def replaced(*changes):
    before = [(place, name, getattr(place, name)) for place, name, _ in changes]
    for place, name, value in changes:
        setattr(place, name, value)
    try:
        yield
    finally:
        for place, name, value in before:
            setattr(place, name, value)


def write_file(answers, path):
    from accelerate.commands.config import cluster, sagemaker

    place = sagemaker if "" in answers else cluster
    asked = Questionnaire(answers)
    changes = [(place, "_ask_field", asked.field), (place, "_ask_options", asked.options)]
    present = lambda *_, **__: True
    for name in dir(place):
        if re.fullmatch(r"is_(deepspeed|fp8|msamp|torchao|transformer_engine|transformers)_available", name):
            changes.append((place, name, present))
    with replaced(*changes), contextlib.redirect_stdout(io.StringIO()):
        config = sagemaker.get_sagemaker_input() if place is sagemaker else cluster.get_cluster_input()
    unused = set(answers) - asked.used
    if unused:
        raise SystemExit(f"no question begins like {unused}")
    config.to_yaml_file(path)


def environment_of(path):
    """What `accelerate launch --config_file path` would start: its launcher, the number of processes, the environment; or its error."""
    from accelerate.commands import launch
    from accelerate.utils import launch as prepare

    made = {}

    def record(name, prepare_env):
        def launcher(args, *_):
            made.update(launcher=name, num_processes=getattr(args, "num_processes", None))
            if prepare_env:
                env = prepare_env(args)
                env = env[1] if isinstance(env, tuple) else env
                made["environment"] = {key: env[key] for key in sorted(env) if FAMILIES.match(key)}
        return launcher

    changes = [(launch, "simple_launcher", record("simple", prepare.prepare_simple_launcher_cmd_env)), (launch, "multi_gpu_launcher", record("multi_gpu", prepare.prepare_multi_gpu_env)),
               (launch, "deepspeed_launcher", record("deepspeed", prepare.prepare_deepspeed_cmd_env)), (launch, "tpu_launcher", record("tpu", None)),
               (launch, "tpu_pod_launcher", record("tpu_pod", None)), (launch, "sagemaker_launcher", lambda *_: made.update(launcher="sagemaker")),
               (prepare, "is_fp8_available", lambda: True), (prepare, "is_port_in_use", lambda port: False), (prepare, "_get_mpirun_args", lambda: ("mpirun", "--hostfile", "-n", "--npernode", "--bind-to"))]
    args = launch.launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
    with replaced(*changes), contextlib.redirect_stdout(sys.stderr):
        try:
            launch.launch_command(args)
        except (AssertionError, AttributeError, ValueError) as error:
            made["error"] = str(error).replace(str(path), "FILE")
    return made


def record():
    for name in [name for name in os.environ if FAMILIES.match(name) or name == "OMP_NUM_THREADS"]:
        del os.environ[name]
    import accelerate
    from accelerate.commands import launch

    words = [word for action in launch.launch_command_parser()._actions for word in action.option_strings]
    vectors = {"accelerate": accelerate.__version__, "flags": [word for word in words if word.startswith("--") and word != "--help"], "cases": {}}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "default_config.yaml"
        for name, answers in branches():
            before = dict(os.environ)
            write_file(answers, path)
            vectors["cases"][name] = {"file": path.read_text(), **environment_of(path)}
            os.environ.clear()
            os.environ.update(before)
    return vectors


def text_of(vectors):
    """One line for each case."""
    lines = [f"  {json.dumps(name)}: {json.dumps(case, sort_keys=True)}" for name, case in vectors["cases"].items()]
    return '{"accelerate": ' + json.dumps(vectors["accelerate"]) + ',\n "flags": ' + json.dumps(vectors["flags"]) + ',\n "cases": {\n' + ",\n".join(lines) + "\n}}\n"


if __name__ == "__main__":
    sys.stdout.write(text_of(record()))
