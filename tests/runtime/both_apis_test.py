#!/usr/bin/env python3
"""Both APIs show every function of the runtime: each public function of LoopFunctions and its bases is in Accelerator and in Fabric,
by a using-declaration or by a function that calls it under the name that the API's users know.

    both_apis_test.py SOURCE
"""
import pathlib
import re
import sys

# What one API does not show, and why.
MISSING = {
    ("Accelerator", "clip_gradients_of"): "Fabric's clip_gradients(); Accelerate has clip_grad_norm_() and clip_grad_value_()",
}
CLASS = re.compile(r"^class (?:\[\[.*?\]\] )?(\w+)(?: final)?(?: : ([^{;]*))? \{\n(.*?)^\};", re.M | re.S)


def without_comments(text):
    return re.sub(r"//.*", "", text)


def classes(texts):
    """The name of each class, with its bases and its body."""
    found = {}
    for text in texts:
        for name, bases, body in CLASS.findall(without_comments(text)):
            found[name] = (re.findall(r"(?:public|private) (?:\w+::)*(\w+)", bases or ""), body)
    return found


def public_functions(name, body):
    shown = False
    for line in body.splitlines():
        if access := re.match(r" (public|protected|private):", line):
            shown = access[1] == "public"
        line = re.sub(r"\[\[.*?\]\] ?", "", line)
        if not shown or not re.match(r"  \w", line) or re.match(r"  (template|requires|using|friend)\b", line):
            continue
        if (function := re.search(r"(?<!~)\b(\w+)\(", line)) and function[1] not in (name, "operator"):
            yield function[1]


def functions(found, name):
    """Those of the class and of all its bases."""
    bases, body = found[name]
    own = set(public_functions(name, body))
    return own.union(*(functions(found, base) for base in bases))


def missing(api, body, names):
    return {name for name in names if not re.search(rf"\busing \w+::{name};|\b{name}\(", body) and (api, name) not in MISSING}


def check_the_reader():
    """The reader sees what it must see: a function that one API lacks, a wrapped one, and none of the private ones."""
    found = classes(["class Base {\n public:\n  /// One.\n  void save(int a);\n  [[nodiscard(\"x\")]] int rank() const;\n"
                     "  template <class F>\n  auto first(F&& f) const {\n    return hidden(f);\n  }\n private:\n  void hidden(int);\n};\n",
                     "class Top final : private Base {\n public:\n  Top();\n  ~Top();\n  void load();\n};\n"])
    names = functions(found, "Top")
    body = "  using Base::save;\n  int global_rank() const { return rank(); }\n"
    return [] if names == {"save", "rank", "first", "load"} and missing("Api", body, names) == {"first", "load"} else [
        f"the reader is wrong: {sorted(names)}"]


def main():
    include = pathlib.Path(sys.argv[1]) / "include/muster"
    found = classes(path.read_text() for path in sorted(include.rglob("*.h")))
    names = functions(found, "LoopFunctions")
    errors = check_the_reader()
    if len(names) < 60 or "prepare" not in names or "synchronize_rng_states" not in names:
        errors.append(f"only {len(names)} functions were found: {sorted(names)}")
    for api in ("Accelerator", "Fabric"):
        errors += [f"{api} lacks {name}; show it, or list it in MISSING with the reason" for name in sorted(missing(api, found[api][1], names))]
    errors += [f"{api} has {name} now; take it out of MISSING" for api, name in MISSING
               if name not in names or re.search(rf"\b{name}\b", found[api][1])]
    for error in errors:
        print("FAILED", error)
    checks = 2 * len(names) + 1
    print(f"{checks - len(errors)} passed, {len(errors)} failed, 0 skipped")
    sys.exit(1 if errors else 0)


main()
