#!/usr/bin/env python3
"""Reads ROOMS.md and every source, and fails on what breaks the rules.

    rooms_test.py ROOT

Each rule is first watched failing on a small tree made for it, then applied to ROOT.
"""
import pathlib
import re
import sys
import tempfile

from cpp_text import bodies, functions, names_in, without_comments

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import house  # noqa: E402

FOLDERS = ("include", "src", "apps")
BESIDE = {"sim": "simdevice"}  # rooms beside the house, which no other room includes, and the folder of each, with an include/ and a src/ of its own
TORCH = re.compile(r"^(torch|ATen|c10|caffe2)/")
FORBIDDEN_WORDS = {"utils", "util", "helper", "helpers", "manager", "common", "misc"}
FILE_LINES, TEST_LINES, FUNCTION_LINES, ROOM_LIST_LINES = 800, 400, 60, 20  # a file of 800 lines holds one class
FIGURES = {"installed headers": 129, "types of namespace muster defined in detail": 0, "classes in several sources": 0, "private headers with one user and no source": 0}
FOR_OTHERS = "#pragma once  // for other rooms\n"
OPTIONS = re.compile(r"muster/\w+/(?:\w+_)?options\.h")  # the structs of options that users name stand beside what they are for, and belong to room options
FACES = {"version.h": "base"}  # of the headers directly in include/muster: the room, where its name does not say it
HOUSE_WORDS = pathlib.Path(__file__).with_name("house_words.txt").read_text()


class Tree:
    """The rooms' table and the sources below ROOT."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.allowed, self.torch_free = {}, set()
        table = self.root / "ROOMS.md"
        for line in table.read_text().splitlines() if table.exists() else []:
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if not line.startswith("|") or len(cells) != 3 or not re.fullmatch(r"[a-z]+", cells[0]) or cells[0] == "room":
                continue
            if "(no Torch)" in cells[2]:
                self.torch_free.add(cells[0])
            names = cells[2].replace("(no Torch)", "").replace("–", "")
            self.allowed[cells[0]] = {name.strip() for name in names.split(",") if name.strip()}
        # By the path below ROOT, or below the folder beside the house: what an include names stands below either.
        self.files = {path.relative_to(top): path.read_text() for top in (self.root, *(self.root / folder for folder in BESIDE.values()))
                      for folder in FOLDERS for path in sorted((top / folder).rglob("*")) if path.suffix in (".h", ".cpp")}

    def room_of(self, path):
        """The room of a file. A header directly in include/muster is that of the room of its name, or of the API; the command line is 'apps', a program with
        LibTorch 'programs'."""
        parts = path.parts
        if parts[0] == "apps":
            return "apps" if parts[1] == "muster" else "programs"
        if parts[0] == "include":
            return self.room_of_public(path.relative_to("include").as_posix())
        return parts[1] if len(parts) > 2 else self.room_of_face(parts[1])

    def room_of_public(self, name):
        """The room of an installed header, "muster/tree/visit.h"."""
        if OPTIONS.fullmatch(name):
            return "options"
        parts = name.split("/")
        return parts[1] if len(parts) > 2 else self.room_of_face(parts[1])

    def room_of_face(self, name):
        """The room of a header directly in include/muster."""
        return name[:-2] if name[:-2] in self.allowed else FACES.get(name, "api")

    def includes(self, path):
        """(line number, name, room of ours or None) of each include of a file."""
        for number, line in enumerate(self.files[path].splitlines(), 1):
            match = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
            if match:
                yield number, match[2], self.included_room(path, match[1], match[2])

    def included_room(self, path, bracket, name):
        parts = name.split("/")
        if parts[0] == "muster":
            return self.room_of_public(name)
        if bracket == '"':
            if path.parts[0] == "apps" and len(parts) == 1:
                return self.room_of(path)
            return parts[0] if parts[0] in self.allowed and len(parts) > 1 else self.room_of(path)
        return None


def found_something(tree):
    if not tree.allowed:
        yield "ROOMS.md has no row"
    if not tree.files:
        yield "there is no source to read"
    elif not any(room for path in tree.files for _, _, room in tree.includes(path)):
        yield "no source includes a header of ours"


def every_room_has_a_row(tree):
    for path in tree.files:
        if tree.room_of(path) not in {**tree.allowed, "apps": 0, "programs": 0}:
            yield f"{path}: its folder is no room of ROOMS.md"
    for room, names in tree.allowed.items():
        for name in names - set(tree.allowed):
            yield f"ROOMS.md: the row {room} names {name}, which is no room"


def nothing_includes_what_stands_beside(tree):
    """Only tests include the rooms of BESIDE, and these are where BESIDE says."""
    for room, names in tree.allowed.items():
        for name in names & set(BESIDE):
            yield f"ROOMS.md: {room} may not include {name}, which stands beside the house"
    for room, folder in BESIDE.items():
        for path in (pathlib.Path("include/muster", room), pathlib.Path("src", room)):
            if (tree.root / path).exists():
                yield f"{path}: it belongs into {folder}/"


def permissions_are_used(tree):
    """A row names only rooms that some file of the room includes."""
    for room, names in tree.allowed.items():
        used = {other for path in tree.files if tree.room_of(path) == room
                for _, _, other in tree.includes(path)}
        for name in sorted(names - used):
            yield f"ROOMS.md: {room} may include {name}, and does not"


def rows_point_one_way(tree):
    for room in tree.allowed:
        reached, ahead = set(), [room]
        while ahead:
            for name in tree.allowed.get(ahead.pop(), ()):
                if name not in reached:
                    reached.add(name)
                    ahead.append(name)
        if room in reached:
            yield f"ROOMS.md: {room} reaches itself"


def includes_follow_the_table(tree):
    for path in tree.files:
        room = tree.room_of(path)
        outside = {"apps": tree.torch_free, "programs": set(tree.allowed)}
        allowed = outside.get(room, tree.allowed.get(room, set())) | {room}
        for line, name, other in tree.includes(path):
            if other and other not in allowed:
                yield f"{path}:{line}: {room} may not include {name} (room {other})"


def private_headers_stay_inside(tree):
    """A header in src/ is for its room alone, unless its first line says that it is for others; then some other room includes it."""
    unused = {path for path, text in tree.files.items() if path.parts[0] == "src" and text.startswith(FOR_OTHERS)}
    for path in tree.files:
        for line, name, other in tree.includes(path):
            if other not in (None, "api", tree.room_of(path)) and not name.startswith("muster/"):
                header = pathlib.Path("src", name)
                unused.discard(header)
                if path.parts[0] == "include":
                    yield f"{path}:{line}: {name} is not installed"
                elif not tree.files.get(header, "").startswith(FOR_OTHERS):
                    yield f"{path}:{line}: {name} is private to room {other}; its first line would say {FOR_OTHERS.strip()}"
    for path in sorted(unused):
        yield f"{path}:1: no other room includes it"


def torch_free_rooms_stay_free(tree):
    for path in tree.files:
        if tree.room_of(path) in tree.torch_free | {"apps"}:
            for line, name, _ in tree.includes(path):
                if TORCH.match(name):
                    yield f"{path}:{line}: room {tree.room_of(path)} includes no Torch, not {name}"


def public_headers_are_shown(tree):
    """Public is what a page's program or an example includes, itself or by another header; the rest is in detail/. Programs of users write
    <muster/...>, and we quote."""
    shown = set()
    for folder in ("docs", "examples"):
        for path in (tree.root / folder).rglob("*"):
            if path.suffix in (".h", ".cpp"):
                shown |= set(re.findall(r"#\s*include <(muster/[^>]+)>", path.read_text()))
    public = [path for path in tree.files if path.parts[0] == "include" and "detail" not in path.parts]
    ahead = [name for name in shown if pathlib.Path("include", name) in tree.files]
    while ahead:
        found = {name for _, name, other in tree.includes(pathlib.Path("include", ahead.pop())) if other} - shown
        shown |= found
        ahead += [name for name in found if pathlib.Path("include", name) in tree.files]
    for path in public:
        if path.relative_to("include").as_posix() not in shown:
            yield f"{path}: no program of docs/ or examples/ includes it; show it there, or move it into detail/"
    for path in tree.files:
        for line, text in enumerate(tree.files[path].splitlines(), 1):
            if re.match(r"\s*#\s*include\s*<muster/", text):
                yield f"{path}:{line}: the library quotes its own headers"


def public_headers_stay_light(tree):
    for path in tree.files:
        if path.parts[0] == "include":
            for line, name, _ in tree.includes(path):
                if name in ("torch/torch.h", "torch/all.h") or name.startswith(("spdlog/", "fmt/")):
                    yield f"{path}:{line}: a public header may not include {name}"
                if name == "ranges":
                    yield f"{path}:{line}: <ranges> brings 4,000 lines of views into every program; <algorithm> has the concepts"
            if "#pragma once" not in tree.files[path]:
                yield f"{path}: #pragma once is missing"


def formatting_stays_out_of_torch(tree):
    for path in tree.files:
        if tree.room_of(path) not in tree.torch_free | {"apps"}:
            for line, name, _ in tree.includes(path):
                if name.startswith(("spdlog/", "fmt/")):
                    yield f"{path}:{line}: {name} meets LibTorch's own fmt here; log through base/log.h"


def mpi_stays_in_its_place(tree):
    """What is compiled with MPI's header is an object of its own; beside it one public header may have it, which only programs include."""
    door, inside = pathlib.Path("include/muster/comm/mpi.h"), pathlib.Path("src/comm/mpi/object")
    for path in tree.files:
        for line, name, _ in tree.includes(path):
            if name == "mpi.h" and path != door and inside not in path.parents:
                yield f"{path}:{line}: only {inside} and {door} include MPI's header"
            if name == "muster/comm/mpi.h":
                yield f"{path}:{line}: {name} is for programs that call MPI themselves"


def mutexes_are_annotated(tree):
    """clang's thread-safety analysis knows the mutexes of base/mutex.h alone. A public header includes no private one."""
    for path, text in tree.files.items():
        if path.parts[0] != "include" and path != pathlib.Path("src/base/mutex.h"):
            for number, line in enumerate(without_comments(text).splitlines(), 1):
                if match := re.search(r"\bstd::(?:mutex|condition_variable)\b", line):
                    yield f"{path}:{number}: {match[0]} is unknown to clang's thread-safety analysis; take base/mutex.h's"


def tests_of(tree):
    return {path.relative_to(tree.root): path.read_text() for folder in ("tests", *(f"{beside}/tests" for beside in BESIDE.values()))
            for path in (tree.root / folder).rglob("*") if path.suffix in (".h", ".cpp")}


def files_stay_short(tree):
    for path, text in tree.files.items():
        lines = len(text.splitlines())
        if lines > FILE_LINES:
            yield f"{path}: {lines} lines; the limit is {FILE_LINES}"
    for path, text in tests_of(tree).items():
        if len(text.splitlines()) > TEST_LINES:
            yield f"{path}: {len(text.splitlines())} lines; the limit is {TEST_LINES}"
    for path in [*(tree.root / "src").glob("*/CMakeLists.txt"), *(path for folder in BESIDE.values() for path in tree.root.glob(f"{folder}/CMakeLists.txt"))]:
        if len(path.read_text().splitlines()) > ROOM_LIST_LINES:
            yield f"{path.relative_to(tree.root)}: a room's list has at most {ROOM_LIST_LINES} lines"


def functions_stay_short(tree):
    longest = sorted(((length, path, line, name) for path, text in {**tree.files, **tests_of(tree)}.items() for line, length, name in functions(text)), reverse=True)
    for length, path, line, name in longest[:5]:
        print(f"long function: {length:3} lines {path}:{line} {name}")
    for length, path, line, name in longest:
        if length > FUNCTION_LINES:
            yield f"{path}:{line}: {name} has {length} lines; the limit is {FUNCTION_LINES}"


def apis_add_no_logic(tree):
    """An API is headers alone, and each of its functions hands on in one statement, with no decision in it."""
    for path in tree.files:
        if path.parts[0] == "src" and len(path.parts) == 2:
            yield f"{path}: an API has no source"
        if tree.room_of(path) != "api" or path.parts[0] != "include":
            continue
        text = without_comments(tree.files[path])
        for line, body in bodies(text):
            if body.count(";") > 1 or re.search(r"\b(?:if|for|while|do|switch|try|throw|goto)\b|\?|&&|\|\||\[[^\]]*\]\s*[({]", body):
                yield f"{path}:{line}: more than one statement handed on; logic belongs to the runtime"
        for match in re.finditer(r"^ {2}(?!using|friend|static_assert|return)[\w:<>, *&]+\s\w+_\s*(?:=[^;()]*|\{[^}]*\})?;", text, re.MULTILINE):
            yield f"{path}:{text.count(chr(10), 0, match.start()) + 1}: an API keeps no state of its own"


def the_house_gets_no_worse(tree):
    """What tools/house.py counts. Who makes one of these smaller writes the new number here."""
    found, _ = house.figures({path: text for path, text in tree.files.items() if path.parts[0] != "apps" and tree.room_of(path) not in BESIDE},
                             house.files(tree.root, house.USERS))
    for name, limit in FIGURES.items():
        if found[name] > limit:
            yield f"{name}: {found[name]}; the limit is {limit}, and `python3 tools/house.py` says what is counted"


def names_say_something(tree):
    for path, text in tree.files.items():
        for part in path.parts:
            if part.endswith("_stub"):  # below it lie headers under the names of another library
                break
            if set(re.split(r"[_.]", part)) & FORBIDDEN_WORDS:
                yield f"{path}: '{part}' is not a name for a file"
        for number, name, words in names_in(text):
            if words & FORBIDDEN_WORDS:
                yield f"{path}:{number}: the name {name} says nothing"


def names_are_the_fields(tree):
    """No name has a word of house_words.txt, which says what the field calls it."""
    instead = dict(line.split(maxsplit=1) for line in HOUSE_WORDS.splitlines() if line and not line.startswith("#"))
    for path, text in tree.files.items():
        for number, name, found in names_in(text):
            for word in found & set(instead):
                yield f"{path}:{number}: {name}: the field says {instead[word]}, not {word}"


RULES = [found_something, every_room_has_a_row, nothing_includes_what_stands_beside, permissions_are_used, rows_point_one_way, includes_follow_the_table, private_headers_stay_inside,
         torch_free_rooms_stay_free, public_headers_are_shown,
         public_headers_stay_light, formatting_stays_out_of_torch, mpi_stays_in_its_place, mutexes_are_annotated, files_stay_short, functions_stay_short,
         the_house_gets_no_worse, apis_add_no_logic, names_say_something, names_are_the_fields]

GOOD = {
    "ROOMS.md": "| room | one sentence | may include |\n|---|---|---|\n| base | B. | – (no Torch) |\n| options | O. | base (no Torch) |\n| tree | T. | base, options |\n| api | D. | tree |\n",
    "include/muster/base/error.h": "#pragma once\nnamespace muster { class Error {}; }\n",
    "include/muster/tree/options.h": '#pragma once\n#include "muster/base/error.h"\n',
    "include/muster/tree/detail/visit.h": '#pragma once\n#include <ATen/core/Tensor.h>\n#include "muster/base/error.h"\nint visit(int x);\n',
    "include/muster/face.h": '#pragma once\n#include "muster/tree/detail/visit.h"\n',
    "src/tree/visit.cpp": '#include "muster/tree/detail/visit.h"\n#include "tree/inner.h"\nint visit(int x) {\n  return std::common_type<int>(x);  // helper\n}\n',
    "src/tree/a.cpp": '#include "base/open.h"\n#include "muster/tree/walk_options.h"\n#include "options/read.h"\n',
    "include/muster/tree/walk_options.h": '#pragma once\n#include "muster/tree/options.h"\n',
    "src/options/read.h": FOR_OTHERS + '#include "muster/tree/options.h"\n',
    "src/base/open.h": FOR_OTHERS,
    "tests/tree/visit_test.cpp": '#include "base/open.h"\n#include "muster/tree/detail/visit.h"\n#include "options/read.h"\n#include "tree/inner.h"\n',
    "src/tree/inner.h": '#pragma once\n#include <torch/torch.h>\n',
    "docs/howto/page.cpp": "#include <muster/base/error.h>\n#include <muster/face.h>\n#include <muster/tree/walk_options.h>\n",
    "apps/muster/main.cpp": '#include "muster/base/error.h"\n#include "muster/tree/options.h"\nint main() { return 0; }\n',
}

API = '''#pragma once
#include "muster/tree/detail/visit.h"
class Face : private Inner {
 public:
  using Inner::go;
  /// Goes; then comes back.
  template <class T>
  auto start(T&& x) { return go(); }
};
'''
GOOD["include/muster/face.h"] = API

BROKEN = {  # rule: changes to the good tree that it must refuse; None takes a file away
    found_something: [{"ROOMS.md": "nothing\n"}, {name: None for name in GOOD if name != "ROOMS.md"},
                      {"ROOMS.md": None}, {name: "int x;\n" for name in GOOD if name != "ROOMS.md"}],
    every_room_has_a_row: [{"src/attic/a.cpp": "int x;\n"}, {"include/muster/attic/a.h": "#pragma once\n"},
                           {"ROOMS.md": GOOD["ROOMS.md"].replace("| tree |\n", "| tree, attic |\n")}],
    nothing_includes_what_stands_beside: [{"ROOMS.md": GOOD["ROOMS.md"].replace("| tree |\n", "| tree, sim |\n")}, {"include/muster/sim/a.h": "#pragma once\n"},
                                          {"src/sim/a.cpp": "int x;\n"}],
    permissions_are_used: [{"ROOMS.md": GOOD["ROOMS.md"].replace("| tree |\n", "| tree, base |\n")}],
    rows_point_one_way: [{"ROOMS.md": GOOD["ROOMS.md"].replace("– (no Torch)", "api (no Torch)")},
                         {"ROOMS.md": GOOD["ROOMS.md"].replace("| base (no Torch)", "| base, tree (no Torch)")}],
    includes_follow_the_table: [{"src/base/a.cpp": '#include "muster/tree/detail/visit.h"\n'}, {"src/base/a.cpp": '#include "tree/inner.h"\n'},
                                {"src/tree/a.cpp": '#include "muster/face.h"\n'}, {"src/tree/a.cpp": "#  include <muster/face.h>\n"},
                                {"include/muster/face.h": '#pragma once\n#include "muster/base/error.h"\n'},
                                {"apps/muster/main.cpp": '#include "muster/tree/detail/visit.h"\n'}, {"src/tree/a.cpp": '#include "muster/sim/sim.h"\n'},
                                {"simdevice/src/sim/a.cpp": '#include "muster/tree/detail/visit.h"\n'},
                                {"include/muster/tree/options.h": '#pragma once\n#include "muster/tree/detail/visit.h"\n'},
                                {"include/muster/tree/walk_options.h": '#pragma once\n#include "muster/face.h"\n'},
                                {"src/options/a.cpp": '#include "tree/inner.h"\n'}, {"src/base/a.cpp": '#include "muster/tree/options.h"\n'}],
    private_headers_stay_inside: [{"src/tree/a.cpp": '#include "base/inner.h"\n'}, {"apps/muster/main.cpp": '#include "base/inner.h"\n'},
                                  {"src/tree/a.cpp": '#include "base/inner.h"\n', "src/base/inner.h": "#pragma once\n"}, {"src/base/inner.h": FOR_OTHERS},
                                  {"include/muster/tree/a.h": '#pragma once\n#include "base/inner.h"\n', "src/base/inner.h": FOR_OTHERS}],
    torch_free_rooms_stay_free: [{"src/base/a.cpp": "#include <c10/core/Device.h>\n"},
                                 {"include/muster/tree/options.h": "#pragma once\n#include <ATen/core/Tensor.h>\n"},
                                 {"include/muster/tree/walk_options.h": "#pragma once\n#include <ATen/core/Tensor.h>\n"}, {"apps/muster/main.cpp": "#include <torch/torch.h>\n"}],
    public_headers_are_shown: [{"include/muster/tree/walk.h": "#pragma once\n"}, {"docs/howto/page.cpp": "int main() {}\n"},
                               {"src/tree/a.cpp": "#include <muster/tree/options.h>\n"}],
    public_headers_stay_light: [{"include/muster/face.h": "#pragma once\n#include <torch/torch.h>\n"},
                                {"include/muster/base/a.h": "#pragma once\n#include <spdlog/spdlog.h>\n"},
                                {"include/muster/base/a.h": "#pragma once\n#include <ranges>\n"},
                                {"include/muster/base/a.h": "int x;\n"}],
    formatting_stays_out_of_torch: [{"src/tree/a.cpp": "#include <spdlog/spdlog.h>\n"}, {"src/tree/a.cpp": "#include <fmt/core.h>\n"}],
    mpi_stays_in_its_place: [{"src/tree/a.cpp": "#include <mpi.h>\n"}, {"src/tree/a.cpp": '#include "muster/comm/mpi.h"\n'},
                             {"include/muster/tree/mpi.h": "#pragma once\n#include <mpi.h>\n"}],
    mutexes_are_annotated: [{"src/tree/a.cpp": "std::mutex m;\n"}, {"src/tree/a.cpp": "class A {\n  std::condition_variable changed_;\n};\n"}],
    files_stay_short: [{"include/muster/tree/a.h": "\n" * 801}, {"src/tree/a.cpp": "\n" * 801}, {"tests/tree/a_test.cpp": "\n" * 401},
                       {"src/tree/CMakeLists.txt": "\n" * 21}],
    functions_stay_short: [{"src/tree/a.cpp": "namespace x {\nint f(int a) {\n" + "  a += 1;\n" * 60 + "  return a;\n}\n}\n"},
                           {"src/tree/a.cpp": "struct S {\n  S() : x_{1} {\n" + "  if (x_) { f(); }\n" * 60 + "  }\n  int x_;\n};\n"},
                           {"tests/tree/a_test.cpp": "TEST(A, Grows) {\n" + "  a += 1;\n" * 60 + "}\n"}],
    apis_add_no_logic: [{"include/muster/face.h": API.replace("return go();", "go(); return go();")},
                         {"include/muster/face.h": API.replace("return go();", "return ready() ? go() : 0;")},
                         {"include/muster/face.h": API.replace("return go();", "if (ready()) go();")},
                         {"include/muster/face.h": API.replace("};", "  int count_ = 0;\n};")},
                         {"src/face.cpp": "int x;\n"}],
    the_house_gets_no_worse: [{f"include/muster/tree/h{i}.h": "#pragma once\n" for i in range(FIGURES["installed headers"])},
                              {"include/muster/tree/detail/a.h": "#pragma once\nnamespace muster {\n" + "".join(f"class A{i} {{\n}};\n" for i in range(5)) + "}\n"},
                              {f"src/tree/{name}.cpp": "".join(f"void C{i}::{name}() {{}}\n" for i in range(5)) for name in "ab"},
                              {"src/tree/one.h": "#pragma once\n", "src/tree/b.cpp": '#include "tree/one.h"\n'}],
    names_say_something: [{"src/tree/utils.cpp": "int x;\n"}, {"src/tree/a.cpp": "class RankManager {};\n"},
                          {"src/tree/a.cpp": "int common_part(int);\n"}],
    names_are_the_fields: [{"src/tree/a.cpp": "int told_by(int rank);\n"}, {"src/tree/a.cpp": "class StrategyWish {};\n"},
                           {"src/tree/a.cpp": "constexpr int kMeetAt = 1;\n"}],
}


def problems(rule, root):
    return list(rule(Tree(root)))


def tree_with(folder, changes):
    for name, text in {**GOOD, **changes}.items():
        if text is not None:
            path = pathlib.Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return folder


def main(root):
    passed, failed = 0, []
    for rule in RULES:
        for changes in [{}] + BROKEN[rule]:
            with tempfile.TemporaryDirectory() as folder, open(pathlib.Path(folder, "log"), "w") as log:
                out, sys.stdout = sys.stdout, log
                found = problems(rule, tree_with(folder, changes))
                sys.stdout = out
            if bool(found) == bool(changes):
                passed += 1
            else:
                failed.append(f"{rule.__name__} on the tree changed by {list(changes)[:1]}: {found or 'found nothing'}")
    for rule in RULES:
        found = problems(rule, root)
        passed += not found
        failed += [f"{rule.__name__}: {problem}" for problem in found]
    print("\n".join(f"FAILED {problem}" for problem in failed))
    print(f"{passed} passed, {len(failed)} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[2]))
