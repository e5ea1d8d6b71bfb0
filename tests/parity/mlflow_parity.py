"""What is logged to MLflow is what a server of it gives back, by its REST API; and `muster track upload` sends what a dead server did not take.

usage: mlflow_parity.py PROGRAM MUSTER
The cases with a server of MLflow's own need its package. Where MUSTER_TEST_SERVICES is set, that it is missing is a failure.
"""
import contextlib
import http.server
import importlib.util
import json
import math
import os
import pathlib
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

from cases import Skip, run_cases
from png import png

MUSTER = str(pathlib.Path(sys.argv[2]).resolve())
STEPS = 2500
PASSWORD = "kq7secret"
LARGEST = sys.float_info.max


def leave_out(reason):
    if os.environ.get("MUSTER_TEST_SERVICES"):
        raise RuntimeError(reason)
    raise Skip(f"{reason}; make test-services installs it")


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def call(uri, path, body=None):
    request = urllib.request.Request(f"{uri}/api/2.0/{path}", data=body and json.dumps(body).encode(), headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return reply.read()


def answer(uri, path, body=None):
    return json.loads(call(uri, path, body))


class Taken(http.server.BaseHTTPRequestHandler):
    """As much of MLflow as takes a run in."""
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.seen.append((self.path, dict(self.headers), body))
        info = {"artifact_uri": "mlflow-artifacts:/1/r/artifacts", "experiment_id": "1", "run_id": "r"}
        reply = json.dumps({"experiment": {"experiment_id": "1"}, "run": {"info": info, "data": {}}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    do_GET = do_PUT = do_POST

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def taking(port, certificate=None):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Taken)
    server.seen = []
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def mlflow_server(folder, port):
    if not importlib.util.find_spec("mlflow"):
        leave_out("the package mlflow is not installed")
    folder.mkdir(exist_ok=True)
    log = open(folder / "log", "a")
    process = subprocess.Popen([sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
                                "--backend-store-uri", f"sqlite:///{folder}/runs.db", "--artifacts-destination", str(folder / "artifacts")],
                               stdout=log, stderr=log, cwd=folder, start_new_session=True, env={**os.environ, "GIT_PYTHON_REFRESH": "quiet"})
    uri = f"http://127.0.0.1:{port}"
    try:
        for _ in range(1800):
            with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
                urllib.request.urlopen(f"{uri}/health", timeout=5).close()
                break
            if process.poll() is not None:
                raise RuntimeError("mlflow server ended: " + (folder / "log").read_text()[-2000:])
            time.sleep(0.1)
        yield uri
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 15)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
        log.close()


class Run:
    def __init__(self, program, root):
        self.program, self.root, self.folder, self.image = program, root, root / "digits" / "run", png()
        (root / "image.png").write_bytes(self.image)

    def variables(self, uri, **more):
        plain = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
        return {**plain, "MLFLOW_TRACKING_URI": uri, "no_proxy": "127.0.0.1", **more}

    def log(self, uri, *words, code=0, **more):
        process = subprocess.run([self.program, str(self.root), str(self.root / "image.png"), str(STEPS), *words], env=self.variables(uri, **more),
                                 capture_output=True, text=True, timeout=120)
        assert process.returncode == code, process
        return process.stderr

    def upload(self, uri, *words, code=0, **more):
        process = subprocess.run([MUSTER, "track", "upload", str(self.folder), *words], env=self.variables(uri, **more), capture_output=True,
                                 text=True, timeout=120)
        assert process.returncode == code, process
        return process.stdout + process.stderr

    def written(self):
        return "".join(path.read_text(errors="replace") for path in self.root.rglob("*") if path.is_file())

    def history(self, uri, run_id, key):
        found, token = [], ""
        while True:
            reply = answer(uri, f"mlflow/metrics/get-history?run_id={run_id}&metric_key={key}&max_results=1000{token}")
            found += reply.get("metrics", [])
            if not reply.get("next_page_token"):
                return [(metric["step"], metric["value"]) for metric in found]
            token = "&page_token=" + reply["next_page_token"]

    def check(self, uri, status):
        """One run of the experiment, with all that the program logs, once."""
        experiment = answer(uri, "mlflow/experiments/get-by-name?experiment_name=digits")["experiment"]["experiment_id"]
        (run,) = answer(uri, "mlflow/runs/search", {"experiment_ids": [experiment]})["runs"]
        info, data = run["info"], run["data"]
        assert (info["status"], info["run_name"]) == (status, "run"), info
        assert info["start_time"] <= info["end_time"]
        tags = {tag["key"]: tag["value"] for tag in data["tags"]}
        assert tags["team"] == "vision" and tags["mlflow.source.name"].endswith("mlflow_parity"), tags
        params = {param["key"]: param["value"] for param in data["params"]}
        assert params == {"deep": "true", "empty": "", "lr": "1e-05", "net": 'mlp: "a"\n', "width": "64", "text": "x" * 6000}, params
        assert self.history(uri, info["run_id"], "train/loss") == [(step, 1 / (step + 1)) for step in range(STEPS)]
        assert self.history(uri, info["run_id"], "seen") == [(step, step * 16) for step in range(STEPS)]
        latest = {metric["key"]: (metric["step"], metric["value"]) for metric in data["metrics"]}
        assert latest["acc_1"] == (1 << 40, 0.5) and latest["été"] == (1 << 40, 2), latest
        assert latest["nan"][0] == 5 and math.isnan(float(latest["nan"][1])), latest
        assert float(latest["inf"][1]) in (math.inf, LARGEST) and float(latest["low"][1]) in (-math.inf, -LARGEST), latest
        assert len(latest) == 7, latest
        times = [metric["timestamp"] for metric in data["metrics"]]
        assert all(info["start_time"] - 1000 <= at <= info["end_time"] + 1000 for at in times), (info, times)
        files = info["artifact_uri"].removeprefix("mlflow-artifacts:/")
        for name in ("plots/sample.png", "images/sample/7.png"):
            assert call(uri, f"mlflow-artifacts/artifacts/{files}/{name}") == self.image

    def test_a_server_gives_back_what_was_logged(self):
        with mlflow_server(self.root / "server", free_port()) as uri:
            said = self.log(uri)
            if "MU534" in said:  # a machine with much else to do
                said += self.upload(uri)
            self.check(uri, "FINISHED")
        assert said.count("MU539") == 3 and not re.search("MU53[5-8]", said), said  # a name, a text that is long, a text of a step
        assert not (self.folder / "mlflow.waiting.jsonl").exists()

    def test_what_a_dead_server_missed_is_uploaded_once(self):
        port = free_port()
        said = self.log(f"http://127.0.0.1:{port}", "killed", code=-9)
        assert "MU534" not in said, said
        with mlflow_server(self.root / "server", port) as uri:
            assert f"{STEPS + 6} lines" in self.upload(uri)
            assert "nothing waits" in self.upload(uri)
            self.check(uri, "KILLED")

    def test_the_command_sends_what_waits_and_no_key_is_kept(self):
        port = free_port()
        where, user = f"http://anna:{PASSWORD}@127.0.0.1:{port}", {"MLFLOW_TRACKING_TOKEN": PASSWORD}
        said = self.log(where, **user)
        assert said.count("MU533") == 1 and said.count("MU534") == 1 and f"muster track upload '{self.folder}'" in said, said
        said += self.upload(where, "--timeout", "0s", code=2)
        assert "MU538" in said, said
        with taking(port) as server:
            said += self.upload(where)
            assert "sent to http://127.0.0.1" in said and "nothing waits" in self.upload(where), said
            metrics = [metric for path, _, body in server.seen if path.endswith("log-batch") for metric in json.loads(body).get("metrics", [])]
            assert [metric["step"] for metric in metrics if metric["key"] == "seen"] == list(range(STEPS))
            assert all(headers["Authorization"].startswith("Basic ") for _, headers, _ in server.seen)
            assert json.loads(server.seen[-1][2])["status"] == "FINISHED"
        assert PASSWORD not in said + self.written() and "anna:" not in said + self.written()

    def test_certificates_are_checked(self):
        certificate = self.root / "server.pem"
        if not shutil.which("openssl"):
            raise Skip("there is no openssl to make a certificate with")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", certificate, "-out", self.root / "only.pem", "-days", "2",
                        "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
        certificate.write_text(certificate.read_text() + (self.root / "only.pem").read_text())
        with taking(free_port(), certificate) as server:
            where = f"https://127.0.0.1:{server.server_port}"
            said = self.log(where)
            assert "MU533" in said and "certificate" in said and not server.seen, said
            for variables in ({"MLFLOW_TRACKING_SERVER_CERT_PATH": str(self.root / "only.pem")}, {"MLFLOW_TRACKING_INSECURE_TLS": "true"}):
                said = self.log(where, "exit", **variables)
                assert "MU533" not in said and json.loads(server.seen[-1][2])["status"] == "FINISHED", said
                server.seen.clear()

    def test_the_command_says_what_is_wrong(self):
        for words, part in ((["track", "upload", str(self.root)], "MU537"), (["track", "download"], "it has upload"),
                            (["track", "upload", str(self.root), "--timeout", "soon"], "--timeout takes a")):
            process = subprocess.run([MUSTER, *words], capture_output=True, text=True, timeout=60)
            assert process.returncode == 2 and part in process.stderr, process
        assert "upload RUN" in subprocess.run([MUSTER, "track", "--help"], capture_output=True, text=True, timeout=60, check=True).stdout


run_cases(Run, sys.argv[1])
