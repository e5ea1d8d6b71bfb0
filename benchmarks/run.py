#!/usr/bin/env python3
"""Measures Muster beside its peers: interleaved, verified, one row per pair and setting.

    run.py --build BUILD [NAME...] [--rounds N] [--list]      NAME: a benchmark, a case ("ddp/gpt-9m"), or "table": what README.md shows
    run.py --build BUILD --on cuda [NAME...]                  the cases of gpu_table.py; without a GPU it ends with 69
    run.py --build BUILD --on cpu [NAME...]                   the same on the CPU with tiny models, in one round: whether they run. No figures.

Writes BUILD/bench/results.csv (a row per pair), rounds.csv (what each round measured) and table.md, and prints the table on standard
output; everything else goes to standard error.

In each round every contender of a case runs once, under each of the case's settings (see contenders.py), in an order that turns from
round to round; a round's ratio is peer over ours (above 1 is ahead), and a row gives the median ratio with its 10th and 90th
percentile. Where the contenders' results disagree or one of them saw a wrong result, the row says verified=no and its times count for
nothing. A failed round of a peer is measured again where the case says how often, and counted in its row. A peer that is missing or
still fails has a row that says why, and is counted at the end. A failure of ours is never repeated, and ends the run after its case.
"""
import argparse
import csv
import importlib.metadata
import importlib.util
import math
import pathlib
import platform
import re
import shutil
import statistics
import subprocess
import sys
import time

import contenders as start_up
import figures
import gpu
import gpu_table
import table

FAILURES = (RuntimeError, OSError, ValueError, subprocess.TimeoutExpired)


def say(*words):
    print(*words, file=sys.stderr, flush=True)


def percentile(values, share):
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def ratio(one, other):
    """Counts, such as waits, may be 0."""
    return one / other if other else 1.0 if one == other else math.inf


def last_line(reason):
    """Of what a contender printed, the last error, or the last line with a word."""
    lines = [line.strip() for line in reason.splitlines() if re.search(r"\w", line)]
    return ([line for line in lines if re.search(r"Error: *\S", line)] or lines or ["failed"])[-1]


def agree(one, other, tolerance):
    return one["verified"] and other["verified"] and abs(one["check"] - other["check"]) <= tolerance * max(1e-9, abs(one["check"]))


def best_variant(contender, variants, lower_is_better, turns):
    """The variant that does best in the last of these turns, and what it measured."""
    for _ in range(turns):
        found = {variant: contender.measure(variant) for variant in variants}
    best = (min if lower_is_better else max)(variants, key=lambda variant: found[variant]["value"])
    if len(variants) > 1:
        say(f"# of {', '.join(variants)} the best is {best}")
    return best, found[best]


class Rounds:
    """The rounds of one case, and what they found, by setting and contender. One that fails is left out from then on, with its reason;
    a peer only when its round has been repeated as often as the case says."""

    def __init__(self, case, running, failed=()):
        self.case, self.running, self.failed = case, running, dict(failed)
        self.ours, self.repeats = next(iter(case.contenders)), dict.fromkeys(running, 0)
        self.asked, self.found = {}, {key: [] for key in running}   # what each is asked for; its answers, the warm-up's first
        for key, contender in running.items():
            self.attempt(key, lambda: self.warm_up(key, contender))

    def warm_up(self, key, contender):
        # Where there is a choice, a first turn would choose by what is cold. All take as many turns: they go on training from one to the next.
        turns = 2 if any(len(self.case.variants(name)) > 1 for name in self.case.contenders) else 1
        self.asked[key], first = best_variant(contender, self.case.variants(key[1]), self.case.lower_is_better, turns)
        return first

    def attempt(self, key, measure):
        left = 0 if key[1] == self.ours else self.case.repeats
        while True:
            try:
                return self.found[key].append(measure())
            except FAILURES as error:
                if left == 0:
                    self.failed[key] = str(error)
                    return
                say(f"# {self.case.benchmark} {self.case.name}, {key[0]}: a round of {key[1]} failed and is repeated: {last_line(str(error))}")
            left -= 1
            self.repeats[key] += 1

    def failure_of_ours(self):
        """Why ours was left out, or nothing."""
        return next((f"{key[1]} failed: {last_line(reason)}" for key, reason in self.failed.items() if key[1] == self.ours), "")

    def go(self, rounds):
        for turn in range(rounds):
            order = list(self.running)
            for key in order[turn % len(order):] + order[:turn % len(order)] if order else ():
                if key not in self.failed:
                    self.attempt(key, lambda: self.running[key].measure(self.asked[key]))
        return self

    def values(self, key):
        return [answer["value"] for answer in self.found[key][1:]]

    def row(self, setting, ours, peer):
        case, keys = self.case, ((setting, ours), (setting, peer))
        row = dict.fromkeys(figures.COLUMNS, "") | {
            "benchmark": case.benchmark, "case": case.name, "setting": setting, "peer": peer, "unit": case.unit,
            "floor": str(case.floors.get(peer, "")), "goal": str(case.goals.get(peer, "")), "repeats": str(self.repeats.get(keys[1], 0))}
        for key in keys:
            if key in self.failed:
                return row | {"rounds": "0", "verified": "not measured", "note": f"{key[1]}: {last_line(self.failed[key])}"[:200]}
        good = all(agree(one, other, case.tolerance) for one, other in zip(*(self.found[key] for key in keys)))
        own, theirs = (self.values(key) for key in keys)
        ratios = [ratio(b, a) if case.lower_is_better else ratio(a, b) for a, b in zip(own, theirs)]
        return row | {"rounds": str(len(ratios)), "ours": f"{statistics.median(own):.5g}", "peer_value": f"{statistics.median(theirs):.5g}",
                      "ratio": f"{statistics.median(ratios):.3f}", "ratio_p10": f"{percentile(ratios, 0.1):.3f}",
                      "ratio_p90": f"{percentile(ratios, 0.9):.3f}", "verified": "yes" if good else "no"}

    def rows(self):
        ours, *peers = self.case.contenders
        return [self.row(setting, ours, peer) for peer in peers for setting in self.case.settings]


def missing(contender):
    """Why a contender cannot be started, or nothing. Only what runs in this Python needs a package."""
    for program in contender.needs:
        if not shutil.which(program):
            return f"{program} is not installed" if "/" not in program else f"{pathlib.Path(program).name} was not built: what compiles it is missing"
    in_python = str(contender.command[0]).startswith(str(pathlib.Path(sys.executable).parent))
    if in_python and not importlib.util.find_spec(contender.package):
        return f"{contender.package} is not installed"
    return ""


def run_case(case, rounds, muster):
    """The rounds of a case, with every contender that can run."""
    running, failed = {}, {}
    try:
        for setting in case.settings:
            for name, contender in case.contenders.items():
                key = (setting, name)
                try:
                    if reason := missing(contender):
                        raise RuntimeError(reason)
                    running[key] = start_up.start(contender, case, setting, muster)
                except FAILURES as error:
                    failed[key] = str(error)
        done = Rounds(case, running, failed).go(rounds)
        for (setting, name), reason in done.failed.items():
            say(f"# {case.benchmark} {case.name}, {setting}: {name} is not measured: {reason}")
        return done
    finally:
        for contender in running.values():
            contender.close()


def software():
    versions = []
    for package in ("torch", "accelerate", "lightning", "safetensors"):
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"{package} not installed")
    return f"{', '.join(versions)}, Python {platform.python_version()}"


def chosen(cases, names):
    known = list(dict.fromkeys(case.benchmark for case in cases))
    for name in names:
        if name != "table" and name.split("/")[0] not in known:
            sys.exit(f"there is no benchmark '{name}'; there are {', '.join(known)}, and table")
    slug = lambda case: f"{case.benchmark}/{case.name}".replace(" ", "-")
    for name in names:
        own = [slug(case) for case in cases if case.benchmark == name.split("/")[0]]
        if "/" in name and name not in own:
            sys.exit(f"there is no case '{name}'; there are {', '.join(own)}")
    return [case for case in cases if not names or {case.benchmark, slug(case)} & set(names) or ("table" in names and case.shown)]


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build")
    parser.add_argument("--rounds", type=int, default=0, help="of every case; 0: as table.py says")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--on", choices=("cuda", "cpu"), help="the device of gpu_table.py's cases")
    parser.add_argument("names", nargs="*")
    return parser.parse_args()


def measure(cases, rounds, build, folder, machine):
    """All rows, and why there are no more; what is measured so far is in the folder at any time."""
    rows, told = [], {"processor": machine, "software": software()}
    say(f"# {told['processor']}\n# {told['software']}\n# equal: every contender has {start_up.tuned_text()}")
    say(",".join(figures.COLUMNS[:-2]))
    with open(folder / "rounds.csv", "w", newline="") as file:
        each = csv.writer(file)
        each.writerow(["benchmark", "case", "setting", "contender", "round", "value"])
        for case in cases:
            done = run_case(case, rounds or case.rounds, table.muster_of(build / "benchmarks"))
            for setting, name in done.found:
                for turn, value in enumerate(done.values((setting, name)), 1):
                    each.writerow([case.benchmark, case.name, setting, name, turn, f"{value:.6g}"])
            for row in done.rows():
                rows.append(row | told)
                say(",".join(row[column] for column in figures.COLUMNS[:-2]))
            figures.write(folder / "results.csv", rows)
            file.flush()
            if reason := done.failure_of_ours():
                return rows, f"the run ends with {case.benchmark} {case.name}: {reason}"
    return rows, ""


def finish(rows, ended, minutes):
    """Counts what was measured, and ends badly where figures cannot be trusted."""
    lacking = [row for row in rows if row["verified"] == "not measured"]
    differing = [row for row in rows if row["verified"] == "no"]
    for kind, those in (("not measured", lacking), ("results differ", differing)):
        for row in those:
            say(f"# {kind}: {row['benchmark']} {row['case']}, {row['setting']}, {row['peer']} {row['note']}")
    say(f"# {len(rows) - len(lacking) - len(differing)} pairs measured, {len(lacking)} not measured, {len(differing)} whose results differ; "
        f"{minutes:.1f} minutes")
    if ended:
        sys.exit(ended)
    if differing or len(lacking) == len(rows):
        sys.exit("some rows are not verified" if differing else "nothing was measured")


def main():
    arguments = parse()
    build = pathlib.Path(arguments.build).resolve()
    if arguments.on == "cuda" and (reason := gpu.why_none()):
        say(f"no figures of a GPU: {reason}. They need a GPU of NVIDIA's and its driver; '--on cpu' tries all programs without one")
        sys.exit(gpu.UNAVAILABLE)
    cases = gpu_table.cases(build, arguments.on) if arguments.on else table.cases(build)
    if arguments.list:
        return print("\n".join(dict.fromkeys(case.benchmark for case in cases)))
    wanted = chosen(cases, arguments.names)
    folder = build / "bench" / {None: "", "cuda": "gpu", "cpu": "tried"}[arguments.on]
    folder.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    machine = figures.accelerator() if arguments.on == "cuda" else figures.processor()
    rows, ended = measure(wanted, arguments.rounds, build, folder, f"no figures, tried on {machine}" if arguments.on == "cpu" else machine)
    text = figures.text(rows)
    (folder / "table.md").write_text(text)
    print(text, end="")
    finish(rows, ended, (time.monotonic() - begin) / 60)


if __name__ == "__main__":
    main()
