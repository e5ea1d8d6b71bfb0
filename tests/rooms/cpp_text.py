"""What a C++ source says, by its text alone: names, bodies, functions."""
import re

FOREIGN_NAME = re.compile(r"\b(?:std|torch|at|c10|c10d|nlohmann|YAML|CLI|spdlog|nn|F)::[\w:]+")


def bodies(code):
    """(line, text) of each function body: the braces after a parameter list."""
    for match in re.finditer(r"\)\s*(?:const\s*)?(?:noexcept\s*)?(?:->\s*[\w:<>]+\s*)?\{", code):
        depth, index = 1, match.end()
        while index < len(code) and depth:
            depth += {"{": 1, "}": -1}.get(code[index], 0)
            index += 1
        yield code.count("\n", 0, match.start()) + 1, code[match.end():index - 1]


def names_in(text):
    """(line number, name, its words) of each name of ours in code."""
    for number, line in enumerate(FOREIGN_NAME.sub(" ", without_comments(text)).splitlines(), 1):
        for name in re.findall(r"[A-Za-z_]\w+", "" if line.lstrip().startswith("#") else line):
            yield number, name, {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)}


def without_comments(text):
    """The text with comments and literals blanked, line for line."""
    literal = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)
    return literal.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)


def functions(text):
    """(line, length, name) of each function body outside other functions: a brace opened by a parameter list."""
    blank = lambda match: re.sub(r"[^\n]", " ", match[0])
    code = re.sub(r"\[\[.*?\]\]", blank, re.sub(r"(?m)^[ \t]*#.*(?:\\\n.*)*$", blank, without_comments(text)), flags=re.DOTALL)
    opened, start, head = [], None, 0  # of each open brace: does it initialise a member?
    for index, char in enumerate(code):
        if char == "{":
            before = code[head:index]
            member = start is None and bool(re.search(r"\)\s*(?:noexcept\s*)?:[^:].*[\w>]$", before, re.DOTALL))
            if start is None and not member and re.search(r"\)[^;=]*$", before) and not re.match(r"\s*(namespace|class|struct|enum|union)\s[^()]*$", before):
                name = re.findall(r"(operator\s*\S+?|[\w:~]+)\s*\(", before)
                start = (head + len(before) - len(before.lstrip()), name[0] if name else "?", len(opened))
            opened.append(member)
            if member:
                continue
        elif char == "}" and opened:
            if opened.pop():
                continue
            if start and start[2] == len(opened):
                first = code.count("\n", 0, start[0]) + 1
                yield first, code.count("\n", 0, index) + 2 - first, start[1]
                start = None
        if char in "{};" and start is None:
            head = index + 1
