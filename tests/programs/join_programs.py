#!/usr/bin/env python3
"""Writes one program of several: compiled together they cost a quarter of the time.

    join_programs.py OUT PROGRAM.cpp...

Called by a link named NAME, or with NAME as its first word, it does what the program of NAME.cpp alone does.
Lines keep their numbers for the compiler's messages.
"""
import pathlib
import re
import sys

INCLUDE = re.compile(r'^#include [<"][^>"]+[>"]$', re.MULTILINE)
MAIN = re.compile(r"^int main\(([^)]*)\) \{$", re.MULTILINE)


def parts_of(path):
    """(includes, code in a namespace, does its main take arguments?) of a program."""
    text = path.read_text()
    heads = MAIN.findall(text)
    if len(heads) != 1 or not text.endswith("\n}\n") or not text.rstrip("}\n").strip():
        sys.exit(f"{path}: its main must be the only one, its last function, and begin with 'int main('")
    if re.search(r"^#(?!include )", text, re.MULTILINE):
        sys.exit(f"{path}: a program that is joined has no preprocessor line but #include")
    body = MAIN.sub(r"int run(\1) {", INCLUDE.sub("", text))
    body = body[:-len("}\n")] + "return 0; }\n"   # main returns 0 by itself; no other function does
    return INCLUDE.findall(text), f'#line 1 "{path}"\nnamespace program_{path.stem} {{ {body}}}\n', bool(heads[0])


def joined(paths):
    includes, bodies, commands = set(), [], []
    for path in paths:
        found, body, arguments = parts_of(path)
        includes.update(found)
        bodies.append(body)
        call = "run(count, values)" if arguments else "run()"
        commands.append(f'  if (name == "{path.stem}") return program_{path.stem}::{call};\n')
    return ("\n".join(sorted(includes)) + "\n#include <cstdio>\n#include <string>\n" + "".join(bodies) + '#line 1 "joined programs"\n'
            "int run_program(const std::string& name, int count, char** values) {\n" + "".join(commands) + "  return -1;\n}\n"
            "int main(int count, char** values) {\n  const std::string path = values[0];\n"
            "  const int by_link = run_program(path.substr(path.rfind('/') + 1), count, values);\n  if (by_link >= 0) return by_link;\n"
            "  const int by_word = count > 1 ? run_program(values[1], count - 1, values + 1) : -1;\n  if (by_word >= 0) return by_word;\n"
            '  std::puts("which program?");\n  return 2;\n}\n')


def main(out, *paths):
    pathlib.Path(out).write_text(joined([pathlib.Path(path) for path in paths]))


if __name__ == "__main__":
    main(*sys.argv[1:])
