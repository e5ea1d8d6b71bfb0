#!/usr/bin/env python3
"""`muster env` and `muster test`, as a user calls them.

    probe_test.py MUSTER
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile


def call(program, *arguments, **variables):
    """Without the variables that are None."""
    environment = {name: value for name, value in {**os.environ, **variables}.items() if value is not None}
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=100, env=environment)


def env_names_versions_and_devices(muster):
    outcome = call(muster, "env")
    assert outcome.returncode == 0, outcome.stderr
    rows = dict(line.split(None, 1) for line in outcome.stdout.splitlines())
    for name, pattern in {"muster": r"\d+\.\d+", "libtorch": r"\d+\.\d+.*CPU kernels", "threads": r"[1-9]", "devices": "cpu", "backends": "gloo"}.items():
        assert re.search(pattern, rows.get(name, "")), f"no {name} in\n{outcome.stdout}"
    assert "nobody" in outcome.stdout.replace("started by", "started"), outcome.stdout


def env_lists_what_enters_the_process(muster):
    entries = {"forked ranks": "MUSTER_FORK_RANKS=0", "key fallback": "MUSTER_NO_KEY_FALLBACK=1", "random key": "MUSTER_NO_RANDOM_KEY=1", "half LSTM": "MUSTER_NO_HALF_LSTM=1",
               "kept memory": "MUSTER_KEEP_MEMORY=0"}
    for variables in ({}, dict(switch.split("=") for switch in entries.values())):
        outcome = call(muster, "env", **variables)
        for name, switch in entries.items():
            what = r"kept out by" if variables else r"(from the first|before main,) .*; kept out by"
            assert re.search(rf"^process-wide +{name} +{what} {switch}", outcome.stdout, re.MULTILINE), f"no {name} in\n{outcome.stdout}"


def env_names_the_gpus(muster):
    with tempfile.TemporaryDirectory() as folder:
        smi = pathlib.Path(folder, "nvidia-smi")
        script = "#!/bin/sh\ncase $1 in\n-L) echo 'GPU 0: NVIDIA A100 (UUID: GPU-5d5b)'; echo '  MIG 1g.5gb     Device  0: (UUID: MIG-c738)'; echo 'GPU 1: NVIDIA A100 (UUID: GPU-8f6e)';;\n"
        smi.write_text(script + "topo) printf '\\tGPU0\\tGPU1\\nGPU0\\t X \\tNV12\\nGPU1\\tNV12\\t X \\n';;\n--query*) echo 570.86.15;;\nesac\n")
        smi.chmod(0o755)
        path = f"{folder}:{os.environ['PATH']}"
        outcome = call(muster, "env", PATH=path, CUDA_VISIBLE_DEVICES="MIG-c738,1")
        assert outcome.returncode == 0, outcome.stderr
        for line in (r"driver +\d+\.\d+.* \((nvidia-smi|/proc/driver/nvidia/version)\)", r"gpu +0: NVIDIA A100 \(UUID: GPU-5d5b\)", r"gpu +0\.0: MIG 1g\.5gb \(UUID: MIG-c738\)",
                     r"link +NV12 \(12 NVLinks\): GPU0-GPU1", r"visible +MIG-c738 \(0\.0: MIG 1g\.5gb\), 1"):
            assert re.search(f"^{line}$", outcome.stdout, re.MULTILINE), f"no {line} in\n{outcome.stdout}"
        assert re.search("^visible +MU573", call(muster, "env", PATH=path, CUDA_VISIBLE_DEVICES="0,x").stdout, re.MULTILINE)
        smi.write_text("#!/bin/sh\necho no driver >&2\nexit 9\n")
        outcome = call(muster, "env", PATH=path)
        assert outcome.returncode == 0 and "nvidia-smi ended with code 9: no driver" in outcome.stdout, outcome.stdout + outcome.stderr
    lines = call(muster, "env", PATH="/nothing", CUDA_VISIBLE_DEVICES=None).stdout
    assert re.search("^visible +all$", lines, re.MULTILINE) and re.search("^driver +", lines, re.MULTILINE), lines


def env_says_what_libtorch_and_muster_have_for_gpus(muster):
    outcome = call(muster, "env")
    for line in ("cuda +(none: this LibTorch was built without it|LibTorch was built with [0-9.]+ and sees)", "nccl +(none|[0-9]+[.])", "object +backend nccl: ", "object +backend mpi: "):
        assert re.search(f"^{line}", outcome.stdout, re.MULTILINE), f"no {line} in\n{outcome.stdout}"
    with tempfile.TemporaryDirectory() as folder:
        planted = pathlib.Path(folder, "libmuster_nccl.so")
        planted.write_text("")
        outcome = call(muster, "env", MUSTER_BACKEND_PATH=folder)
        assert re.search(f"^object +backend nccl: {planted}$", outcome.stdout, re.MULTILINE), outcome.stdout


def env_says_who_may_join(muster):
    secret, place = "0123456789abcdef" * 4, {"MASTER_ADDR": "alpha", "MASTER_PORT": "29400"}
    of_a_job = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", **place}
    for variables, wanted in (({}, "a secret it makes; on several whoever reaches the store"), (of_a_job, "whoever reaches it, at alpha port 29400: no secret"),
                              ({**of_a_job, "MASTER_ADDR": "127.0.0.1"}, "every user of this host, at 127.0.0.1"),
                              ({"MUSTER_SECRET": secret}, "ranks with the secret"), ({"MUSTER_SECRET": "short"}, "MU068"),
                              ({"MUSTER_SECRET_FILE": "/no/such/file"}, "MU068")):
        outcome = call(muster, "env", **variables)
        assert outcome.returncode == 0, outcome.stderr
        assert re.search(rf"^may join +.*{wanted}", outcome.stdout, re.MULTILINE), outcome.stdout
        assert secret not in outcome.stdout + outcome.stderr
    outcome = call(muster, "run", "--devices", "2", muster, "env")
    assert "ranks with the secret" in outcome.stdout, outcome.stdout


def env_names_the_launcher(muster):
    outcome = call(muster, "run", "--devices", "2", "--no-prefix", muster, "env")
    assert outcome.returncode == 0, outcome.stderr
    assert "rank 1 of 2" in outcome.stdout, outcome.stdout


def test_tries_everything(muster, ranks):
    outcome = call(muster, "test", "--devices", str(ranks))
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    for name in ("launch", "collectives", "data", "training", "weights"):
        assert re.search(rf"^ok +{name} ", outcome.stdout, re.MULTILINE), f"no {name} in\n{outcome.stdout}"
    assert f"everything works on {ranks} ranks" in outcome.stdout, outcome.stdout


def test_runs_on_the_cpu_of_a_machine_with_accelerators(muster):
    for devices, words in (("0", "--devices 1' tries the 1 accelerator of"), ("0,1,2", "--devices 3' tries the 3 accelerators of")):
        with tempfile.TemporaryDirectory() as root:
            pathlib.Path(root, "proc/driver/nvidia").mkdir(parents=True)
            outcome = call(muster, "test", CUDA_VISIBLE_DEVICES=devices, MUSTER_TEST_ROOT=root)
        assert outcome.returncode == 0 and "everything works on 2 ranks" in outcome.stdout, outcome.stdout + outcome.stderr
        assert re.search(rf"^muster test: on the CPU; 'muster test --accelerator auto {words} this machine$", outcome.stdout, re.MULTILINE), outcome.stdout
    assert "on the CPU" not in call(muster, "test", CUDA_VISIBLE_DEVICES="-1").stdout


def test_says_what_fails(muster):
    outcome = call(muster, "test", TMPDIR="/nowhere")
    assert outcome.returncode == 1, outcome.stdout + outcome.stderr
    assert re.search(r"^FAILED +weights +.*/nowhere", outcome.stdout, re.MULTILINE), outcome.stdout
    assert "everything works" not in outcome.stdout


def a_missing_probe_is_named(muster):
    with tempfile.TemporaryDirectory() as folder:
        alone = shutil.copy(muster, pathlib.Path(folder, "muster"))
        outcome = call(alone, "test")
        assert outcome.returncode == 2 and "muster-probe" in outcome.stderr, outcome.stderr
        outcome = call(alone, "env")
        assert outcome.returncode == 1 and "muster-probe is missing" in outcome.stdout, outcome.stdout


def main(muster):
    passed, failed = 0, []
    checks = [env_names_versions_and_devices, env_lists_what_enters_the_process, env_names_the_gpus, env_says_what_libtorch_and_muster_have_for_gpus, env_says_who_may_join, env_names_the_launcher, lambda m: test_tries_everything(m, 1),
              lambda m: test_tries_everything(m, 2), lambda m: test_tries_everything(m, 3), test_runs_on_the_cpu_of_a_machine_with_accelerators, test_says_what_fails, a_missing_probe_is_named]
    for check in checks:
        try:
            check(muster)
            passed += 1
        except (AssertionError, subprocess.TimeoutExpired) as problem:
            failed.append(f"{check.__name__}: {problem}")
    print("\n".join(f"FAILED {problem}" for problem in failed))
    print(f"{passed} passed, {len(failed)} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
