#!/usr/bin/env python3
"""Writes the linker version scripts of the shared libraries, or checks them.

    exported_names.py [--check]

cmake/exported_names.map has the names that installed headers declare: all that libmuster exports. cmake/exported_names_launch.map has those of the rooms
in libmuster_launch and, of version MUSTER_PRIVATE, those that private headers of these rooms declare for other rooms: libmuster uses them, and no program may.
Names are read from the text of the headers, namespace by namespace. docs/decisions/0084 says why neither the compiler nor a macro does this.
"""
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(HERE / "tests/rooms"))
from cpp_text import without_comments  # noqa: E402

LAUNCH_ROOMS = ("base", "options", "cluster", "launcher")
OPTIONS = "*options.h"   # these headers stand beside what they are for, and belong to room options
FOR_OTHERS = "#pragma once  // for other rooms\n"
NAMESPACE = re.compile(r"\bnamespace ([\w:]+) \{$")
TYPE = re.compile(r"^\s*(?:template <.*>\s*)?(?:class|struct|enum class|enum) (?:\[\[.*?\]\] )?(\w+)(?:<.*>)?(?: final)?(?: : [^;]*)?$", re.DOTALL)
VARIABLE = re.compile(r"^\s*(?:extern|inline)\b(?!.*\bconstexpr\b)[^(]*?(\w+)\s*(?:=.*)?$", re.DOTALL)


def declared(text):
    """(namespace, name, is a type) of each type that a header defines, and of each function and variable that it declares, in a namespace."""
    code = re.sub(r"(?m)^[ \t]*#.*(?:\\\n.*)*$", "", without_comments(text))
    open_braces, head, begin = [], "", 0   # of each open brace: the namespace that it opens, or None
    for index, char in enumerate(code):
        if char not in "{};":
            continue
        head, begin = code[begin:index], index + 1
        inside = all(open_braces)
        if char == "{":
            space = NAMESPACE.search(head.strip() + " {")
            if inside and not space:
                yield from names_of(head, "::".join(open_braces), True)
            open_braces.append(space[1] if space and inside else None)
        elif char == "}":
            open_braces.pop()
        elif inside and open_braces:
            yield from names_of(head, "::".join(open_braces), False)


def names_of(head, space, defined):
    head = head.strip()
    if match := TYPE.match(head):
        if defined or head.startswith("template"):   # a macro may define what is declared only
            yield space, match[1], True
        return
    if re.match(r"(using|typedef|static_assert|friend|concept|namespace)\b", head):
        return
    flat, depth = "", 0
    for char in re.sub(r"\[\[.*?\]\]", "", head, flags=re.DOTALL):   # what stands outside of template arguments and parameters
        if char == "(" and not depth:
            flat += char
        depth += {"<": 1, "(": 1, ">": -1, ")": -1}.get(char, 0)
        if not depth and char not in ">)":
            flat += char
    if match := re.search(r"([A-Za-z_]\w*)\s*\(", flat):
        if not match[1].isupper():
            yield space, match[1], False
    elif match := VARIABLE.match(flat):
        yield space, match[1], True   # matched like a type: without parameters


def patterns(names):
    """The patterns of mangled names, a line for each name. K, R, O: const, & and && functions; G, T, Z: static variables of functions, and tables, type
    information and thunks. No private function of ours is matched by what it takes: after its own, a mangled name has no "muster" a second time."""
    for space, name, whole in sorted(names):
        mangled = "".join(f"{len(word)}{word}" for word in [*space.split("::"), name])
        yield f"_ZN{mangled}*; _ZN[KRO]{mangled}*; _ZNK[RO]{mangled}*; _Z[GTZ]*{mangled}*;" if whole else f"_ZN{mangled}*; _Z[GZ]*{mangled}*;"


def names_in(headers):
    return {name for header in headers for name in declared(header.read_text()) if name[0].split("::")[0] == "muster"}


def node(tag, names, local):
    lines = "".join(f"    {line}\n" for line in patterns(names))
    return f"{tag} {{\n  global:\n{lines}" + ("  local:\n    *;\n" if local else "") + "};\n"


def main(arguments):
    head = "# Made by tools/exported_names.py from what headers declare; tests/install checks that it is up to date.\n"
    headers = [header for folder in ("include", "simdevice/include") for header in (HERE / folder).rglob("*.h")]
    of_launch = [header for header in headers if header.match(OPTIONS) or header.relative_to(HERE).parts[2] in LAUNCH_ROOMS]
    every, launch = names_in(headers), names_in(of_launch)
    for_others = names_in(header for room in LAUNCH_ROOMS for header in (HERE / "src" / room).rglob("*.h") if header.read_text().startswith(FOR_OTHERS))
    files = {"exported_names.map": head + node("MUSTER", every, True),
             "exported_names_launch.map": head + node("MUSTER", launch, True) + node("MUSTER_PRIVATE", for_others - launch, False)}
    for name, text in files.items():
        path = HERE / "cmake" / name
        if arguments != ["--check"]:
            path.write_text(text)
        elif path.read_text() != text:
            sys.exit(f"cmake/{name} is not what the headers declare: run tools/exported_names.py")


if __name__ == "__main__":
    main(sys.argv[1:])
