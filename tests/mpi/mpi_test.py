#!/usr/bin/env python3
"""The backend "mpi" under mpirun, with two ranks and with four: bits, mismatches, failures, ends of processes, and training as over gloo.

    mpi_test.py SOURCE BUILD [ranks]

With "ranks" only the cases of mpi_ranks run: a build with a sanitizer has no examples, and preloads nothing.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from counted import close, report  # noqa: E402

source, build = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
ranks_only = sys.argv[3:] == ["ranks"]
ranks_program, mpirun = build / "tests/mpi_ranks", shutil.which("mpirun")

if not ranks_program.exists() or not mpirun:
    print("mpi: skipped: " + ("mpirun is not installed" if ranks_program.exists() else "CMake found no MPI (Debian: libopenmpi-dev)"))
    print("0 passed, 0 failed, 1 skipped")
    sys.exit(77)


def run(ranks, *command, **variables):
    """Exit code and output of a job; it ends within two minutes, or is said to be stuck."""
    words = [mpirun, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(ranks), *map(str, command)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **variables}
    if ranks_only:  # a sanitizer's dlopen() does not look where the program's own would
        environment["LD_LIBRARY_PATH"] = str(build / "lib")
        # Open MPI leaks from modules that it has unloaded, so that nothing names them.
        environment["ASAN_OPTIONS"] = os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment) as job:
        try:
            said = job.communicate(timeout=120)[0]
            return job.returncode, said
        except subprocess.TimeoutExpired:
            job.kill()
            return None, "it is stuck\n" + job.communicate()[0]


def case(name, ranks, **variables):
    """How the job of this case ended: its code, its output, and the files that its ranks left."""
    with tempfile.TemporaryDirectory() as folder:
        code, said = run(ranks, ranks_program, f"--gtest_filter=MpiRanks.{name}", MUSTER_TEST_FOLDER=folder, **variables)
        return code, said, {path.name: path.read_text() for path in pathlib.Path(folder).iterdir()}


def passes(name, ranks, ends_well=True, **variables):
    """Every rank of the case says that all was as it should be; after a failure of a group the job ends by MPI_Abort."""
    code, said, left = case(name, ranks, **variables)
    good = all(left.get(f"rank{rank}") == "ok" for rank in range(ranks)) and code is not None and (code == 0) == ends_well
    good = good and not any(report in said for report in ("ThreadSanitizer:", "AddressSanitizer:", "runtime error:"))
    report(f"{name} on {ranks} ranks", None if good else f"exit code {code}, ranks {left}\n{said[-3000:]}")
    return left


def same_training(folder):
    """Weights and losses of the book's model, replicated and sharded, over gloo and over MPI."""
    book = folder / "book"
    book.write_bytes(b"".join(page.read_bytes() for page in sorted((source / "docs/concepts").glob("*.md")))[:60_000])
    trained = {}
    for backend, strategy in (("gloo", "ddp"), ("mpi", "ddp"), ("mpi", "fsdp")):
        place = folder / f"{backend}-{strategy}"
        code, said = run(2, build / "examples/fsdp", book, place, strategy, "32-true", "auto", "2", "64", MUSTER_BACKEND=backend)
        report(f"{strategy} trains over {backend}", None if code == 0 and f"backend: {backend}" in said else f"exit code {code}\n{said[-3000:]}")
        losses = [line.split(",")[1] for line in (place / "rank0.csv").read_text().splitlines()[1:]] if code == 0 else None
        trained[backend, strategy] = {file.name: file.read_bytes() for file in sorted(place.glob("*.safetensors"))}, losses
    for over in (("mpi", "ddp"), ("mpi", "fsdp")):
        same = trained[over] == trained["gloo", "ddp"] and trained["gloo", "ddp"][0]
        report(f"{over} gives the bits of gloo", None if same else f"losses {trained[over][1]}, not {trained['gloo', 'ddp'][1]}")


def refused(name, error, said):
    report(name, None if error in said else f"{error} is not in what it said:\n{said[-3000:]}")


def what_cannot_be_loaded(folder):
    """Another MPI (here a library that says so), no object, and an object of another version."""
    compiler = shutil.which("c++") or shutil.which("g++")
    other = folder / "other_mpi.c"
    other.write_text('int MPI_Get_library_version(char* text, int* size) { return *size = __builtin_sprintf(text, "MPICH Version: 4.0"), 0; }\n')
    subprocess.run([compiler, "-x", "c", "-shared", "-fPIC", "-o", folder / "other_mpi.so", other], check=True)
    job = [ranks_program, "--gtest_filter=MpiRanks.ManySmallOperationsLoseNothing"]
    refused("another MPI is refused", "MU568", run(2, *job, LD_PRELOAD=str(folder / "other_mpi.so"), MUSTER_TEST_FOLDER=str(folder))[1])
    for name, error, content in (("an object that is none", "cannot be opened", None), ("an object of another version", "of another version", other)):
        place = folder / name.replace(" ", "-")
        place.mkdir()
        if content:
            subprocess.run([compiler, "-x", "c", "-shared", "-fPIC", "-o", place / "libmuster_mpi.so", content], check=True)
        else:
            (place / "libmuster_mpi.so").write_text("no library\n" * 100)
        said = run(2, *job, LD_LIBRARY_PATH=str(place), MUSTER_TEST_FOLDER=str(folder))[1]
        refused(f"{name} is refused", "MU567", said)
        refused(f"{name} is named", error, said)


def cases_of_ranks():
    for ranks in (2, 4):
        for name in ("GiveTheBitsOfGloo", "OverlapInGroupsAndThreads", "ManySmallOperationsLoseNothing", "AGroupMayOutliveMain", "AForkedProcessLeavesMpiAlone",
                     "AProgramWithOneThreadOfMpi", "AProgramThatMakesOneCallAtATime", "SomeOfTheRanks", "AnotherPlaceIsRefused"):
            passes(name, ranks)
        for name in ("MismatchesAreErrorsOnAll", "AStoppedRankIsATimeOutAndItsLateMessagesDoNoHarm", "AbortReachesRanksThatWait"):
            passes(name, ranks, ends_well=False)
        passes("SumsOfSmallIntegersWrapAround", ranks)
        passes("CommunicatorsMayBeMadeAndLeftInALoop", ranks)
        passes("AGroupThatARankHasLeftIsNoticed", ranks, ends_well=False)
        passes("CommunicatorsOfTheProgramAreChecked", ranks, ends_well=False)
        left = passes("AnEarlyExitWithoutErrorIsTold", 2, ends_well=False)
        report("the first cause is told", None if left.get("told0", "").startswith("MU052: rank 0 lost rank 1") else left)
    passes("ManySmallOperationsLoseNothing", 2, MUSTER_SECRET="0123456789abcdef" * 2)
    for name, expected in (("AKilledRankEndsTheJob", 137), ("AnEarlyExitEndsTheJob", 3)):
        code, said, _ = case(name, 4)
        report(name, None if code == expected else f"exit code {code}\n{said[-3000:]}")


def the_page():
    """Its program, with and without ranks of its own."""
    for words, expected in (([], "2 ranks train, the others solve"), (["everywhere"], "all 3 ranks train")):
        code, said = run(3, build / "tests/howto_mpi", *words)
        report(f"the page's program {words}", None if code == 0 and said.count(expected) == 1 else f"exit code {code}\n{said[-3000:]}")
    refused("a contradiction is told in words", "the program asks for backend 'mpi over the communicator ", run(3, build / "tests/howto_mpi", MUSTER_BACKEND="gloo")[1])


def another_launcher():
    """No mpirun: MPI knows of one rank only."""
    words = [build / "bin/muster", "run", "--devices", "2", "--no-prefix", "--backend", "mpi", build / "examples/readme"]
    for _ in range(3):
        said = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120).stdout
        if "Unable to start a daemon" not in said:  # now and then Open MPI's own, where two ranks start theirs at once
            break
        print("mpi: Open MPI could not start a daemon; the ranks start again")
    refused("ranks of another launcher are refused", "MU569", said)


cases_of_ranks()
if not ranks_only:
    the_page()
    another_launcher()
    with tempfile.TemporaryDirectory() as scratch:
        same_training(pathlib.Path(scratch))
        what_cannot_be_loaded(pathlib.Path(scratch))
close()
