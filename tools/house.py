#!/usr/bin/env python3
"""Prints figures of the house as CSV: how many files and headers there are, and how many of them say one thing.

    house.py [ROOT]

Read by regular expressions from the text of include/ and src/, without comments; what a macro makes is not seen.
"""
import collections
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(HERE / "tests/rooms"))
from cpp_text import without_comments  # noqa: E402

USERS = ("apps", "simdevice", "tests")  # the folders whose programs use what stands in include and src
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
FRAME = re.compile(r"^\s*(?:#\s*(?:include|pragma)\b|namespace\b.*\{$|\}\s*//\s*namespace|using namespace\b)")
CLASS = re.compile(r"^(\s*)(?:class|struct) (?:\[\[.*?\]\] )?([\w:]+)(?: final)?(?:\s*:[^;{]*)? \{$", re.MULTILINE)
FLAG = re.compile(r"^\s*(?:mutable\s+|std::atomic<)?bool>?\s+\w+_?\s*(?:=[^;(]*|\{[^}]*\})?(?:,[^;(]*)?;", re.MULTILINE)
MEMBER = re.compile(r"^\s*(?!return|using|friend|static|typedef|template|case|goto|delete|throw|virtual|explicit|else|if|for|while)[\w:<>,&*\s\[\]().]*?[\w>&*\]]\s+\w+_?\s*(?:=[^;]*|\{[^;]*\})?;", re.MULTILINE)
FUNCTION = re.compile(r"^\s*(?!return|else|if|for|while|switch|throw|using|static_assert|case)[\w:<>,&*~\s\[\]()\"]*?(~?\w+|operator\S+)\([^;{]*\)[^;{=]*(?:=\s*(?:0|default)\s*;|[;{])", re.MULTILINE)


def files(root, folders=("include", "src")):
    return {path.relative_to(root): path.read_text() for folder in folders for path in sorted((root / folder).rglob("*"))
            if path.suffix in (".h", ".cpp")}


def body_of(code, begin):
    depth = 1
    for index in range(begin, len(code)):
        depth += {"{": 1, "}": -1}.get(code[index], 0)
        if not depth:
            return code[begin:index]
    return code[begin:]


def outermost(body):
    """The body without what stands in inner braces."""
    text, depth = [], 0
    for char in body:
        depth -= char == "}"
        if not depth or char == "\n":
            text.append(char)
        depth += char == "{"
    return "".join(text)


def classes(texts):
    """(name, functions, data members, flags) of each class."""
    for text in texts.values():
        code = without_comments(text)
        for match in CLASS.finditer(code):
            inside = outermost(body_of(code, match.end()))
            functions = {found[1] for found in FUNCTION.finditer(inside)}
            members = [found[0] for found in MEMBER.finditer(inside) if "(" not in found[0].split("=")[0]]
            yield match[2], len(functions), len(members), len(FLAG.findall(inside))


def sources_of_classes(texts):
    """The sources in which each class has functions."""
    found = collections.defaultdict(set)
    for path, text in texts.items():
        if path.suffix == ".cpp":
            room = path.parts[1]
            for name in re.findall(r"^(?!\s)[\w:<>,&*\t \[\]\"()]*?\b([A-Z]\w*(?:::[A-Z]\w*)*)::~?\w+\(", without_comments(text), re.MULTILINE):
                found[room, name].add(path)
    return found


def types_in_detail(texts):
    """Types that are defined directly in namespace muster, in a header of detail/."""
    count = 0
    for path, text in texts.items():
        if "detail" in path.parts:
            code = without_comments(text)
            for match in re.finditer(r"^namespace muster \{$", code, re.MULTILINE):
                count += len(re.findall(r"^(?:class|struct|enum(?: class)?)\s+(?:\[\[.*?\]\] )?\w+[^;{]*\{|^using \w+ =|^concept \w+", outermost(body_of(code, match.end())) + "{", re.MULTILINE))
    return count


def users(texts, others):
    """How many files include each header, without its own source. A test or a program (`others`) counts: it needs the header."""
    count = collections.Counter()
    for path, text in [*texts.items(), *others.items()]:
        for name in set(INCLUDE.findall(text)):
            for header in (pathlib.Path("include", name), pathlib.Path("src", name), path.parent / name):
                if header in texts and header.with_suffix(".cpp").name != path.name:
                    count[header] += 1
                    break
    return count


def figures(texts, others):
    """How many there are, by name, and the classes that stand in several sources. `others`: tests and programs, which only use headers."""
    lines = [line for text in texts.values() for line in text.splitlines()]
    headers = [path for path in texts if path.parts[0] == "include"]
    several = sorted(name for (_, name), sources in sources_of_classes(texts).items() if len(sources) > 1)
    # A class has a header and a source of its own, even if one other class holds it; a header without a source is a part of its user.
    one_user = [path for path, count in users(texts, others).items()
                if count == 1 and ("detail" in path.parts or path.parts[0] == "src") and path.with_suffix(".cpp") not in texts]
    found = {"files in include and src": len(texts), "lines": len(lines), "mean lines of a file": round(len(lines) / len(texts)),
             "installed headers": len(headers), "of these in detail": sum("detail" in path.parts for path in headers),
             "types of namespace muster defined in detail": types_in_detail(texts),
             "classes in several sources": len(several), "private headers with one user and no source": len(one_user),
             "includes and namespaces, percent of lines": round(100 * sum(bool(FRAME.match(line)) for line in lines) / len(lines), 1)}
    return found, several


def main():
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    texts = files(root)
    found, several = figures(texts, files(root, USERS))
    every = list(classes(texts))
    for what, place in (("functions", 1), ("members", 2), ("flags", 3)):
        largest = max(every, key=lambda one: one[place])
        found[f"most {what} of a class"] = f"{largest[place]} ({largest[0]})"
    print("figure,value")
    for name, value in found.items():
        print(f"{name},{value}")
    print("classes in several sources: " + ", ".join(several))


if __name__ == "__main__":
    main()
