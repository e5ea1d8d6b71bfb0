"""What the trackers write is read by the package tensorboard and its HTTP API, by csv, json and PyYAML, with the values logged.

usage: tensorboard_parity.py PROGRAM
Where MUSTER_TEST_SERVICES is set, a package that is missing is a failure.
"""
import csv
import json
import math
import os
import pathlib
import subprocess
import sys
import time
import urllib.parse
import urllib.request

try:
    from tensorboard import program
    from tensorboard.backend.event_processing import event_accumulator
    from tensorboard.plugins.hparams import plugin_data_pb2
    MISSING = None
except ImportError as error:
    MISSING = str(error)

from cases import Skip, run_cases
from png import png

HYPERPARAMETERS = {"deep": True, "lr": 1e-5, "net": 'mlp: "a"\n', "width": 64, "no": "yes"}
NOTE = 'after *step*, "quoted"\nline'


def leave_out(reason):
    if os.environ.get("MUSTER_TEST_SERVICES"):
        raise RuntimeError(reason)
    raise Skip(f"{reason}; make test-services installs it")


def near(found, wanted):
    return found == wanted or math.isclose(found, wanted, rel_tol=1e-6)


class Run:
    def __init__(self, program_path, root):
        self.image, self.folder = png(), root / "parity" / "run"
        (root / "image.png").write_bytes(self.image)
        subprocess.run([program_path, str(root), str(root / "image.png")], check=True, stdout=subprocess.DEVNULL)

    @property
    def events(self):
        if MISSING:
            leave_out(MISSING)
        kinds = ("SCALARS", "IMAGES", "HISTOGRAMS", "TENSORS")
        events = event_accumulator.EventAccumulator(str(self.folder), size_guidance={getattr(event_accumulator, kind): 0 for kind in kinds})
        events.Reload()
        return events

    def test_scalars(self):
        events = self.events
        train = events.Scalars("train/loss")
        assert [event.step for event in train] == list(range(100))
        assert all(near(event.value, 1 / (event.step + 1)) for event in train)
        assert all(abs(a.wall_time - b.wall_time) < 60 for a, b in zip(train, train[1:]))
        assert [(event.step, event.value) for event in events.Scalars("odd")] == [(1 << 40, math.inf)]
        assert near(events.Scalars("val/loss")[1].value, math.cos(99))

    def test_texts(self):
        note = self.events.Tensors("note/text_summary")
        assert [event.step for event in note] == [49, 99]
        assert note[0].tensor_proto.string_val[0].decode() == NOTE

    def test_images(self):
        (image,) = self.events.Images("sample")
        assert (image.step, image.width, image.height) == (7, 3, 2)
        assert image.encoded_image_string == self.image

    def test_histograms(self):
        (event,) = self.events.Histograms("weights")
        values, found = [math.sin(i * 0.37) for i in range(1000)], event.histogram_value
        assert (found.num, len(found.bucket)) == (1000, 20) and near(found.min, min(values)) and near(found.max, max(values))
        assert math.isclose(found.sum, sum(values), abs_tol=1e-9)
        low = found.min
        for limit, count in zip(found.bucket_limit, found.bucket):
            assert abs(sum(low <= value < limit for value in values) - count) <= 1, (low, limit, count)
            low = limit

    def test_hyperparameters(self):
        events = self.events
        contents = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
        data = plugin_data_pb2.HParamsPluginData.FromString(contents)
        read = {name: getattr(value, value.WhichOneof("kind")) for name, value in data.session_start_info.hparams.items()}
        assert read == HYPERPARAMETERS, read
        contents = events.SummaryMetadata("_hparams_/session_end_info").plugin_data.content
        assert plugin_data_pb2.HParamsPluginData.FromString(contents).session_end_info.status == 1

    def test_http(self):
        if MISSING:
            leave_out(MISSING)
        board = program.TensorBoard()
        board.configure(argv=[None, "--logdir", str(self.folder.parent), "--host", "127.0.0.1", "--port", "0", "--load_fast", "false",
                              "--reload_interval", "0"])
        url = board.launch()

        def get(path, **query):
            with urllib.request.urlopen(f"{url}data/plugin/{path}?{urllib.parse.urlencode(query)}", timeout=60) as answer:
                return json.load(answer)

        for _ in range(600):  # it loads in the background
            if "train/loss" in get("scalars/tags").get("run", {}):
                break
            time.sleep(0.1)
        values = get("scalars/scalars", run="run", tag="train/seen")
        assert [(step, value) for _, step, value in values] == [(step, 16 * step) for step in range(100)], values[:5]
        assert "sample" in get("images/tags")["run"]
        assert get("histograms/histograms", run="run", tag="weights")[0][1] == 7
        assert "quoted" in get("text/text", run="run", tag="note/text_summary")[0]["text"]

    def test_csv_file(self):
        with open(self.folder / "metrics.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == 103 and rows[0].keys() == {"step", "train/loss", "train/seen", "val/loss", "note", "odd"}
        train = [row for row in rows if row["train/loss"]]
        assert [(int(row["step"]), float(row["train/loss"])) for row in train] == [(step, 1 / (step + 1)) for step in range(100)]
        assert [row["note"] for row in rows if row["note"]] == [NOTE, NOTE]

    def test_json_lines(self):
        lines = [json.loads(line) for line in open(self.folder / "metrics.jsonl")]
        assert lines[0] == {"hyperparameters": HYPERPARAMETERS} and lines[-1] == {"status": "success"}
        assert [line["train/loss"] for line in lines if "train/loss" in line] == [1 / (step + 1) for step in range(100)]
        assert lines[-2]["odd"] == "Infinity" and lines[-3]["weights"]["count"] == 1000

    def test_yaml_file(self):
        try:
            import yaml
        except ImportError as error:
            raise Skip(str(error))
        assert yaml.safe_load(open(self.folder / "hparams.yaml")) == HYPERPARAMETERS


run_cases(Run, sys.argv[1])
