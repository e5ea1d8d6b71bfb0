#!/usr/bin/env python3
"""What a user calls has a text: each public member of the classes below, in the header that defines the class.

    documented_test.py SOURCE
"""
import pathlib
import re
import sys

SHOWN = ["Accelerator", "Communicator", "DataLoader", "Fabric", "Model", "Optimizer", "Runtime", "Scheduler", "Trainer", "Work"]
CLASS = re.compile(r"^class (?:\[\[.*?\]\] )?(\w+)(?:<[^\n{]*>)?(?: final)?(?: : [^{;]*)? \{\n(.*?)^\};", re.M | re.S)
HEAD = re.compile(r"  (?:template|requires)\b[^;]*$|  \[\[[^;()]*$|  (?:friend|static_assert)\b")  # lines before a member, and what is no member


def members(body):
    """(line, documented) of each public member of a class."""
    public, documented = False, False
    for line in body.splitlines():
        if access := re.match(r" (public|protected|private):", line):
            public, documented = access[1] == "public", False
        elif re.match(r"  ///", line):
            documented = True
        elif not line.strip():
            documented = False
        elif re.match(r"  [\w~\[]", line) and not HEAD.match(line):
            if public and "= delete" not in line:
                yield line.strip(), documented or "///<" in line
            documented = False


def undocumented(name, text):
    for found, body in CLASS.findall(text):
        if found == name:
            for line, documented in members(body):
                if not documented:
                    yield line


def check_the_reader():
    text = ("class Face final : public Base {\n public:\n  /// One.\n  template <class T>\n    requires Small<T>\n  void one(T t) {\n    go(t);\n  }\n"
            "  void two();\n  int three() const;  ///< Three.\n  Face(const Face&) = delete;\n\n private:\n  void four();\n};\n")
    found = list(undocumented("Face", text))
    return [] if found == ["void two();"] else [f"the reader is wrong: {found}"]


def main():
    texts = [path.read_text() for path in sorted((pathlib.Path(sys.argv[1]) / "include/muster").rglob("*.h"))]
    errors, count = check_the_reader(), 0
    for name in SHOWN:
        bodies = [body for text in texts for found, body in CLASS.findall(text) if found == name]
        count += sum(1 for body in bodies for _ in members(body))
        if not bodies:
            errors.append(f"no header defines {name}")
        errors += [f"{name}: no text says what this does: {line}" for text in texts for line in undocumented(name, text)]
    if count < 200:
        errors.append(f"only {count} members were found")
    for error in errors:
        print("FAILED", error)
    print(f"{count + 1 - len(errors)} passed, {len(errors)} failed, 0 skipped")
    sys.exit(1 if errors else 0)


main()
