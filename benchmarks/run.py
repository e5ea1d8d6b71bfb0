#!/usr/bin/env python3
"""Measures Muster beside its peers: interleaved, verified, one row per pair in build/bench/results.csv.

    run.py --build BUILD [NAME...] [--rounds N] [--list]

In each round every contender of a case runs once, in an order that turns from round to round; a round's ratio is peer over
ours (above 1 is ahead), and a row gives the median ratio with its 10th and 90th percentile. Where the contenders' results
disagree or one of them saw a wrong result, the row says verified=no and its times count for nothing.
"""
import argparse
import csv
import importlib.metadata
import json
import os
import pathlib
import platform
import socket
import statistics
import subprocess
import sys
import time

import table

COLUMNS = ["benchmark", "case", "ours", "peer", "peer_value", "ratio", "ratio_p10", "ratio_p90", "unit", "verified"]


def percentile(values, share):
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(threads):
    return {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "GLOO_SOCKET_IFNAME": "lo",
            "PYTHONWARNINGS": "ignore", "MUSTER_LOG": "error"}


class Ranks:
    """A contender that stays alive: one process per rank, each on a core of its own, asked by a line on standard input."""

    def __init__(self, command, ranks, threads):
        cores = sorted(os.sched_getaffinity(0))
        port = free_port()
        self.processes = []
        for rank in range(ranks):
            variables = environment(threads)
            if ranks > 1:
                variables |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks),
                              "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            own = set(cores[rank * threads % len(cores):][:threads]) or set(cores)
            self.processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables,
                                                   preexec_fn=lambda own=own: os.sched_setaffinity(0, own)))

    def measure(self, case):
        for process in self.processes:
            process.stdin.write(f"run {case}\n")
            process.stdin.flush()
        answers = [self.answer(process) for process in self.processes]
        return {"value": max(answer.get("value", 0) for answer in answers), "check": answers[0].get("check", 0),
                "verified": all(answer["verified"] for answer in answers)}

    @staticmethod
    def answer(process):
        for line in process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise RuntimeError(f"{' '.join(process.args)} ended with exit code {process.wait()}")

    def close(self):
        for process in self.processes:
            try:
                process.stdin.close()
            except OSError:
                pass  # it is gone already
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()


class Whole:
    """A contender measured from outside: seconds from exec to the line "reached MONOTONIC_SECONDS" that it prints."""

    def __init__(self, command, ranks, threads):
        self.command, self.threads = command, threads

    def measure(self, case):
        variables = environment(self.threads)
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            variables.pop(name, None)
        start = time.monotonic()
        outcome = subprocess.run(self.command, env=variables, capture_output=True, text=True, timeout=120)
        words = [line.split("reached ", 1)[1].split() for line in outcome.stdout.splitlines() if "reached " in line]
        if outcome.returncode or not words:
            raise RuntimeError(f"{' '.join(self.command)}: exit code {outcome.returncode}\n{outcome.stdout}{outcome.stderr}")
        return {"value": float(words[0][0]) - start, "check": float(words[0][1]), "verified": True}

    def close(self):
        pass


def agree(one, other, tolerance):
    return one["verified"] and other["verified"] and abs(one["check"] - other["check"]) <= tolerance * max(1e-9, abs(one["check"]))


def best_variant(contender, variants, lower_is_better):
    """The variant that does best, and what it measured."""
    found = {variant: contender.measure(variant) for variant in variants}
    best = (min if lower_is_better else max)(variants, key=lambda variant: found[variant]["value"])
    if len(variants) > 1:
        print(f"# of {', '.join(variants)} the best is {best}", flush=True)
    return best, found[best]


def rows_of(case, contenders, rounds):
    """The rows of one case: ours, the first contender, beside each of the others."""
    ours, *peers = list(case.contenders)
    asked, first = {}, {}
    for name in case.contenders:  # warms up, and verifies before timing counts
        asked[name], first[name] = best_variant(contenders[name], case.variants(name), case.lower_is_better)
    good = {peer: agree(first[ours], first[peer], case.tolerance) for peer in peers}
    times = {name: [] for name in case.contenders}
    for turn in range(rounds):
        order = list(case.contenders)
        order = order[turn % len(order):] + order[:turn % len(order)]
        found = {name: contenders[name].measure(asked[name]) for name in order}
        for name in order:
            times[name].append(found[name]["value"])
        for peer in peers:
            good[peer] &= agree(found[ours], found[peer], case.tolerance)
    for peer in peers:
        ratios = [theirs / own if case.lower_is_better else own / theirs for own, theirs in zip(times[ours], times[peer])]
        yield dict(zip(COLUMNS, [case.benchmark, case.name, f"{statistics.median(times[ours]):.5g}", peer, f"{statistics.median(times[peer]):.5g}",
                                 f"{statistics.median(ratios):.3f}", f"{percentile(ratios, 0.1):.3f}", f"{percentile(ratios, 0.9):.3f}",
                                 case.unit, "yes" if good[peer] else "no"]))


def header(rounds):
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    versions = []
    for package in ("torch", "accelerate", "lightning", "safetensors"):
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"{package} not installed")
    print(f"# {cpu}, {len(os.sched_getaffinity(0))} cores; {', '.join(versions)}; Python {platform.python_version()}")
    print(f"# {rounds} interleaved rounds a case; threads per rank and flags stand in benchmarks/table.py; ratio = peer / ours, above 1 is ahead")
    print(",".join(COLUMNS), flush=True)


def run_case(case, rounds):
    """Rows of a case; a contender that cannot run leaves a note and no row, never a win."""
    contenders = {}
    try:
        for name, contender in case.contenders.items():
            contenders[name] = (Whole if case.whole else Ranks)(contender.command, case.ranks, case.threads)
        return list(rows_of(case, contenders, case.rounds or rounds))
    except (RuntimeError, OSError, ValueError, subprocess.TimeoutExpired) as error:
        print(f"# {case.benchmark} {case.name}: not measured: {error}", flush=True)
        return []
    finally:
        for contender in contenders.values():
            contender.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    cases = table.cases(pathlib.Path(arguments.build).resolve())
    known = list(dict.fromkeys(case.benchmark for case in cases))
    if arguments.list:
        return print("\n".join(known))
    for name in arguments.names:
        if name.split("/")[0] not in known:
            sys.exit(f"there is no benchmark '{name}'; there are {', '.join(known)}")
    wanted = [case for case in cases if not arguments.names or {case.benchmark, f"{case.benchmark}/{case.name}".replace(" ", "-")} & set(arguments.names)]
    folder = pathlib.Path(arguments.build, "bench")
    folder.mkdir(parents=True, exist_ok=True)
    header(arguments.rounds)
    rows = []
    for case in wanted:
        for row in run_case(case, arguments.rounds):
            rows.append(row)
            print(",".join(row.values()), flush=True)
    with open(folder / "results.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    if not rows or any(row["verified"] != "yes" for row in rows):
        sys.exit("some rows are not verified" if rows else "nothing was measured")


if __name__ == "__main__":
    main()
