#!/usr/bin/env python3
"""benchmarks/run.py on made-up contenders: interleaving, ratios, verification, and the protocol of a living process.

    driver_test.py ROOT
"""
import contextlib
import csv
import io
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(sys.argv.pop(1) if len(sys.argv) > 1 else pathlib.Path(__file__).parents[2])
sys.path[:0] = [str(ROOT / "benchmarks")]
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


class Scripted:
    def __init__(self, name, log, values, checks=None):
        self.name, self.log, self.values, self.checks = name, log, values, checks or [1.0] * len(values)

    def measure(self, case):
        turn = sum(entry == self.name for entry in self.log)
        self.log.append(self.name)
        return {"value": self.values[turn], "check": self.checks[turn], "verified": True}


def case(*names, **more):
    return table.Case("b", "c", "ms", {name: table.Contender([]) for name in names}, **more)


def rows(of, log, contenders, rounds):
    return list(run.rows_of(of, {name: Scripted(name, log, *given) for name, given in contenders.items()}, rounds))


class Driver(unittest.TestCase):
    def test_takes_the_median_of_ratios_by_round(self):
        # The first value of each is the warm-up's and does not count.
        row, = rows(case("ours", "peer"), [], {"ours": ([9, 1, 2, 4],), "peer": ([9, 3, 4, 4],)}, 3)
        self.assertEqual((row["ours"], row["peer"], row["peer_value"], row["ratio"], row["verified"]), ("2", "peer", "4", "2.000", "yes"))
        self.assertEqual((row["ratio_p10"], row["ratio_p90"]), ("1.200", "2.800"))

    def test_turns_the_ratio_where_more_is_better(self):
        row, = rows(case("ours", "peer", lower_is_better=False), [], {"ours": ([9, 6],), "peer": ([9, 3],)}, 1)
        self.assertEqual(row["ratio"], "2.000")

    def test_interleaves_and_turns_the_order(self):
        log = []
        rows(case("ours", "one", "two"), log, {name: ([1] * 4,) for name in ("ours", "one", "two")}, 3)
        self.assertEqual(log[3:], ["ours", "one", "two", "one", "two", "ours", "two", "ours", "one"])

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
        with contextlib.redirect_stdout(io.StringIO()) as output:
            row, = run.rows_of(made_up, {"ours": Contender(), "peer": Contender()}, 3)
        self.assertEqual((row["peer_value"], row["ratio"]), ("1", "0.500"))
        self.assertIn("the best is fast", output.getvalue())

    def test_asks_every_rank_of_a_living_contender(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "contender.py")
            path.write_text(CONTENDER)
            ranks = run.Ranks([sys.executable, "-u", str(path)], 2, 1)
            try:
                self.assertEqual(ranks.measure("3"), {"value": 4.0, "check": 7.0, "verified": True})
                self.assertEqual(ranks.measure("5")["value"], 6.0)
            finally:
                ranks.close()

    def test_a_contender_that_dies_is_not_measured(self):
        with contextlib.redirect_stdout(io.StringIO()) as output:
            dead = table.Case("b", "c", "ms", {name: table.Contender([sys.executable, "-c", "raise SystemExit(3)"]) for name in ("ours", "peer")})
            self.assertEqual(run.run_case(dead, 1), [])
        self.assertIn("not measured", output.getvalue())

    def test_writes_the_table(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "contender.py")
            path.write_text(CONTENDER)
            command = [sys.executable, "-u", str(path)]
            made_up = [table.Case("b", "c", "ms", {"ours": table.Contender(command, "1"), "peer": table.Contender(command, "2")})]
            with mock.patch.object(table, "cases", lambda build: made_up), contextlib.redirect_stdout(io.StringIO()), \
                    mock.patch.object(sys, "argv", ["run.py", "--build", folder]):
                run.main()
            with open(pathlib.Path(folder, "bench", "results.csv")) as file:
                line, = csv.DictReader(file)
        self.assertEqual(",".join(line), "benchmark,case,ours,peer,peer_value,ratio,ratio_p10,ratio_p90,unit,verified")
        self.assertEqual((line["ours"], line["peer_value"], line["ratio"], line["verified"]), ("1", "2", "2.000", "yes"))

    def test_every_peer_script_and_program_exists(self):
        for entry in table.cases(pathlib.Path("/nowhere")):
            for contender in entry.contenders.values():
                for word in contender.command:
                    if word.startswith("/nowhere/benchmarks/"):
                        self.assertTrue((ROOT / "benchmarks" / f"{pathlib.Path(word).name}.cpp").exists(), word)
                    elif word.startswith(str(ROOT)) and word.endswith(".py"):
                        self.assertTrue(pathlib.Path(word).exists(), word)


if __name__ == "__main__":
    result = unittest.main(exit=False, verbosity=0).result
    bad = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - bad} passed, {bad} failed, 0 skipped")
    sys.exit(1 if bad else 0)
