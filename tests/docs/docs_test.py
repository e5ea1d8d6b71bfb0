#!/usr/bin/env python3
"""Errors and their pages match, every error is provoked by a test, and links in the documentation lead somewhere.

    docs_test.py ROOT

Each rule is first watched failing on a small tree made for it, then applied to ROOT.
"""
import pathlib
import re
import sys
import tempfile

ID = re.compile(r"\bMU\d{3}\b")
TOUR_FILES = 40


def thrown(root):
    """Ids in string literals of the sources."""
    found = {}
    for folder in ("include", "src", "apps", "simdevice/include", "simdevice/src"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".h", ".cpp"):
                code = re.sub(r"//[^\n]*", "", path.read_text())
                for literal in re.findall(r'"(MU\d{3})"', code):
                    found.setdefault(literal, path.relative_to(root))
    return found


def pages(root):
    return {path.stem: path for path in sorted((root / "docs" / "errors").glob("MU*.md"))}


def found_something(root):
    if not thrown(root):
        yield "no source throws an error with an id"
    if not pages(root):
        yield "docs/errors has no page"


def every_error_has_a_page(root):
    for name, path in thrown(root).items():
        if name not in pages(root):
            yield f"{path} throws {name}, which has no page docs/errors/{name}.md"


def every_page_has_its_error(root):
    for name in pages(root).keys() - thrown(root).keys():
        yield f"docs/errors/{name}.md: nothing throws {name}"


def pages_have_their_form(root):
    for name, path in pages(root).items():
        text = path.read_text()
        if not re.match(rf"# {name} \S", text):
            yield f"docs/errors/{name}.md: the first line must be '# {name} Title'"
        for section in ("Cause", "Remedy"):
            if not re.search(rf"^## {section}\n+(?!#)\S", text, re.MULTILINE):
                yield f"docs/errors/{name}.md: the section '## {section}' is missing or empty"


def every_error_is_provoked(root):
    mentioned = set()
    for path in [*(root / "tests").rglob("*"), *(root / "simdevice/tests").rglob("*")]:
        if path.suffix in (".cpp", ".h", ".py") and path.name != "docs_test.py":
            mentioned |= set(ID.findall(path.read_text()))
    for name, path in thrown(root).items():
        if name not in mentioned:
            yield f"{path} throws {name}, which no test mentions"


def links_lead_somewhere(root):
    files = [path for path in [*root.glob("*.md"), *(root / "docs").rglob("*.md"), *(root / "benchmarks").glob("*.md")]]
    for path in files:
        prose = re.sub(r"```.*?```|`[^`\n]*`", "", path.read_text(), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", prose):
            if not re.match(r"\w+:", target) and not (path.parent / target).exists():
                yield f"{path.relative_to(root)}: the link to {target} leads nowhere"


def quoted_code_is_run(root):
    """A page beside a program of the same name quotes it: the program is what the tests compile and run."""
    for program in (root / "docs").rglob("*.cpp"):
        code = program.read_text()
        for block in re.findall(r"^```cpp\n(.*?)^```", program.with_suffix(".md").read_text(), re.MULTILINE | re.DOTALL):
            if block not in code:
                yield f"{program.with_suffix('.md').relative_to(root)}: the block that begins '{block.splitlines()[0].strip()}' is not in {program.name}"


def named_errors_exist(root):
    """Pages, headers and messages send readers to pages that are there."""
    pages = {path.stem for path in (root / "docs/errors").glob("*.md")}
    for path in [*root.glob("*.md"), *(root / "docs").rglob("*.md"), *(root / "include").rglob("*.h"), *(root / "simdevice/include").rglob("*.h")]:
        for name in sorted(set(ID.findall(path.read_text())) - pages):
            yield f"{path.relative_to(root)}: names {name}, which has no page"


def readme_is_compiled(root):
    """The program that README prints is an example, which the tests compile and run."""
    blocks = re.findall(r"^```cpp\n(.*?)^```", (root / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    if blocks[:1] != [(root / "examples/readme/main.cpp").read_text()]:
        yield "README.md: its program is not examples/readme/main.cpp"


def decisions(root):
    return sorted(path for path in (root / "docs/decisions").glob("*.md") if path.name != "README.md")


def decisions_have_one_number_each(root):
    seen = {}
    for path in decisions(root):
        number = re.match(r"(\d{4})-", path.name)
        title = re.match(r"# (\d+)\. \S", path.read_text())
        if not number or not title or int(number[1]) != int(title[1]):
            yield f"{path.relative_to(root)}: its first line must be '# N. Title', with the number of its name"
        elif number[1] in seen:
            yield f"{path.relative_to(root)} has the number of {seen[number[1]]}"
        else:
            seen[number[1]] = path.name


def decisions_are_listed(root):
    """The index has each decision once, with its title, and the status that its page gives."""
    index = root / "docs/decisions/README.md"
    rows = re.findall(r"^\| \[\d+\]\((.*?)\) \| (.*) \| (.*) \|$", index.read_text() if index.exists() else "", re.MULTILINE)
    wanted = []
    for path in decisions(root):
        text = path.read_text()
        superseded = re.search(r"^(Superseded(?: in part)?) by \[(\d+)\]", text, re.MULTILINE)
        title = re.match(r"# \d+\. (.*)", text)
        wanted.append((path.name, title[1] if title else "", f"{superseded[1].lower()} by {superseded[2]}" if superseded else "holds"))
    for row in sorted(set(wanted) ^ set(rows)):
        yield f"docs/decisions/README.md: {'it lacks' if row in wanted else 'no page is'} {' | '.join(row)}"


def the_tour_is_short(root):
    """A tour of more files is an index."""
    page = root / "docs/reading.md"
    files = set(re.findall(r"\]\((\.\./(?:include|src|apps|examples)/[^)]*)\)", page.read_text() if page.exists() else ""))
    if len(files) > TOUR_FILES:
        yield f"docs/reading.md names {len(files)} files of the code; the limit is {TOUR_FILES}"


def functions_of_a_step_exist(root):
    """What the page of a step names stands in the file to which its link leads."""
    page = root / "docs/concepts/a_step.md"
    for name, target in re.findall(r"\[`(\w+(?:::\w+)+)`\]\((.*?)\)", page.read_text() if page.exists() else ""):
        source = page.parent / target
        if not source.exists() or f"{name}(" not in source.read_text():
            yield f"{page.relative_to(root)}: {name} is not in {target}"


def every_callback_has_a_section(root):
    """Whoever derives from muster::Callback in the library is shown on the page of callbacks, with code."""
    page = root / "docs/howto/callbacks.md"
    sections = dict(re.findall(r"^## (.*)\n((?:(?!## ).*\n)*)", page.read_text() if page.exists() else "", re.MULTILINE))
    for path in (root / "include/muster/trainer").rglob("*.h"):
        for name in re.findall(r"^class (\w+)(?: final)? : public Callback\b", path.read_text(), re.MULTILINE):
            if "```cpp" not in sections.get(name, ""):
                yield f"docs/howto/callbacks.md: it has no section ## {name} with code"


def few_words_are_our_own(root):
    """Whoever knows the field should need no dictionary."""
    rows = re.findall(r"^\| (?!word \|)\w.*\|$", (root / "docs/concepts/words.md").read_text(), re.MULTILINE)
    if not 0 < len(rows) <= 10:
        yield f"docs/concepts/words.md has {len(rows)} words; at most 10 may be our own"


RULES = [found_something, every_error_has_a_page, every_page_has_its_error, pages_have_their_form, every_error_is_provoked, links_lead_somewhere,
         quoted_code_is_run, named_errors_exist, readme_is_compiled, decisions_have_one_number_each,
         decisions_are_listed, functions_of_a_step_exist, the_tour_is_short, every_callback_has_a_section, few_words_are_our_own]

GOOD = {
    "src/base/a.cpp": 'void f() { throw Error("MU001", "x"); }  // "MU009"\n',
    "docs/errors/MU001.md": "# MU001 A title\n\n## Cause\nThis.\n\n## Remedy\nThat.\n",
    "tests/base/a_test.cpp": 'EXPECT_EQ(id, "MU001");\n',
    "docs/howto/page.cpp": "int main() {\n  return 0;\n}\n",
    "docs/howto/page.md": "# Page\n```cpp\n  return 0;\n```\n",
    "docs/howto/callbacks.cpp": "int main() {\n  Timer timer;\n}\n",
    "docs/howto/callbacks.md": "# Callbacks\n## Timer\nIt measures.\n```cpp\n  Timer timer;\n```\n",
    "include/muster/trainer/timer.h": "class Timer : public Callback {};\n",
    "README.md": "`[&](auto& x)`, [page](docs/errors/MU001.md) and [elsewhere](https://example.org)\n```cpp\nint main() {}\n```\n",
    "examples/readme/main.cpp": "int main() {}\n",
    "docs/decisions/0007-seven.md": "# 7. Seven\n",
    "docs/decisions/README.md": "# Decisions\n| [7](0007-seven.md) | Seven | holds |\n",
    "docs/concepts/a_step.md": "[`A::b`](../../src/base/step.cpp)\n",
    "src/base/step.cpp": "void A::b(int x) {}\n",
    "docs/concepts/words.md": "# Words\n| word | meaning |\n|---|---|\n| room | a folder |\n",
}
BROKEN = {
    found_something: [{"src/base/a.cpp": "int x;\n"}, {"docs/errors/MU001.md": None}],
    every_error_has_a_page: [{"src/base/b.cpp": 'throw Error("MU002", "x");\n'}],
    every_page_has_its_error: [{"docs/errors/MU003.md": GOOD["docs/errors/MU001.md"].replace("MU001", "MU003")}],
    pages_have_their_form: [{"docs/errors/MU001.md": GOOD["docs/errors/MU001.md"].replace("# MU001", "# MU002", 1)},
                            {"docs/errors/MU001.md": "# MU001 A title\n\n## Cause\n\n## Remedy\nThat.\n"},
                            {"docs/errors/MU001.md": "# MU001 A title\n\n## Cause\nThis.\n"}],
    every_error_is_provoked: [{"tests/base/a_test.cpp": "MU002\n"}],
    links_lead_somewhere: [{"README.md": "`[&](auto& x)` and [`page`](docs/none.md)\n"}],
    quoted_code_is_run: [{"docs/howto/page.md": "```cpp\n  return 1;\n```\n"}],
    named_errors_exist: [{"docs/howto/other.md": "see MU002\n"}, {"include/muster/base/a.h": "/// Throws: MU002\n"}],
    decisions_have_one_number_each: [{"docs/decisions/0007-other.md": "# 7. Other\n"}, {"docs/decisions/0008-eight.md": "# 7. Eight\n"},
                                     {"docs/decisions/0009-nine.md": "# Nine\n"}],
    decisions_are_listed: [{"docs/decisions/0008-eight.md": "# 8. Eight\n"}, {"docs/decisions/README.md": None}, {"docs/decisions/0007-seven.md": "# 7. Heaven\n"},
                           {"docs/decisions/0007-seven.md": "# 7. Seven\nSuperseded by [8](0008-eight.md).\n"}],
    functions_of_a_step_exist: [{"src/base/step.cpp": "void A::c(int x) {}\n"}, {"src/base/step.cpp": None}],
    the_tour_is_short: [{"docs/reading.md": "".join(f"[a](../src/base/a{i}.h)\n" for i in range(TOUR_FILES + 1))}],
    few_words_are_our_own: [{"docs/concepts/words.md": "# Words\n"},
                            {"docs/concepts/words.md": "# Words\n" + "".join(f"| word{i} | x |\n" for i in range(11))}],
    every_callback_has_a_section: [{"include/muster/trainer/bar.h": "class Bar final : public Callback {};\n"},
                                   {"docs/howto/callbacks.md": "# Callbacks\n## Timer\nIt measures.\n"}],
    readme_is_compiled: [{"examples/readme/main.cpp": "int main() { return 1; }\n"}],
}


def main(root):
    passed, failed = 0, []
    for rule in RULES:
        for changes in [{}] + BROKEN[rule]:
            with tempfile.TemporaryDirectory() as folder:
                for name, text in {**GOOD, **changes}.items():
                    if text is not None:
                        path = pathlib.Path(folder, name)
                        path.parent.mkdir(parents=True, exist_ok=True)
                        path.write_text(text)
                found = list(rule(pathlib.Path(folder)))
            if bool(found) == bool(changes):
                passed += 1
            else:
                failed.append(f"{rule.__name__} on the tree changed by {list(changes)[:1]}: {found or 'found nothing'}")
    for rule in RULES:
        found = list(rule(pathlib.Path(root)))
        passed += not found
        failed += [f"{rule.__name__}: {problem}" for problem in found]
    print("\n".join(f"FAILED {problem}" for problem in failed))
    print(f"{passed} passed, {len(failed)} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[2]))
