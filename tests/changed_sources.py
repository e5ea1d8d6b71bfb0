"""Which product sources the last commits changed, for tests that look at some of them: at the latest ones."""
import pathlib
import re
import subprocess
import tempfile

COMMITS = 20


def git(root, *words):
    return subprocess.run(["git", "-C", root, *words], capture_output=True, text=True)


def why_unknown(root):
    """Why the changed sources cannot be known; None if they can."""
    known = git(root, "rev-list", "--count", f"--max-count={COMMITS + 1}", "HEAD")
    if known.returncode:
        return "this is no git checkout, so nothing says what was changed"
    if git(root, "rev-parse", "--is-shallow-repository").stdout.strip() == "true" and int(known.stdout) <= COMMITS:
        return f"a shallow clone with {known.stdout.strip()} commits does not show what the last {COMMITS} changed"
    return None


def changed(root, most, pattern=r"(simdevice/)?(src|apps)/.*\.cpp$"):
    """At most so many files that the last commits changed and that are still there, the latest first."""
    names = git(root, "log", f"--max-count={COMMITS}", "--no-renames", "--name-only", "--format=").stdout.splitlines()
    return [name for name in dict.fromkeys(names) if re.match(pattern, name) and pathlib.Path(root, name).exists()][:most]


def problems_of_the_choice(most):
    """What is wrong with the choice, on a small history."""
    with tempfile.TemporaryDirectory() as folder:
        def commit(*files):
            for name in files:
                path = pathlib.Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(path.read_text() + "\n" if path.exists() else "\n")
            git(folder, "add", "--all")
            git(folder, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--no-verify", "--message", "x")

        git(folder, "init", "--quiet")
        commit("src/old.cpp")
        for index in range(COMMITS - 4):
            commit(f"tests/{index}.cpp")
        commit("src/a.cpp", "src/gone.cpp", "docs/a.md")
        commit("apps/muster/b.cpp", "include/c.h")
        pathlib.Path(folder, "src/gone.cpp").unlink()
        commit("src/a.cpp")
        commit("tests/last.cpp")
        found = changed(folder, most)
        if found != ["src/a.cpp", "apps/muster/b.cpp"]:
            yield f"of a small history it picks {found}"
        commit(*[f"src/{index}.cpp" for index in range(most + 2)])
        if len(changed(folder, most)) != most:
            yield f"it picks {len(changed(folder, most))} sources"
        shallow = pathlib.Path(folder, "shallow")
        git(folder, "clone", "--quiet", "--depth=3", f"file://{folder}", shallow)
        if "a shallow clone with 3 commits" not in (why_unknown(shallow) or ""):
            yield f"of a shallow clone it says {why_unknown(shallow)}"
