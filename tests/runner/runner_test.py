#!/usr/bin/env python3
"""tools/run_tests.py on made-up suites: what it counts, shows and returns.

    runner_test.py ROOT
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(sys.argv.pop(1) if len(sys.argv) > 1 else pathlib.Path(__file__).parents[2])
sys.path[:0] = [str(ROOT / "tools")]
import gpu  # noqa: E402

REPORT = '''
import json, os, sys
case = lambda name, **more: {"name": name, "classname": "S", "status": "RUN", "result": "COMPLETED", **more}
cases = [case("good"), case("bad", failures=[{"failure": "x"}]), case("left_out", result="SKIPPED")]
print("[ RUN      ] S.left_out\\nno second device\\n[  SKIPPED ] S.left_out (0 ms)")
json.dump({"testsuites": [{"testsuite": cases[:int(sys.argv[1])] + cases[2:int(sys.argv[2])]}]}, open(os.environ["GTEST_OUTPUT"][5:], "w"))
'''


def write_suite(tests, folder):
    """A build folder of {name: (labels, timeout, python source, arguments)}."""
    lines = []
    for name, (labels, timeout, source, *words) in tests.items():
        path = pathlib.Path(folder, f"{name}.py")
        path.write_text(source)
        command = " ".join(f'"{word}"' for word in [sys.executable, str(path), *words])
        lines += [f'add_test({name} {command})', f'set_tests_properties({name} PROPERTIES LABELS "{labels}" TIMEOUT "{timeout}")']
    pathlib.Path(folder, "CTestTestfile.cmake").write_text("\n".join(lines) + "\n")


def run_suite(tests, *arguments, variables=None):
    """Exit code and output."""
    with tempfile.TemporaryDirectory() as folder:
        write_suite(tests, folder)
        outcome = subprocess.run([sys.executable, ROOT / "tools" / "run_tests.py", folder, *arguments], capture_output=True, text=True,
                                 env={**os.environ, **(variables or {})})
        return outcome.returncode, outcome.stdout + outcome.stderr


class Runner(unittest.TestCase):
    def closes(self, tests, code, line, *shown, arguments=(), variables=None):
        found, output = run_suite(tests, *arguments, variables=variables)
        self.assertEqual(output.splitlines()[-1], line, output)
        self.assertEqual(found, code, output)
        for text in shown:
            self.assertIn(text, output)

    def test_counts_cases_of_gtest(self):
        self.closes({"a": ("gtest", 20, REPORT, "1", "2")}, 0, "1 passed, 0 failed, 0 skipped")
        self.closes({"a": ("gtest", 20, REPORT, "1", "3")}, 0, "1 passed, 0 failed, 1 skipped", "skipped S.left_out: no second device")
        self.closes({"a": ("gtest", 20, REPORT, "2", "2")}, 1, "1 passed, 1 failed, 0 skipped", "FAILED S.bad")

    def test_a_failure_outside_of_all_cases_counts(self):
        outside = '{"name": "", "classname": "", "status": "RUN", "result": "COMPLETED", "failures": [{"failure": "x.cpp:1\\nFailed\\nleft a file"}]}'
        report = REPORT.split("json.dump")[0] + 'suite = json.dumps({"testsuite": cases[:1]}).rstrip("}")\n' + (
            'open(os.environ["GTEST_OUTPUT"][5:], "w").write("{\\"testsuites\\": [\\n" + suite + "\\n    }    {\\n\\"testsuite\\": [" + '
            f"{outside!r}" + ' + "]}]}")\nsys.exit(1)')
        self.closes({"a": ("gtest", 20, report, "1", "2")}, 1, "1 passed, 1 failed, 0 skipped", "FAILED outside of its cases: left a file")

    def test_shows_what_failed_among_many_that_passed(self):
        passing = 'good = "".join(f"[ RUN      ] S.g{i}\\n[       OK ] S.g{i} (0 ms)\\n" for i in range(300))\n'
        failing = 'print(good + "[ RUN      ] S.bad\\nwhy it failed\\n[  FAILED  ] S.bad (0 ms)\\n" + good)\n'
        head, tail = REPORT.split("print(")[0], "json.dump" + REPORT.split("json.dump")[1]
        self.closes({"a": ("gtest", 20, head + passing + failing + tail, "2", "2")}, 1, "1 passed, 1 failed, 0 skipped", "why it failed")

    def test_tests_see_no_accelerator(self):
        self.closes({"a": ("script", 20, "import os; print('1 passed, 0 failed, 0 skipped' if os.environ['CUDA_VISIBLE_DEVICES'] == '-1' else 'it sees one')")},
                    0, "1 passed, 0 failed, 0 skipped")

    def test_a_program_without_cases_fails(self):
        self.closes({"a": ("gtest", 20, REPORT, "0", "2")}, 1, "0 passed, 1 failed, 0 skipped", "no test case")

    def test_a_program_that_dies_fails_in_the_case_it_ran(self):
        dies = "import os\nprint('[ RUN      ] S.one\\n[       OK ] S.one (0 ms)\\n[ RUN      ] S.two', flush=True)\nos.abort()"
        self.closes({"a": ("gtest", 20, dies)}, 1, "1 passed, 1 failed, 0 skipped", "SIGABRT in S.two")

    def test_a_program_that_fails_after_its_last_case_fails(self):
        self.closes({"a": ("gtest", 20, REPORT + "sys.exit(1)", "1", "2")}, 1, "1 passed, 1 failed, 0 skipped", "after its last case")

    def test_reads_the_closing_line_of_a_script(self):
        self.closes({"a": ("script", 20, "print('3 passed, 0 failed, 2 skipped')")}, 0, "3 passed, 0 failed, 2 skipped")
        self.closes({"a": ("script", 20, "print('FAILED x: y\\n3 passed, 1 failed, 0 skipped'); raise SystemExit(1)")}, 1,
                    "3 passed, 1 failed, 0 skipped", "FAILED x: y")

    def test_a_script_without_closing_line_or_cases_fails(self):
        self.closes({"a": ("script", 20, "print('fine')")}, 1, "0 passed, 1 failed, 0 skipped", "without a closing line")
        self.closes({"a": ("script", 20, "print('0 passed, 0 failed, 0 skipped')")}, 1, "0 passed, 1 failed, 0 skipped", "looked at nothing")
        self.closes({"a": ("script", 20, "print('2 passed, 0 failed, 0 skipped'); raise SystemExit(3)")}, 1, "2 passed, 1 failed, 0 skipped", "exit code 3")

    def test_77_is_a_skip_with_its_reason(self):
        self.closes({"a": ("script", 20, "print('no mpirun here'); raise SystemExit(77)"), "b": ("", 20, "")}, 0,
                    "1 passed, 0 failed, 1 skipped", "skipped a: no mpirun here")

    def test_ends_what_takes_too_long(self):
        self.closes({"a": ("script", 1, "import signal\nsignal.pause()")}, 1, "0 passed, 1 failed, 0 skipped", "took longer than 1 s")

    def test_runs_what_is_named_or_labelled(self):
        suite = {"a": ("", 20, ""), "b": ("slow", 20, ""), "c": ("", 20, "raise SystemExit(1)")}
        self.closes(suite, 0, "1 passed, 0 failed, 0 skipped", arguments=["a"])
        self.closes(suite, 0, "1 passed, 0 failed, 0 skipped", arguments=["--label", "slow"])
        self.closes(suite, 1, "1 passed, 1 failed, 0 skipped", arguments=["--without", "slow"])
        self.closes(suite, 1, "run_tests: no such test: d", arguments=["d"])

    def test_runs_two_at_a_time(self):
        with tempfile.TemporaryDirectory() as folder:
            # Each waits until the other has begun, and the one of sources has a folder for temporary files of its own.
            waits = "import os, pathlib, tempfile, time\nhere = pathlib.Path({!r})\n(here / {!r}).write_text(tempfile.gettempdir())\n" + (
                "while not (here / {!r}).exists(): time.sleep(0.01)\nwhile not (here / {!r}).read_text(): time.sleep(0.01)\n") + (
                "same = (here / 'a').read_text() == (here / 'b').read_text()\nprint('0 passed, 1 failed, 0 skipped' if same else '1 passed, 0 failed, 0 skipped')")
            for label in ("script", "script;sources"):
                suite = {"a": ("script", 20, waits.format(folder, "a", "b", "b")), "b": (label, 20, waits.format(folder, "b", "a", "a"))}
                self.closes(suite, 0, "2 passed, 0 failed, 0 skipped")
                pathlib.Path(folder, "a").unlink()
                pathlib.Path(folder, "b").unlink()

    def test_tests_of_sources_run_beside_two_others_and_are_the_least_urgent(self):
        with tempfile.TemporaryDirectory() as folder:
            meets = "import os, time\nopen(os.path.join({!r}, {!r}), 'w')\nwhile len(os.listdir({!r})) < 3: time.sleep(0.01)\n" + (
                "print('1 passed, 0 failed, 0 skipped' if os.nice(0) == 19 or not {} else '0 passed, 1 failed, 0 skipped')")
            suite = {name: (label, 20, meets.format(folder, name, folder, name == "s"))
                     for name, label in (("a", "script"), ("b", "script"), ("s", "script;sources"))}
            self.closes(suite, 0, "3 passed, 0 failed, 0 skipped")

    SEES = ("import os; sees = os.environ.get('CUDA_VISIBLE_DEVICES') != '-1'\n"
            "print('2 passed, 0 failed, 1 skipped' if sees == {} else '0 passed, 1 failed, 0 skipped')")

    def on_gpu(self, line, of_cuda, *shown, code=0):
        """A suite of the CPU, beside the build of `of_cuda`, on a machine whose driver lists a GPU."""
        with tempfile.TemporaryDirectory() as other, tempfile.TemporaryDirectory() as programs:
            if of_cuda is not None:
                write_suite(of_cuda, other)
            path = pathlib.Path(programs, "nvidia-smi")
            path.write_text("#!/bin/sh\necho 'NVIDIA H100, 580.1, 81559 MiB'\n")
            path.chmod(0o755)
            variables = {"PATH": f"{programs}:{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": "0"}
            self.closes({"a": ("script", 20, self.SEES.format(False))}, code, line.format(other=other), *shown,
                        arguments=["--gpu", other], variables=variables)

    def test_tests_of_a_gpu_run_after_the_others_and_see_it(self):
        cuda = {"gpu": ("script;cuda", 20, self.SEES.format(True)), "other": ("script", 20, "raise SystemExit(1)")}
        self.on_gpu("4 passed, 0 failed, 2 skipped; GPU tests ran: gpu of {other}", cuda)
        self.on_gpu("2 passed, 1 failed, 1 skipped; GPU tests ran: gpu of {other}", {"gpu": ("script;cuda", 20, "raise SystemExit(1)")}, code=1)

    def test_a_gpu_without_a_build_for_it_is_told(self):
        for of_cuda in (None, {"a": ("script", 20, "")}):
            self.on_gpu("2 passed, 0 failed, 1 skipped", of_cuda, "\nGPU tests did not run: there is a GPU, but no build of them for CUDA (make cuda)\n")

    def test_a_machine_without_a_gpu_is_told(self):
        suite = {"a": ("script", 20, self.SEES.format(False))}
        self.closes(suite, 0, "2 passed, 0 failed, 1 skipped", "\nGPU tests did not run: CUDA_VISIBLE_DEVICES hides every GPU\n",
                    arguments=["--gpu", "/nowhere"], variables={"CUDA_VISIBLE_DEVICES": "-1"})
        # Nothing is said where tests are named.
        self.closes(suite, 0, "2 passed, 0 failed, 1 skipped", arguments=["a", "--gpu", "/nowhere"])

    def test_a_gpu_is_a_device_or_what_its_driver_lists(self):
        with mock.patch.dict(os.environ), mock.patch.object(gpu, "DEVICE", "/nowhere"), mock.patch.object(gpu, "listed", lambda: []):
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
            self.assertIn("this machine has no GPU: there is no /nowhere, and nvidia-smi lists none", gpu.why_none())
            with mock.patch.object(gpu, "listed", lambda: ["H100"]):
                self.assertEqual(gpu.why_none(), "")
            with mock.patch.object(gpu, "DEVICE", "/dev/null"):
                self.assertEqual(gpu.why_none(), "")

    def test_an_empty_suite_fails(self):
        self.closes({}, 1, "run_tests: there is nothing to run")


if __name__ == "__main__":
    result = unittest.main(exit=False, verbosity=0).result
    bad = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - bad} passed, {bad} failed, 0 skipped")
    sys.exit(1 if bad else 0)
