#!/usr/bin/env python3
"""Runs every test that CMake registered and closes with one line: N passed, N failed, N skipped.

    run_tests.py BUILD [NAME...] [--label LABEL] [--without LABEL] [--patience FACTOR] [--gpu BUILD]

A test labelled gtest counts its cases; one labelled script counts by its own closing line of the same form;
any other counts as one. Exit code 77 means skipped, with the reason as its last line.
Tests run two at a time, one from the front and one from the back: most of them bring up several ranks and wait for one another half
of their time. Beside them run those labelled sources, which read and compile files, on the cores that the ranks leave idle.
The time-out of each is multiplied by the factor.
All of them run on the CPU, whatever the machine has. With --gpu, and unless tests are named, those labelled cuda, of this build or the one
given, run after them where a GPU is, and the last line goes on after its counts: which ones ran. Why they did not is the line before it.
"""
import argparse
import collections
import concurrent.futures
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

import gpu

# Tests beside the others get what these leave of the cores; the kernel may weigh whole sessions.
BESIDE, LEAST_URGENT = "sources", ["sh", "-c", '{ echo 19 > /proc/self/autogroup; } 2>/dev/null; exec nice -n 19 "$0" "$@"']
# "auto" would take an accelerator where the machine has one, and results are compared with those of the CPU.
NO_ACCELERATOR = {"CUDA_VISIBLE_DEVICES": "-1"}
# Two programs at once have more threads than there are cores. Those that wait by spinning take the core of those that they wait for.
NO_SPINNING = {"OMP_WAIT_POLICY": "passive"}
CLOSING = re.compile(r"^(?:\S+: )?(\d+) passed, (\d+) failed, (\d+) skipped$", re.MULTILINE)


@dataclasses.dataclass
class Test:
    name: str
    command: list
    labels: list
    timeout: float
    directory: str
    environment: dict
    on_gpu: bool = False   # it sees the accelerators


@dataclasses.dataclass
class Result:
    test: Test
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    reasons: list = dataclasses.field(default_factory=list)
    output: str = ""
    seconds: float = 0.0


def registered(build, patience):
    listing = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], capture_output=True, text=True)
    if listing.returncode:
        sys.exit(listing.stderr)
    for entry in json.loads(listing.stdout)["tests"]:
        given = {p["name"]: p["value"] for p in entry.get("properties", [])}
        yield Test(entry["name"], entry.get("command", []), given.get("LABELS", []), patience * float(given.get("TIMEOUT", 600)),
                   given.get("WORKING_DIRECTORY", build),
                   dict(pair.split("=", 1) for pair in given.get("ENVIRONMENT", [])))


def run_command(command, test, extra_environment):
    """Exit code (None after the time-out) and output. The whole process group ends with the test."""
    if not command or not os.access(command[0], os.X_OK):
        return 127, f"{test.name}: the program {command[:1]} was not built"
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        niceness = LEAST_URGENT if BESIDE in test.labels else []
        process = subprocess.Popen(niceness + command, cwd=test.directory, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                   env={**os.environ, **({} if test.on_gpu else NO_ACCELERATOR), **NO_SPINNING, **test.environment,
                                        **extra_environment}, start_new_session=True)
        try:
            code = process.wait(test.timeout)
        except subprocess.TimeoutExpired:
            code = None
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        log.seek(0)
        return code, log.read()


def how_it_ended(code, test):
    if code is None:
        return f"took longer than {test.timeout:.0f} s and was ended"
    return f"ended by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def count_gtest(result, report, code):
    """Counts from GoogleTest's report, or, where the program died before writing one, from its output."""
    try:
        with open(report) as file:
            # GoogleTest 1.12 forgets the comma before what failed outside of all cases, such as what a program leaves behind.
            suites = json.loads(re.sub(r"^    \}    \{$", "    },{", file.read(), flags=re.MULTILINE))["testsuites"]
            cases = [case for suite in suites for case in suite["testsuite"]]
    except (OSError, ValueError):
        cases = None
    if cases is None:
        running = re.findall(r"^\[ RUN +\] (\S+)", result.output, re.MULTILINE)
        done = re.findall(r"^\[ +(OK|FAILED|SKIPPED) +\] (\S+)", result.output, re.MULTILINE)
        result.passed = sum(word == "OK" for word, _ in done)
        result.skipped = sum(word == "SKIPPED" for word, _ in done)
        result.failed = sum(word == "FAILED" for word, _ in done) + 1
        result.reasons.append(f"{how_it_ended(code, result.test)} in {running[-1] if running else 'start-up'}; the cases after it did not run")
        return
    for case in cases:
        name = f"{case['classname']}.{case['name']}"
        if case["result"] == "SKIPPED":
            result.skipped += 1
            why = [line["message"].strip() for line in case.get("skipped", [])]
            result.reasons.append(f"skipped {name}: {' '.join(why) or reason_in(result.output, name)}")
        elif case["result"] == "SUPPRESSED" or case["status"] == "NOTRUN":
            result.skipped += 1
            result.reasons.append(f"skipped {name}: disabled")
        elif case.get("failures"):
            result.failed += 1
            result.reasons.append(f"FAILED {name}" if case["name"] else f"FAILED outside of its cases: {case['failures'][0]['failure'].splitlines()[-1]}")
        else:
            result.passed += 1
    if not cases:
        result.failed += 1
        result.reasons.append("FAILED: it holds no test case")
    elif code != 0 and not result.failed:
        result.failed += 1
        result.reasons.append(f"FAILED after its last case: {how_it_ended(code, result.test)}")


def reason_in(output, name):
    """GoogleTest before 1.13 leaves a skip's reason out of its report; it stands before the case's closing line."""
    match = re.search(rf"^\[ RUN +\] {re.escape(name)}\n(.*?)^\[ +SKIPPED +\] ", output, re.MULTILINE | re.DOTALL)
    lines = [line for line in (match.group(1) if match else "").splitlines() if line.strip() and not line.rstrip().endswith(": Skipped")]
    return " ".join(lines) or "no reason given"


def count_script(result, code):
    closing = CLOSING.findall(result.output)
    if code == 77:
        result.skipped = 1
        last = result.output.strip().splitlines()[-1:] or ["no reason given"]
        result.reasons.append(f"skipped {result.test.name}: {last[0]}")
    elif closing and code is not None:
        result.passed, result.failed, result.skipped = map(int, closing[-1])
        result.reasons += [line for line in result.output.splitlines() if line.startswith(("FAILED", "skipped "))]
        if code != 0 and not result.failed:
            result.failed += 1
            result.reasons.append(f"FAILED {result.test.name}: {how_it_ended(code, result.test)}")
        if not sum((result.passed, result.failed, result.skipped)):
            result.failed = 1
            result.reasons.append(f"FAILED {result.test.name}: it looked at nothing")
    elif "script" in result.test.labels or code != 0:
        result.failed = 1
        result.reasons.append(f"FAILED {result.test.name}: {how_it_ended(code, result.test)}" + (", without a closing line" if code == 0 else ""))
    else:
        result.passed = 1


def run(test):
    started = time.monotonic()
    result = Result(test)
    if "gtest" in test.labels:
        with tempfile.TemporaryDirectory() as scratch:
            report = os.path.join(scratch, "report.json")
            code, result.output = run_command(test.command, test, {"GTEST_OUTPUT": f"json:{report}", "GTEST_COLOR": "no"})
            count_gtest(result, report, code)
    else:
        code, result.output = run_command(test.command, test, {})
        count_script(result, code)
    result.seconds = time.monotonic() - started
    return result


ONE_AT_A_TIME = threading.Lock()


def run_in_turn(take):
    """Runs what `take` returns until it returns nothing."""
    results = []
    while test := take():
        results.append(run(test))
        with ONE_AT_A_TIME:
            show(results[-1])
    return results


def run_beside_each_other(tests):
    queue = collections.deque(test for test in tests if BESIDE not in test.labels)
    beside = collections.deque(test for test in tests if BESIDE in test.labels)

    def taking(where, take):
        # A folder for temporary files of its own: test programs look whether something was left in theirs.
        with tempfile.TemporaryDirectory() as folder:
            def next_test():
                with ONE_AT_A_TIME:
                    test = take(where) if where else None
                if test:
                    test.environment.setdefault("TMPDIR", folder)
                return test
            return run_in_turn(next_test)

    popped, popped_left = collections.deque.pop, collections.deque.popleft
    with concurrent.futures.ThreadPoolExecutor() as pool:
        workers = [pool.submit(taking, *how) for how in ((queue, popped_left), (queue, popped), (beside, popped_left))]
        return [result for worker in workers for result in worker.result()]


def what_failed(output):
    """Without the cases of GoogleTest that passed or were skipped."""
    return re.sub(r"^\[ RUN +\] (\S+)\n(?:(?!\[ RUN ).*\n)*?\[ +(?:OK|SKIPPED) +\] \1.*\n", "", output, flags=re.MULTILINE)


def show(result):
    print(f"{result.test.name:16} {result.passed:4} passed {result.failed:3} failed {result.skipped:3} skipped {result.seconds:7.1f} s", flush=True)
    for reason in result.reasons:
        print(f"    {reason}")
    if result.failed:
        lines = what_failed(result.output).rstrip().splitlines()
        if len(lines) > 200:
            lines = lines[:60] + [f"... {len(lines) - 200} lines left out ..."] + lines[-140:]
        print("\n".join("    | " + line for line in lines), flush=True)


def on_gpu(builds, patience):
    """The tests of the first build that has some for a GPU, and what the last line says of them."""
    if reason := gpu.why_none():
        return [], f"GPU tests did not run: {reason}"
    for build in builds:
        if not os.path.exists(os.path.join(build, "CTestTestfile.cmake")):
            continue
        found = [dataclasses.replace(test, on_gpu=True) for test in registered(build, patience) if "cuda" in test.labels]
        if found and all(os.access((test.command or [""])[0], os.X_OK) for test in found):
            return found, f"GPU tests ran: {', '.join(test.name for test in found)} of {build}"
    return [], "GPU tests did not run: there is a GPU, but no build of them for CUDA (make cuda)"


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--label", action="append", default=[])
    parser.add_argument("--without", action="append", default=[])
    parser.add_argument("--patience", type=float, default=1)
    parser.add_argument("--gpu", metavar="BUILD", help="a build against LibTorch for CUDA, if there is one")
    return parser.parse_args()


def main():
    arguments = parse()
    tests = [test for test in registered(arguments.build, arguments.patience)
             if (not arguments.names or test.name in arguments.names) and (not arguments.label or set(arguments.label) & set(test.labels))
             and not set(arguments.without) & set(test.labels)]
    unknown = set(arguments.names) - {test.name for test in tests}
    if unknown or not tests:
        sys.exit(f"run_tests: no such test: {', '.join(sorted(unknown))}" if unknown else "run_tests: there is nothing to run")
    more, told = on_gpu((arguments.build, arguments.gpu), arguments.patience) if arguments.gpu and not arguments.names else ([], "")
    results = run_beside_each_other(tests) + run_in_turn(iter([*more, None]).__next__)
    passed, failed, skipped = (sum(getattr(r, key) for r in results) for key in ("passed", "failed", "skipped"))
    if told and not more:
        print(told)
    print(f"{passed} passed, {failed} failed, {skipped} skipped" + (f"; {told}" if more else ""))
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
