#!/usr/bin/env python3
"""Every example, unchanged, alone and under each launcher with 1, 2 and 4 ranks; and how the pair differs.

    examples_test.py SOURCE BUILD
"""
import concurrent.futures
import difflib
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from counted import close, report, skip  # noqa: E402

source, build = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
python_folder = pathlib.Path(sys.executable).parent


def problem_of(command, folder=None):
    """Trains three epochs; the loss must be printed once per epoch and fall. What is wrong, or None."""
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, cwd=folder)
    except subprocess.TimeoutExpired:
        return "not done after 120 s"
    losses = [float(x) for x in re.findall(r"epoch \d: loss ([0-9.]+)", done.stdout)]
    if done.returncode:
        return f"exit code {done.returncode}\n{done.stdout[-1500:]}{done.stderr[-1500:]}"
    if len(losses) != 3 or losses[2] >= losses[0]:
        return f"losses {losses}, expected three that fall"
    return None


def run(name, command, folder=None):
    report(name, problem_of(command, folder))


def launchers(program):
    yield "alone", [program]
    for n in ("1", "2", "4"):
        yield f"muster run {n}", [build / "bin/muster", "run", "--devices", n, program]
    torchrun = python_folder / "torchrun"
    for n in ("1", "2", "4"):
        if torchrun.exists():
            yield f"torchrun {n}", [torchrun, "--no-python", "--nproc-per-node", n, "--master-port", "0", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", program]
        else:
            skip(f"torchrun {n} {program.name}", f"{torchrun} is not there")
    mpirun = shutil.which("mpirun")
    for n in ("1", "2", "4"):
        if mpirun:
            yield f"mpirun {n}", [mpirun, "--allow-run-as-root", "--oversubscribe", "-n", n, program]
        else:
            skip(f"mpirun {n} {program.name}", "mpirun is not installed")


def check_launchers():
    """One example under every launcher that the documentation names, on two ranks."""
    program = build / "examples/accelerate"
    srun = shutil.which("srun")
    slurm = srun and subprocess.run([shutil.which("sinfo") or "sinfo", "--noheader"], capture_output=True).returncode == 0
    commands = {
        "torchrun": [python_folder / "torchrun", "--no-python", "--nproc-per-node", "2", "--master-port", "0", "--rdzv-backend", "c10d",
                     "--rdzv-endpoint", "localhost:0", program],
        "torch.distributed.launch": [sys.executable, "-m", "torch.distributed.launch", "--use-env", "--no-python", "--nproc-per-node", "2",
                                     "--master-port", str(free_port()), program],
        "mpirun": [shutil.which("mpirun"), "--allow-run-as-root", "--oversubscribe", "-n", "2", program],
        "srun": [srun, "--ntasks", "2", program],
    }
    missing = {
        "torchrun": not (python_folder / "torchrun").exists() and "torchrun is not installed",
        "torch.distributed.launch": not (python_folder / "torchrun").exists() and "torch is not installed",
        "mpirun": not shutil.which("mpirun") and "mpirun is not installed",
        "srun": not slurm and ("SLURM does not run here; make test-services starts one" if srun else "srun is not installed; make test-services installs it"),
    }
    for name, command in commands.items():
        if missing[name]:
            skip(f"{name}, beside the others", missing[name])
        else:
            run(f"{name}, beside the others", command)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def lines_of(folder):
    return (source / "examples" / folder / "main.cpp").read_text().splitlines()


def check_pair():
    added = [line for line in difflib.unified_diff(lines_of("01_plain"), lines_of("02_accelerate"), n=0, lineterm="")
             if line.startswith("+") and not line.startswith("+++")]
    report("the pair differs by at most 6 added or changed lines", None if 0 < len(added) <= 6 else f"{len(added)}: {added}")
    report("README states the number", None if len(added) == 6 and "six added or changed lines" in (source / "README.md").read_text() else "it does not")
    plain = "\n".join(lines_of("01_plain"))
    report("the plain program is pure LibTorch", "it names muster" if "muster" in plain else None)


def losses_of(folder):
    return [line.split(",")[1] for line in (folder / "rank0.csv").read_text().splitlines()[1:]]


def read_book(folder, ranks, strategy, precision, wrapping, width):
    """A short course, whose results lie in the folder that is named."""
    name = f"{strategy} {precision} {wrapping} {ranks}"
    run(f"book {name}", [build / "bin/muster", "run", "--devices", ranks, "--threads", "1", build / "examples/fsdp", folder / "book", folder / name,
                         strategy, precision, wrapping, "4", width])
    return folder / name


def check_book():
    """The book under fsdp: every wrapping and precision learns, and at two ranks the losses of each step are those under ddp."""
    if not shutil.which("bible"):
        return skip("the book", "Debian's package bible-kjv is not installed")
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        with open(folder / "book", "w") as book:
            subprocess.run(["bible", "-f", "gen1:1-gen50:26"], stdin=subprocess.DEVNULL, stdout=book, check=True)
        whole = read_book(folder, "2", "ddp", "32-true", "auto", "64")
        sharded = [read_book(folder, "2", "fsdp", "32-true", wrapping, "64") for wrapping in ("auto", "wrap")]
        same = [losses_of(course) for course in (whole, *sharded)]
        report("the book's losses are alike", None if len(same[0]) == 12 and same[0] == same[1] == same[2] else f"{same}")
        read_book(folder, "1", "fsdp", "32-true", "auto", "64")
        for precision, wrapping in (("bf16-mixed", "auto"), ("16-mixed", "wrap")):  # a narrow model: not every processor computes them itself
            read_book(folder, "2", "fsdp", precision, wrapping, "32")
        whole.rename(folder / "ddp")
        sharded[0].rename(folder / "fsdp")
        draw(folder)


def draw(folder):
    if not shutil.which("gnuplot"):
        return skip("the book's curves", "gnuplot is not installed")
    done = subprocess.run(["gnuplot", "-e", f"out='{folder}'", source / "tools/fsdp_curves.gp"], capture_output=True, text=True)
    drawn = (folder / "fsdp.svg").read_text() if (folder / "fsdp.svg").exists() else ""
    report("the book's curves", None if not done.returncode and drawn.count("<path") >= 6 and "</svg>" in drawn else done.stderr + drawn[-300:])


def check_readme():
    """README's program, which leaves its weights where it runs."""
    program = build / "examples/readme"
    for how, command in (("alone", [program]), ("muster run 2", [build / "bin/muster", "run", "--devices", "2", program])):
        with tempfile.TemporaryDirectory() as scratch:
            run(f"{how} readme", command, scratch)
            report(f"{how} readme saves", None if list(pathlib.Path(scratch).glob("out/*.safetensors")) else "no weights in out")


def check_trainer():
    """The Trainer's program, which leaves its best checkpoint where it runs."""
    program = build / "examples/trainer"
    for how, command in (("alone", [program]), ("muster run 2", [build / "bin/muster", "run", "--devices", "2", program])):
        with tempfile.TemporaryDirectory() as scratch:
            run(f"{how} trainer", command, scratch)
            report(f"{how} trainer saves", None if list(pathlib.Path(scratch).glob("digits/*.ckpt")) else "no checkpoint in digits")


def check_one_line():
    """The program of one line, as its page shows it."""
    program = build / "examples/one_line"
    page = (source / "docs/howto/trainer_main.md").read_text()
    example = (source / "examples/08_one_line/main.cpp").read_text()
    blocks = re.findall(r"^```cpp\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    report("the page of one line quotes its program", None if blocks and all(block in example for block in blocks) else "a block is not in it")
    fit = [program, "fit", "--trainer.max_epochs", "3", "--model.lr", "0.002"]
    for how, command in (("alone", fit), ("muster run 2", [build / "bin/muster", "run", "--devices", "2", *fit]), ("two of its own", [*fit, "--trainer.devices", "2"])):
        with tempfile.TemporaryDirectory() as scratch:
            run(f"{how} one_line", command, scratch)
    with tempfile.TemporaryDirectory() as scratch:
        config = pathlib.Path(scratch, "config.yaml")
        config.write_text(subprocess.run([*fit, "--print_config"], capture_output=True, text=True, timeout=120).stdout)
        run("one_line by a file", [program, "fit", "--config", config], scratch)


GALLERY = {  # the commands of a program, and what must be in its output
    "boring": ([["boring"], ["boring", "wrapped"]], r"boring: best 0\.00\d+ after \d+ epochs, test 0\.0\d+, (64|32) predictions"),
    "gan": ([["gan"]], r"epoch 2: generator \d\.\d+, discriminator \d\.\d+, ink 0\.\d+"),
    "language": ([["language", source / "README.md"], ["language", source / "README.md", "wrapped"]], r"epoch 2: loss \d\.\d+"),
}
FLAGS = {"language": ["--trainer-limit-train-batches", "8"]}
SHARDED = ("fsdp", "fsdp_native", "ddp_fully_sharded")   # today's name, Lightning's of PyTorch's FSDP, and Lightning's of fairscale's


def gallery_output(name, ranks, strategy, words):
    """What a program of the gallery prints; strategy "none": no launcher, and no group of ranks."""
    program, flags = build / "examples/trainer_gallery", FLAGS.get(name, [])
    command = [build / "bin/muster", "run", "--no-prefix", "--threads", "1", "--devices", str(ranks), "--strategy", strategy, *flags, program, *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MUSTER_TRAINER_ENABLE_PROGRESS_BAR": "false"}
    if strategy == "none":
        command = [program, *words]
        environment |= {"MUSTER" + flag[1:].replace("-", "_").upper(): value for flag, value in zip(flags[::2], flags[1::2])}
    with tempfile.TemporaryDirectory() as scratch:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, cwd=scratch)
        saved = list(pathlib.Path(scratch).glob("**/*.ckpt/manifest.json"))
    return done.stdout if done.returncode == 0 and saved else f"exit code {done.returncode}, {len(saved)} checkpoints\n{done.stdout}{done.stderr[-1500:]}"


def check_gallery(pool):
    """At one rank as at two, every strategy, under each of its names, with parts that are found or named, gives the same values."""
    for name, (variants, expected) in GALLERY.items():
        names = SHARDED if name == "boring" else SHARDED[:1]
        for ranks, plain in ((1, ("none", "ddp")), (2, ("ddp",))):
            cases = [(strategy, variants[0]) for strategy in plain] + [(strategy, words) for strategy in names[:3 if ranks == 2 else 1] for words in variants]
            outputs = list(pool.map(lambda case: gallery_output(name, ranks, *case), cases))
            report(f"{name} on {ranks} trains", None if re.search(expected, outputs[0]) else outputs[0])
            for (strategy, words), output in zip(cases[1:], outputs[1:]):
                report(f"{name} on {ranks}, {strategy} {words[1:]}, is as {plain[0]}", None if output == outputs[0] else f"{output}\nnot {outputs[0]}")


def check_demo():
    """The demo of `make demo`, as short as can be, where the launcher sees an accelerator."""
    with tempfile.TemporaryDirectory() as scratch:
        pathlib.Path(scratch, "proc/driver/nvidia").mkdir(parents=True)
        environment = {**os.environ, "BUILD": str(build), "CUDA_VISIBLE_DEVICES": "0", "MUSTER_TEST_ROOT": scratch, "EPOCHS": "1", "OUT": scratch}
        done = subprocess.run([source / "tools/demo.sh"], capture_output=True, text=True, timeout=300, env=environment)
        good = not done.returncode and "demo: two ranks on the CPU, whatever the machine has\n" in done.stdout and "demo: accuracy" in done.stdout
        report("the demo where there is an accelerator", None if good else done.stdout[-1500:] + done.stderr[-1500:])


check_pair()
check_demo()
check_readme()
check_trainer()
check_one_line()
check_launchers()
check_book()
run("alone plain", [build / "examples/plain"])
launches = [(f"{how} {example}", command) for example in ("accelerate", "fabric", "transformer")
            for how, command in launchers(build / "examples" / example)]
with concurrent.futures.ThreadPoolExecutor(2) as pool:   # half of the time is one process that starts: two launches at once
    check_gallery(pool)
    for (name, _), problem in zip(launches, pool.map(problem_of, [command for _, command in launches])):
        report(name, problem)
close()
