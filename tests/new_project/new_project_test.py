#!/usr/bin/env python3
"""`muster new`: what it writes is what docs/howto/project.md shows, and it overwrites nothing. tests/install builds what it writes.

    new_project_test.py ROOT MUSTER
"""
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT, MUSTER = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve()
del sys.argv[1:]


def new(*arguments, **options):
    return subprocess.run([MUSTER, "new", *arguments], capture_output=True, text=True, timeout=60, **options)


def files_in(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


class NewProject(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def refuses(self, folder, *words):
        before = sorted(self.folder.rglob("*"))
        done = new(folder)
        self.assertEqual(done.returncode, 2, done.stdout)
        for word in words:
            self.assertIn(word, done.stderr)
        self.assertEqual(sorted(self.folder.rglob("*")), before)

    def test_writes_what_the_page_shows(self):
        page = (ROOT / "docs/howto/project.md").read_text()
        shown = {name: re.findall(rf"^## {re.escape(name)}\n+```\w+\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[0]
                 for name in ("CMakeLists.txt", "main.cpp", ".gitignore")}
        done = new(self.folder / "train")
        self.assertEqual(done.returncode, 0, done.stderr)
        written = files_in(self.folder / "train")
        self.assertIn("muster run", written.pop("README.md"))
        self.assertEqual(written, shown)

    def test_says_the_next_commands(self):
        done = new("a b/train/", cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("cmake -S 'a b/train' -B 'a b/train/build' -DCMAKE_BUILD_TYPE=Release", done.stdout)
        self.assertIn(f"-DMUSTER_SOURCE={ROOT.resolve()}\n", done.stdout)   # this command line was not installed
        self.assertIn("muster run --devices 2 'a b/train/build/train'", done.stdout)

    def test_takes_an_empty_folder(self):
        (self.folder / "empty").mkdir()
        self.assertEqual(new(self.folder / "empty").returncode, 0)
        self.assertEqual(len(files_in(self.folder / "empty")), 4)

    def test_refuses_what_is_there(self):
        (self.folder / "full").mkdir()
        (self.folder / "full/.hidden").write_text("")
        self.refuses(self.folder / "full", "MU336", "full is not empty")
        self.refuses(self.folder / "full/.hidden", "MU336", ".hidden is a file")

    def test_says_where_it_cannot_write(self):
        (self.folder / "file").write_text("")
        self.refuses(self.folder / "file/below", "MU337", "file/below/CMakeLists.txt")

    def test_refuses_names_that_are_none(self):
        for name in ("", "-dash", "--"):
            done = new("--", name, cwd=self.folder)
            self.assertEqual((done.returncode, done.stdout), (2, ""), name)
            self.assertIn("MU309", done.stderr)
        self.assertEqual(list(self.folder.iterdir()), [])
        self.assertEqual(new("./-dash", cwd=self.folder).returncode, 0)

    def test_wants_one_folder(self):
        self.assertEqual(new().returncode, 2)
        self.assertEqual(new("a", "b", cwd=self.folder).returncode, 2)
        self.assertIn("FOLDER", new("--help").stdout)


if __name__ == "__main__":
    result = unittest.main(exit=False, verbosity=0).result
    bad = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - bad} passed, {bad} failed, 0 skipped")
    sys.exit(1 if bad else 0)
