"""A transformer of 400 million parameters on two ranks, each with less memory than replicated training needs: it trains where parameters are
cut over the ranks, and ends for want of memory where they are whole.

usage: large_test.py PROGRAM MUSTER
"""
import re
import resource
import subprocess
import sys

program, muster = sys.argv[1:3]
passed = failed = 0
PARAMETERS = 400e6
WHOLE = 16 * PARAMETERS / 2**20        # values, gradients and AdamW's two states in float32, in MiB
LIMIT = int(WHOLE * 0.72)              # a half of that is held; the rest is for units that are gathered, activations and programs
RANKS = 2                              # they have one copy of the values in memory that they share, which the limit does not count


def expect(what, holds, seen=""):
    global passed, failed
    passed, failed = passed + bool(holds), failed + (not holds)
    if not holds:
        print(f"FAILED {what}: {seen}")


def available():
    with open("/proc/meminfo") as file:
        return int(re.search(r"MemAvailable:\s+(\d+)", file.read())[1]) // 1024


def limited():
    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT * 2**20, LIMIT * 2**20))


def train(strategy):
    return subprocess.run([muster, "run", "--no-prefix", "--devices", str(RANKS), program, strategy, "4"], capture_output=True, text=True, timeout=900,
                          preexec_fn=limited)


if available() < RANKS * LIMIT + 512:
    print(f"{RANKS} ranks need {RANKS * LIMIT + 512} MiB of memory, and {available()} MiB are free")
    sys.exit(77)
expect("what is held by two ranks fits the limit, and what is held by one does not", WHOLE / 2 < LIMIT < WHOLE)

outcome = train("fsdp")
print(outcome.stdout)
expect("sharded training ends well", outcome.returncode == 0, outcome.stdout + outcome.stderr)
count = re.search(r"parameters (\d+)", outcome.stdout)
expect("the model is as large as it should be", count and int(count[1]) >= PARAMETERS, outcome.stdout)
losses = [float(loss) for loss in re.findall(r"^loss (\S+)$", outcome.stdout, re.MULTILINE)]
expect("four losses that fall", len(losses) == 4 and losses[-1] < losses[0] - 0.1, losses)
memory = re.search(r"data (\d+) MiB, resident (\d+) MiB, shared (\d+) MiB", outcome.stdout)
own, shared = (int(memory[1]), int(memory[3])) if memory else (0, 0)
expect("no rank takes more than the limit, with its part of what they share", WHOLE / RANKS <= own + shared / RANKS <= LIMIT, outcome.stdout)

outcome = train("ddp")
text = outcome.stdout + outcome.stderr
print("\n".join(text.splitlines()[-6:]))
expect("replicated training does not fit", outcome.returncode != 0, text)
expect("it ends for want of memory", re.search(r"allocate memory|bad_alloc", text), text)

print(f"{passed} passed, {failed} failed, 0 skipped")
sys.exit(failed > 0)
