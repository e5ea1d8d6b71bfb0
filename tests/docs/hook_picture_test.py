#!/usr/bin/env python3
"""The picture of docs/concepts/hooks.md, played through, is what Lightning was recorded to call; tests/trainer compares the same with ours.

    hook_picture_test.py ROOT
"""
import json
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
page = (root / "docs/concepts/hooks.md").read_text()
recorded = json.loads((root / "tests/trainer/hook_traces.json").read_text())
# Functions of torch::nn::Module, and what are plain calls here.
OTHERS = {"M.forward", "M.train", "M.zero_grad", "M.state_dict", "M.load_state_dict", "M.manual_backward", "M.clip_gradients"}
SCENARIOS = {
    "fit_2epochs_2train_1val": {"epochs": 2, "batches": 2, "has": {"sanity check", "check"}},
    "fit_1epoch_1train_noval": {},
    "fit_resume_to_epoch2_1train_noval": {"has": {"resume"}},
    "fit_manual_1train_noval": {"manual": True},
    "validate_1batch": {"play": "validate"},
    "predict_1batch": {"play": "validate", "word": "predict"},
}


class Line:
    def __init__(self, text):
        self.depth = (len(text) - len(text.lstrip())) // 2
        self.words, _, self.note = (part.strip() for part in text.strip().partition("   "))
        self.is_hook = "." in self.words
        self.below = []


def picture_of(text):
    """The top lines of the picture by name, each with what stands below it."""
    block = re.search(r"^```\n(fit\n.*?)^```", text, re.MULTILINE | re.DOTALL)[1]
    above, tops = [], {}
    for line in (Line(row) for row in block.splitlines() if row.strip()):
        del above[line.depth:]
        if above:
            above[-1].below.append(line)
        else:
            tops[line.words] = line
        above.append(line)
    return tops


def play(tops, lines, how, depth=0, last=True):
    """The calls of these lines, as "DEPTH NAME"."""
    for line in lines:
        if line.is_hook:
            if line.words == "M.lr_scheduler_step" and not last:
                continue
            owners, name = line.words.split(".")
            yield from (f"{depth} {owner}.{name}" for owner in owners.split("+") if owner != "D")
            yield from play(tops, line.below, how, depth + 1, last)
        elif line.words.startswith("each "):
            count = how.get({"each epoch": "epochs", "each batch": "batches"}[line.words], 1)
            for i in range(count):
                yield from play(tops, line.below, how, depth, i == count - 1)
        elif line.note.startswith("if there is"):
            if line.words in how.get("has", ()):
                yield from play(tops, line.below, how, depth, last)
        else:
            words = "manual optimization" if line.words == "automatic optimization" and how.get("manual") else line.words
            inner = {**how, "batches": 1} if words == "validation" else how   # the recorded runs validate on one batch
            yield from play(tops, tops[words].below, inner, depth, last)


def calls_of(tops, how):
    how = {"play": "fit", **how}
    calls = list(play(tops, tops[how["play"]].below, how))
    word = how.get("word")
    return [call.replace("validation", word).replace("val_dataloader", f"{word}_dataloader") for call in calls] if word else calls


def recorded_calls(scenario):
    """Without other functions; what was nested in one moves one level out."""
    kept, inside = [], []
    for depth, name in (line.split(" ", 1) for line in recorded[scenario]):
        depth = int(depth)
        inside = [other for other in inside if other < depth]
        if name in OTHERS:
            inside.append(depth)
        else:
            kept.append(f"{depth - len(inside)} {name.replace('CB.', 'C.')}")
    return kept


def first_difference(ours, theirs):
    for i, (one, other) in enumerate(zip(ours + ["the end"], theirs + ["the end"])):
        if one != other:
            return f"call {i} is {one} in the picture, and {other} in the recording"
    return None


def problems(text):
    tops = picture_of(text)
    for scenario, how in SCENARIOS.items():
        if found := first_difference(calls_of(tops, how), recorded_calls(scenario)):
            yield f"{scenario}: {found}"


def unknown_hooks(text):
    """Hooks that the page has and the Trainer lacks, or the other way round."""
    named = set(re.findall(r'HookInfo\{Hook::\w+, "(\w+)"', (root / "src/trainer/hooks.h").read_text()))
    callback = set(re.findall(r"virtual \S+ (\w+)\(", (root / "include/muster/trainer/callback.h").read_text()))
    shown = set(re.findall(r"\b[DCM](?:\+[CM])*\.(\w+)", text))
    steps = {"on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer"}   # they share one row
    yield from (f"{name} is no hook" for name in sorted(shown - named - callback - steps))
    missing = {name for name in named if "test" not in name and "predict" not in name} - shown - {"on_batch_transfer"}
    yield from (f"the hook {name} is not in the picture" for name in sorted(missing))


passed, failed = 0, []
for rule in (problems, unknown_hooks):
    found = list(rule(page))
    passed, failed = passed + (not found), failed + found
# Each line of a hook counts: without it the picture is wrong.
rows = [row for row in re.search(r"```\n(fit\n.*?)```", page, re.DOTALL)[1].splitlines() if re.match(r" +[DCM+]+\.", row)]
for row in rows:
    if not list(problems(page.replace(row + "\n", "", 1))):
        failed.append(f"without the line '{row.strip()}' the picture is still what was recorded")
    passed += 1
if len(rows) < 30:
    failed.append(f"the picture has only {len(rows)} hooks")
print("\n".join(f"FAILED {problem}" for problem in failed))
print(f"{passed} passed, {len(failed)} failed, 0 skipped")
sys.exit(1 if failed else 0)
