#!/usr/bin/env python3
"""benchmarks/run.py on made-up contenders: interleaving, ratios, verification, and the protocol of a living process.

    driver_test.py ROOT
"""
import collections
import contextlib
import csv
import io
import os
import pathlib
import sys
import tempfile
import time
import unittest
from unittest import mock

ROOT = pathlib.Path(sys.argv.pop(1) if len(sys.argv) > 1 else pathlib.Path(__file__).parents[2])
sys.path[:0] = [str(ROOT / "benchmarks")]
import contenders  # noqa: E402
import figures  # noqa: E402
import gpu_table  # noqa: E402
import run  # noqa: E402
import table  # noqa: E402

CONTENDER = f"""
import sys
sys.path[:0] = [{str(ROOT / "benchmarks" / "peers")!r}]
from protocol import serve
import os
print("a package prints this")
serve(lambda case: (float(case) + int(os.environ.get("RANK", 0)), 7.0))
"""
# Starts two ranks, keeps their standard streams to itself, and ends as they do: as a launcher does.
LAUNCHER = """
import os, subprocess, sys
ranks = [subprocess.Popen([sys.executable, *sys.argv[1:]], env={**os.environ, "RANK": str(rank)}, stdin=subprocess.DEVNULL) for rank in range(2)]
sys.exit(max(rank.wait() for rank in ranks))
"""
PLAIN = {"package": "os"}   # a made-up contender in Python needs no package


NOWHERE = pathlib.Path("/nowhere")
ALL_CASES = table.cases(NOWHERE) + gpu_table.cases(NOWHERE, "cuda") + gpu_table.cases(NOWHERE, "cpu")


class Scripted:
    def __init__(self, name, log, values, checks=None):
        self.name, self.log, self.values, self.checks = name, log, values, checks or [1.0] * len(values)

    def measure(self, case):
        turn = sum(entry == self.name for entry in self.log)
        self.log.append(self.name)
        if self.values[turn] is None:
            raise RuntimeError("it fell over")
        return {"value": self.values[turn], "check": self.checks[turn], "verified": True}


def case(*names, **more):
    return table.Case("b", "c", "ms", {name: table.Contender([], **PLAIN) for name in names}, **more)


def rows(of, log, given, rounds):
    """`given`: what each contender measures, by name, or by setting and name."""
    keyed = {key if isinstance(key, tuple) else ("plain", key): values for key, values in given.items()}
    return run.Rounds(of, {key: Scripted(key[1] if key[0] == "plain" else key, log, *values) for key, values in keyed.items()}).go(rounds).rows()


@contextlib.contextmanager
def contender_file(text=CONTENDER):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "contender.py")
        path.write_text(text)
        yield [sys.executable, "-u", str(path)], pathlib.Path(folder)


class Driver(unittest.TestCase):
    def test_takes_the_median_of_ratios_by_round(self):
        # The first value of each is the warm-up's and does not count.
        row, = rows(case("ours", "peer"), [], {"ours": ([9, 1, 2, 4],), "peer": ([9, 3, 4, 4],)}, 3)
        self.assertEqual((row["ours"], row["peer"], row["peer_value"], row["ratio"], row["verified"]), ("2", "peer", "4", "2.000", "yes"))
        self.assertEqual((row["ratio_p10"], row["ratio_p90"], row["rounds"]), ("1.200", "2.800", "3"))

    def test_turns_the_ratio_where_more_is_better(self):
        row, = rows(case("ours", "peer", lower_is_better=False), [], {"ours": ([9, 6],), "peer": ([9, 3],)}, 1)
        self.assertEqual(row["ratio"], "2.000")

    def test_counts_may_be_nothing(self):
        for own, theirs, expected in ((0, 0, "1.000"), (0, 2, "inf"), (2, 0, "0.000")):
            row, = rows(case("ours", "peer"), [], {"ours": ([9, own],), "peer": ([9, theirs],)}, 1)
            self.assertEqual(row["ratio"], expected)
            figures.section("P", [row | {"software": ""}])

    def test_interleaves_and_turns_the_order(self):
        log = []
        rows(case("ours", "one", "two"), log, {name: ([1] * 4,) for name in ("ours", "one", "two")}, 3)
        self.assertEqual(log[3:], ["ours", "one", "two", "one", "two", "ours", "two", "ours", "one"])

    def test_settings_are_interleaved_and_each_has_its_row(self):
        log = []
        given = {("as found", "ours"): ([9, 1, 1],), ("as found", "peer"): ([9, 2, 2],), ("equal", "ours"): ([9, 1, 1],), ("equal", "peer"): ([9, 1, 1],)}
        found, equal = rows(case("ours", "peer", settings=table.BOTH, floors={"peer": 1.5}), log, given, 2)
        self.assertEqual([(row["setting"], row["ratio"], row["floor"]) for row in (found, equal)],
                         [("as found", "2.000", "1.5"), ("equal", "1.000", "1.5")])
        self.assertEqual(log[4:], [*given, *list(given)[1:], list(given)[0]])

    def test_a_result_that_differs_in_any_round_voids_the_row(self):
        for turn in range(4):
            checks = [1.0] * 4
            checks[turn] = 1.01
            row, = rows(case("ours", "peer"), [], {"ours": ([1] * 4,), "peer": ([1] * 4, checks)}, 3)
            self.assertEqual(row["verified"], "no")

    def test_counts_the_best_variant(self):
        class Contender:
            def measure(self, case):
                return {"value": {"slow": 2.0, "fast": 1.0}[case], "check": 1.0, "verified": True}
        made_up = table.Case("b", "c", "ms", {"ours": table.Contender([], "slow"), "peer": table.Contender([], variants=("slow", "fast"))})
        with contextlib.redirect_stderr(io.StringIO()) as told:
            row, = run.Rounds(made_up, {("plain", "ours"): Contender(), ("plain", "peer"): Contender()}).go(3).rows()
        self.assertEqual((row["peer_value"], row["ratio"]), ("1", "0.500"))
        self.assertIn("the best is fast", told.getvalue())

    def test_contenders_that_go_on_training_stay_in_step(self):
        class Contender:
            def __init__(self):
                self.turns = collections.Counter()

            def measure(self, variant):
                self.turns[variant] += 1
                return {"value": 1.0, "check": float(self.turns[variant]), "verified": True}
        made_up = table.Case("b", "c", "ms", {"ours": table.Contender([], "one"), "peer": table.Contender([], variants=("one", "other"))})
        with contextlib.redirect_stderr(io.StringIO()):
            row, = run.Rounds(made_up, {("plain", "ours"): Contender(), ("plain", "peer"): Contender()}).go(3).rows()
        self.assertEqual(row["verified"], "yes")

    def test_a_peer_that_fails_leaves_the_others_their_rounds(self):
        for place in range(3):
            failing = [1.0] * 3
            failing[place] = None
            bad, good = rows(case("ours", "bad", "good"), [], {"ours": ([1] * 3,), "bad": (failing,), "good": ([2] * 3,)}, 2)
            self.assertEqual((bad["verified"], bad["note"], bad["ratio"]), ("not measured", "bad: it fell over", ""))
            self.assertEqual((good["verified"], good["ratio"], good["rounds"]), ("yes", "2.000", "2"))

    def repeated(self, ours, peer, repeats):
        with contextlib.redirect_stderr(io.StringIO()) as told:
            of = case("ours", "peer", repeats=repeats, whole=True)
            running = {("plain", name): Scripted(name, [], values) for name, values in (("ours", ours), ("peer", peer))}
            done = run.Rounds(of, running).go(2)
        return *done.rows(), done.failure_of_ours(), told.getvalue()

    def test_a_failed_round_of_a_peer_is_repeated_and_counted(self):
        row, reason, told = self.repeated([9, 1, 1], [None, 9, 2, None, None, 2], 2)
        self.assertEqual((row["verified"], row["ratio"], row["rounds"], row["repeats"], reason), ("yes", "2.000", "2", "3", ""))
        self.assertEqual(told.count("# b c, plain: a round of peer failed and is repeated: it fell over"), 3)
        self.assertIn("| 2, 3 repeated |", figures.section("P", [row | {"software": ""}]))

    def test_a_reason_is_the_last_error_that_was_printed(self):
        for text, reason in (("a\nRuntimeError: refused\nChildFailedError: \n  exit 1\n====", "RuntimeError: refused"), ("a\nb\n==", "b"), ("", "failed")):
            self.assertEqual(run.last_line(text), reason)

    def test_a_peer_is_left_out_after_so_many_repeats_of_a_round(self):
        row, reason, _ = self.repeated([9, 1, 1], [9, None, None, None, 2], 2)
        self.assertEqual((row["verified"], row["note"], row["repeats"], reason), ("not measured", "peer: it fell over", "2", ""))

    def test_a_failed_round_of_ours_is_never_repeated(self):
        row, reason, told = self.repeated([9, None, 1], [9, 2, 2], 2)
        self.assertEqual((row["verified"], row["note"], row["repeats"], reason), ("not measured", "ours: it fell over", "0", "ours failed: it fell over"))
        self.assertEqual(told, "")


class Contenders(unittest.TestCase):
    def test_asks_every_rank_of_a_living_contender(self):
        with contender_file() as (command, _):
            ranks = contenders.Ranks(command, 2, 1)
            try:
                self.assertEqual(ranks.measure("3"), {"value": 4.0, "check": 7.0, "verified": True})
                self.assertEqual(ranks.measure("5")["value"], 6.0)
            finally:
                ranks.close()

    def test_one_that_starts_its_ranks_itself_is_one_process_on_all_cores(self):
        with contender_file() as (command, _):
            ranks = contenders.start(table.Contender(command, starts_ranks=True), table.Case("b", "c", "us", {}, ranks=2), "equal", "muster")
            try:
                self.assertEqual(len(ranks.processes), 1)
                self.assertEqual(ranks.measure("3")["value"], 3.0)
                self.assertEqual(os.sched_getaffinity(ranks.processes[0].pid), set(sorted(os.sched_getaffinity(0))[:2]))
            finally:
                ranks.close()

    def test_has_the_variables_of_its_contender(self):
        with contender_file(CONTENDER.replace('int(os.environ.get("RANK", 0))', 'int(os.environ["GIVEN"])')) as (command, _):
            ranks = contenders.start(table.Contender(command, variables={"GIVEN": "5"}), table.Case("b", "c", "us", {}), "plain", "muster")
            try:
                self.assertEqual(ranks.measure("3")["value"], 8.0)
            finally:
                ranks.close()

    def test_asks_every_rank_under_a_launcher(self):
        with contender_file() as (command, folder):
            launcher = folder / "launcher.py"
            launcher.write_text(LAUNCHER)
            launched = contenders.Launched([sys.executable, str(launcher), command[-1]], 2)
            try:
                self.assertEqual([launched.measure(word)["value"] for word in ("3", "5")], [4.0, 6.0])
            finally:
                launched.close()
            self.assertEqual(launched.process.returncode, 0)   # it ended by itself when nobody asked any more
            self.assertFalse(os.path.exists(launched.folder.name))

    def test_says_how_a_launched_contender_ended(self):
        launched = contenders.Launched([sys.executable, "-c", "print('no such model'); raise SystemExit(3)"], 1)
        try:
            with self.assertRaisesRegex(RuntimeError, "exit code 3\nno such model"):
                launched.measure("3")
        finally:
            launched.close()

    def test_one_that_never_answers_is_given_up(self):
        command = [sys.executable, "-c", "import time; time.sleep(600)"]
        for started in (contenders.Ranks(command, 2, 1), contenders.Launched(command, 2)):
            try:
                with mock.patch.object(contenders, "PATIENCE", 0.5), self.assertRaises(RuntimeError):
                    started.measure("3")
            finally:
                for process in getattr(started, "processes", None) or [started.process]:
                    process.kill()
                started.close()

    def test_a_setting_is_the_same_for_all_and_as_found_has_nothing_set(self):
        with mock.patch.dict(os.environ, {"MALLOC_MMAP_MAX_": "7", "OMP_NUM_THREADS": "5", "MUSTER_KEEP_MEMORY": "on"}):
            found, equal, plain = contenders.untouched(), contenders.environment(1, "equal"), contenders.environment(1, "plain")
        self.assertFalse({"OMP_NUM_THREADS", "MUSTER_KEEP_MEMORY", *contenders.TUNED} & set(found))
        self.assertEqual({name: equal.get(name) for name in contenders.TUNED}, contenders.TUNED)
        self.assertEqual((equal["OMP_NUM_THREADS"], equal.get("MUSTER_KEEP_MEMORY")), ("1", None))
        self.assertFalse(set(contenders.TUNED) & set(plain))
        self.assertEqual(plain["MUSTER_KEEP_MEMORY"], "off")

    def test_one_that_is_measured_from_outside_counts_from_its_begin_or_from_a_death(self):
        whole = lambda text: contenders.Whole([sys.executable, "-c", text]).measure("")["value"]
        self.assertEqual(whole("print('[1] died 100.5\\n[0] reached 102.0 7.0')"), 1.5)
        given = contenders.start(table.Contender([sys.executable, "-c", "import os; print('reached 1e9', os.environ['GIVEN'])"], variables={"GIVEN": "5"}),
                                 case("ours", whole=True), "as found", "muster")
        self.assertEqual(given.measure("")["check"], 5)
        begin = time.monotonic()
        self.assertAlmostEqual(whole(f"print('reached {begin + 1000} 7.0')"), 1000, delta=60)

    def test_each_has_its_own_launcher(self):
        ours, peer = table.Contender(["/b/x_bench", "m"]), table.Contender([sys.executable, "-u", "p.py", "m"])
        self.assertEqual(contenders.launcher_of(ours, 2, "muster"), ["muster", "run", "--devices", "2", "/b/x_bench", "m"])
        self.assertEqual(contenders.launcher_of(peer, 2, "muster"),
                         [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "p.py", "m"])


class Whole(unittest.TestCase):
    def run_main(self, made_up, folder, *words):
        with mock.patch.object(table, "cases", lambda build: made_up), contextlib.redirect_stdout(io.StringIO()) as printed, \
                contextlib.redirect_stderr(io.StringIO()) as told, mock.patch.object(sys, "argv", ["run.py", "--build", str(folder), *words]):
            try:
                run.main()
            except SystemExit as end:
                return printed.getvalue(), told.getvalue(), end.code
        return printed.getvalue(), told.getvalue(), 0

    def test_writes_rows_rounds_and_the_table(self):
        with contender_file() as (command, folder):
            made_up = [table.Case("b", "c", "ms", {"ours": table.Contender(command, "1", **PLAIN), "peer": table.Contender(command, "2", **PLAIN)}, rounds=2)]
            printed, told, code = self.run_main(made_up, folder)
            line, = figures.read(folder / "bench" / "results.csv")
            with open(folder / "bench" / "rounds.csv") as file:
                each = list(csv.DictReader(file))
            self.assertEqual(printed, (folder / "bench" / "table.md").read_text())
        self.assertEqual((line["ours"], line["peer_value"], line["ratio"], line["verified"], line["processor"]), ("1", "2", "2.000", "yes", figures.processor()))
        self.assertEqual([(row["contender"], row["value"]) for row in each], [("ours", "1")] * 2 + [("peer", "2")] * 2)
        self.assertIn("| `b` | c | peer |  | 2.00 (2.00 to 2.00); 1, 2 ms | 2 |", printed)
        self.assertIn(contenders.tuned_text(), told)
        self.assertEqual(code, 0)

    def test_what_is_missing_or_dies_is_named_and_counted(self):
        with contender_file() as (command, folder):
            dead = table.Contender([sys.executable, "-c", "raise SystemExit(3)"], **PLAIN)
            absent = table.Contender(command, "2", package="no_such_package")
            unbuilt = table.Contender(["/nowhere/peer_in_c"], needs=("/nowhere/peer_in_c",))
            made_up = [table.Case("b", "c", "ms", {"ours": table.Contender(command, "1", **PLAIN), "dead": dead, "absent": absent, "unbuilt": unbuilt,
                                                   "well": table.Contender(command, "2", **PLAIN)}, rounds=1)]
            printed, told, code = self.run_main(made_up, folder)
        self.assertIn("1 pairs measured, 3 not measured, 0 whose results differ", told)
        self.assertIn("unbuilt: peer_in_c was not built: what compiles it is missing", told)
        self.assertIn("# not measured: b c, plain, absent absent: no_such_package is not installed", told)
        self.assertIn("not measured: absent: no_such_package is not installed", printed)
        self.assertEqual(code, 0)

    def test_a_run_that_measures_nothing_fails(self):
        with contender_file() as (command, folder):
            dead = table.Contender([sys.executable, "-c", "raise SystemExit(3)"], **PLAIN)
            made_up = table.Case("b", "c", "ms", {"ours": table.Contender(command, "1", **PLAIN), "peer": dead}, rounds=1)
            self.assertEqual(self.run_main([made_up], folder)[2], "nothing was measured")

    def test_a_failure_of_ours_ends_the_run_after_its_case(self):
        with contender_file() as (command, folder):
            dead, well = table.Contender([sys.executable, "-c", "raise SystemExit(3)"], **PLAIN), table.Contender(command, "1", **PLAIN)
            cases = [table.Case("b", name, "ms", {"ours": ours, "peer": well}, rounds=1) for name, ours in (("good", well), ("bad", dead), ("never", well))]
            printed, _, code = self.run_main(cases, folder)
            self.assertEqual([row["case"] for row in figures.read(folder / "bench" / "results.csv")], ["good", "bad"])
        self.assertIn("| `b` | good | peer |", printed)
        self.assertRegex(code, "^the run ends with b bad: ours failed: ")

    def test_the_word_table_chooses_what_the_page_shows(self):
        cases = table.cases(pathlib.Path("/nowhere"))
        shown = run.chosen(cases, ["table"])
        self.assertEqual(shown, [entry for entry in cases if entry.shown])
        self.assertEqual([entry.name for entry in run.chosen(cases, ["ddp/gpt-9m"])], ["gpt-9m"])

    def test_every_peer_script_and_program_exists(self):
        for entry in ALL_CASES:
            for contender in entry.contenders.values():
                for word in contender.command:
                    if word.startswith("/nowhere/benchmarks/"):
                        name = pathlib.Path(word).name
                        self.assertTrue((ROOT / "benchmarks" / f"{name}.cpp").exists() or (ROOT / "benchmarks" / "peers" / f"{name}.c").exists(), word)
                    elif word.startswith(str(ROOT)) and word.endswith(".py"):
                        self.assertTrue(pathlib.Path(word).exists(), word)

    def test_floors_and_goals_are_of_contenders(self):
        for entry in ALL_CASES:
            self.assertLessEqual({*entry.floors, *entry.goals}, set(entry.contenders), entry.name)


class Figures(unittest.TestCase):
    ROW = dict.fromkeys(figures.COLUMNS, "") | {
        "benchmark": "b", "case": "c", "setting": "as found", "ours": "845", "peer": "p", "peer_value": "1032", "ratio": "1.164", "ratio_p10": "1.0",
        "ratio_p90": "1.23", "unit": "ms", "rounds": "9", "floor": "1.0", "verified": "yes", "processor": "A: AVX2", "software": "torch 2"}

    def test_names_the_processor(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "cpuinfo")
            path.write_text("processor\t: 0\nmodel name\t: Some Xeon\ncpu MHz\t\t: 2499.998\nflags\t\t: hypervisor avx2 avx512f amx_tile\n\n"
                            "processor\t: 1\nmodel name\t: Another\nflags\t\t:\n")
            self.assertEqual(figures.processor(path, 2), "Some Xeon, 2 cores at 2.5 GHz: AVX2, AVX-512, AMX; no AVX-512 bf16, AMX bf16")

    def test_both_settings_share_a_line_and_the_floor_stands_at_the_equal_one(self):
        text = figures.text([self.ROW, self.ROW | {"setting": "equal", "ratio": "0.99"}])
        self.assertIn("| `b` | c | p | 1.16 (1.00 to 1.23); 845, 1032 ms | 0.99 (1.00 to 1.23); 845, 1032 ms | 9 | 1.0, missed |  |", text)

    def test_each_processor_has_its_section(self):
        text = figures.text([self.ROW, self.ROW | {"processor": "B: AVX-512"}])
        self.assertEqual([line for line in text.splitlines() if line.startswith("###")], ["### A: AVX2", "### B: AVX-512"])

    def test_rows_measured_again_replace_their_pairs(self):
        again, other = self.ROW | {"ratio": "2.0"}, self.ROW | {"case": "d"}
        self.assertEqual(figures.merged([self.ROW, other], [again, self.ROW | {"setting": "equal"}]), [again, other, self.ROW | {"setting": "equal"}])

    def test_the_page_shows_the_figures_that_are_kept(self):
        page = (ROOT / "benchmarks" / "README.md").read_text()
        self.assertIn(f"{figures.BEGIN}\n{figures.table_of(figures.kept_files())}\n{figures.END}", page)


if __name__ == "__main__":
    result = unittest.main(exit=False, verbosity=0).result
    bad = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - bad} passed, {bad} failed, 0 skipped")
    sys.exit(1 if bad else 0)
