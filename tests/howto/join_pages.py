#!/usr/bin/env python3
"""Writes one program of the programs of several pages, each as a command of its own: compiled together they cost a quarter of the time.

    join_pages.py OUT PAGE.cpp...

`OUT-program NAME arguments...` is what the program of NAME.cpp alone does. Lines keep their numbers for the compiler's messages.
"""
import pathlib
import re
import sys

INCLUDE = re.compile(r"^#include <[^>]+>$", re.MULTILINE)
MAIN = re.compile(r"^int main\(([^)]*)\) \{$", re.MULTILINE)


def page(path):
    """(includes, code in a namespace, does its main take arguments?) of a page's program."""
    text = path.read_text()
    heads = MAIN.findall(text)
    if len(heads) != 1 or not text.endswith("\n}\n") or not text.rstrip("}\n").strip():
        sys.exit(f"{path}: its main must be the only one, its last function, and begin with 'int main('")
    if re.search(r'^#(?!include <)', text, re.MULTILINE):
        sys.exit(f"{path}: a page's program has no preprocessor line but #include <...>")
    body = MAIN.sub(r"int run(\1) {", INCLUDE.sub("", text))
    body = body[:-len("}\n")] + "return 0; }\n"   # main returns 0 by itself; no other function does
    return INCLUDE.findall(text), f'#line 1 "{path}"\nnamespace page_{path.stem} {{ {body}}}\n', bool(heads[0])


def joined(paths):
    includes, bodies, commands = set(), [], []
    for path in paths:
        found, body, arguments = page(path)
        includes.update(found)
        bodies.append(body)
        call = "run(count, values)" if arguments else "run()"
        commands.append(f'  if (name == "{path.stem}") return page_{path.stem}::{call};\n')
    return ("\n".join(sorted(includes)) + "\n#include <cstdio>\n#include <string_view>\n" + "".join(bodies) + '#line 1 "joined pages"\n'
            "int main(int count, char** values) {\n  const std::string_view name = count > 1 ? values[1] : \"\";\n"
            "  --count, ++values;\n" + "".join(commands) + '  std::puts("which page?");\n  return 2;\n}\n')


def main(out, *paths):
    pathlib.Path(out).write_text(joined([pathlib.Path(path) for path in paths]))


if __name__ == "__main__":
    main(*sys.argv[1:])
