#!/usr/bin/env python3
"""The table of benchmarks/README.md, written from rows that run.py measured: one section for each processor.

    figures.py [CSV...]         prints the table of these files; without any, of all in benchmarks/figures/
    figures.py --add CSV        keeps the rows as benchmarks/figures/PROCESSOR.csv, where they replace those of the same pairs,
                                and writes the table into benchmarks/README.md
    figures.py --write          writes the table of benchmarks/figures/ into benchmarks/README.md
"""
import csv
import os
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "tools")]
import gpu  # noqa: E402

COLUMNS = ["benchmark", "case", "setting", "ours", "peer", "peer_value", "ratio", "ratio_p10", "ratio_p90", "unit", "rounds", "repeats", "floor", "goal",
           "verified", "note", "processor", "software"]
PAIR = ("benchmark", "case", "peer")
BEGIN, END = "<!-- figures: written by figures.py -->\n", "<!-- end of figures -->\n"
# What matters for the speed of LibTorch's and our own kernels, as /proc/cpuinfo names it.
FEATURES = {"avx2": "AVX2", "avx512f": "AVX-512", "avx512_bf16": "AVX-512 bf16", "amx_tile": "AMX", "amx_bf16": "AMX bf16"}


def processor(cpuinfo="/proc/cpuinfo", cores=None):
    """Model, cores in use, clock and what vectors it has, or lacks of those that matter."""
    lines = [line.partition(":") for line in pathlib.Path(cpuinfo).read_text().splitlines()]
    fields = dict(reversed([(key.strip(), value.strip()) for key, _, value in lines]))   # the first core's
    flags = set(fields.get("flags", "").split())
    has = [name for flag, name in FEATURES.items() if flag in flags]
    lacks = [name for flag, name in FEATURES.items() if flag not in flags]
    # The clock of a virtual machine is a constant; elsewhere it is that of the moment, and the model's name says more.
    clock = f" at {float(fields['cpu MHz']) / 1000:.1f} GHz" if "hypervisor" in flags and "cpu MHz" in fields else ""
    count = cores or len(os.sched_getaffinity(0))
    return f"{fields.get('model name', 'unknown processor')}, {count} cores{clock}: {', '.join(has) or 'none of'}" + (
        f"; no {', '.join(lacks)}" if lacks else "")


def accelerator():
    """The GPU and its driver, and the processor beside it."""
    listed = gpu.listed()
    named = " and ".join(dict.fromkeys(line.replace(", ", ", driver ", 1) for line in listed)) or "unknown GPU"
    return f"{named}: {len(listed)} of them, beside {processor()}"


def short(text):
    value = float(text)
    for size, letter in ((1e6, " M"), (1e4, " k")):
        if value >= size:
            return f"{value / (1e6 if size == 1e6 else 1e3):.3g}{letter}"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def times(text):
    value = float(text)
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def cell(row):
    """Ratio, its band, and both medians; or why there is none."""
    if not row:
        return ""
    if row["verified"] != "yes":
        return "results differ" if row["verified"] == "no" else f"not measured: {row['note']}"
    band = f" ({times(row['ratio_p10'])} to {times(row['ratio_p90'])})" if row["ratio_p10"] and row["rounds"] != "1" else ""
    medians = f"; {short(row['ours'])}, {short(row['peer_value'])} {row['unit']}" if row["ours"] else ""
    return times(row["ratio"]) + band + medians


def counted(found, equal):
    """The row at which a floor stands: the equal one where there is one."""
    return equal or found


def rounds(row):
    repeats = int(row.get("repeats") or 0)   # rows that were kept before they were counted have none
    return row["rounds"] + (f", {repeats} repeated" if repeats else "")


def floor(row):
    if not row.get("floor"):
        return ""
    missed = row["verified"] == "yes" and float(row["ratio"]) < float(row["floor"])
    return row["floor"] + (", missed" if missed else "")


def section(name, rows):
    pairs = {}
    for row in rows:
        pairs.setdefault(tuple(row[key] for key in PAIR), {})[row["setting"]] = row
    lines = [f"### {name}", "", f"{rows[0]['software']}. Each figure: ratio (10th to 90th percentile); ours, the peer's.", "",
             "| benchmark | case | peer | as found | equal | rounds | floor | goal |", "|---|---|---|---|---|---|---|---|"]
    for (benchmark, case, peer), settings in pairs.items():
        found, equal = settings.get("as found"), settings.get("equal") or settings.get("plain")
        row = counted(found, equal)
        lines.append(f"| `{benchmark}` | {case} | {peer} | {cell(found)} | {cell(equal)} | {rounds(row)} | {floor(row)} | {row['goal']} |")
    return "\n".join(lines) + "\n"


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def write(path, rows):
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def text(rows):
    """A section for each processor, in the order of the rows."""
    return "\n".join(section(name, [row for row in rows if row["processor"] == name]) for name in dict.fromkeys(row["processor"] for row in rows))


def merged(old, new):
    """Old rows, with those replaced that were measured again."""
    key = lambda row: (*(row[part] for part in PAIR), row["setting"])
    fresh = {key(row): row for row in new}
    kept = [fresh.pop(key(row), row) for row in old]
    return kept + [row for row in new if key(row) in fresh]


def kept_files():
    return sorted((HERE / "figures").glob("*.csv"))


def add(path):
    rows = read(path)
    for name in dict.fromkeys(row["processor"] for row in rows):
        place = HERE / "figures" / (re.sub(r"[^a-z0-9]+", "-", name.split(":")[0].lower()).strip("-") + ".csv")
        place.parent.mkdir(exist_ok=True)
        write(place, merged(read(place) if place.exists() else [], [row for row in rows if row["processor"] == name]))
        print(f"kept in {place}")


def table_of(paths):
    return text([row for path in paths for row in read(path)])


def write_page(page=HERE / "README.md"):
    before, _, rest = page.read_text().partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        sys.exit(f"{page} lacks the lines {BEGIN.strip()} and {END.strip()}")
    page.write_text(before + BEGIN + "\n" + table_of(kept_files()) + "\n" + END + after)
    print(f"written into {page}")


def main(arguments):
    if arguments[:1] == ["--add"]:
        for path in arguments[1:]:
            add(path)
    if arguments[:1] in (["--add"], ["--write"]):
        return write_page()
    print(table_of(arguments or kept_files()), end="")


if __name__ == "__main__":
    main(sys.argv[1:])
