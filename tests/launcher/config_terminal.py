"""`muster config` on a terminal: choices by the arrow keys, lines for the rest.

usage: config_terminal.py MUSTER
"""
import os
import pathlib
import pty
import re
import select
import sys
import tempfile
import termios

UP, DOWN, ENTER, INTERRUPT = b"\x1b[A", b"\x1b[B", b"\r", b"\x03"
BOUND = 60  # seconds; only a failing test waits so long


def two_accelerators():
    """Variables with which a machine has two accelerators, whichever it has."""
    for index in range(2):
        pathlib.Path(ROOT, "proc/driver/nvidia/gpus", str(index)).mkdir(parents=True, exist_ok=True)
    return {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "MUSTER_TEST_ROOT": ROOT}


class Terminal:
    """A program on a pseudo-terminal of its own."""

    def __init__(self, command, environment):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execvpe(command[0], command, {**os.environ, **two_accelerators(), "TERM": "xterm", **environment})
        self.text, self.seen = "", 0

    def read(self):
        if not select.select([self.fd], [], [], BOUND)[0]:
            raise AssertionError(f"nothing came after {self.text!r}")
        try:
            piece = os.read(self.fd, 4096).decode()
        except OSError:  # the other end is closed
            piece = ""
        self.text += piece
        return piece

    def answer(self, question, keys):
        """Sends keys once the question stands there."""
        while (at := self.text.find(question, self.seen)) < 0:
            if not self.read():
                raise AssertionError(f"{question!r} is not asked: {self.text}")
        self.seen = at + len(question)
        os.write(self.fd, keys)

    def end(self):
        while self.read():
            pass
        status = os.waitpid(self.pid, 0)[1]
        os.close(self.fd)
        return os.waitstatus_to_exitcode(status)


def asked(folder, **environment):
    return Terminal([MUSTER, "config", "--config_file", str(folder / "config.yaml")], environment)


def test_arrow_keys_choose(folder):
    terminal = asked(folder)
    terminal.answer("  CPU\x1b[0m", DOWN + ENTER)
    terminal.answer("machines train together", b"1\r")
    terminal.answer("ranks on all machines", b"many\r")
    terminal.answer("give a whole number", b"2\r")
    terminal.answer("zero2: gradients", DOWN + DOWN + DOWN + UP + ENTER)
    terminal.answer("size: those", UP + b"0" + ENTER)
    terminal.answer("Free parameters", b"\r")
    terminal.answer("fp16: float16", b"j" + ENTER)
    terminal.answer("accumulation window", b"\r")
    terminal.answer("Folder for", b"\r")
    assert terminal.end() == 0, terminal.text
    text = (folder / "config.yaml").read_text()
    assert text.endswith("run:\n  use_cpu: true\n  num_machines: 1\n  num_processes: 2\n  strategy: fsdp\n  mixed_precision: bf16\n"), text
    assert "\x1b[1m> " in terminal.text


def test_an_interrupt_writes_nothing_and_gives_the_terminal_back(folder):
    terminal = asked(folder)
    terminal.answer("  CPU\x1b[0m", INTERRUPT)
    while terminal.read():
        if "MU485" in terminal.text:
            break
    usual = termios.ICANON | termios.ECHO | termios.ISIG
    assert termios.tcgetattr(terminal.fd)[3] & usual == usual
    assert terminal.end() == 2, terminal.text
    assert not (folder / "config.yaml").exists()


def test_a_dumb_terminal_gets_numbers(folder):
    terminal = asked(folder, TERM="dumb")
    terminal.answer("a number, or the words [0]:", b"CPU\r")
    terminal.answer("machines train together", b"\x04")
    assert terminal.end() == 2, terminal.text
    assert "\x1b" not in terminal.text and re.search(r"^  1  CPU\r$", terminal.text, re.MULTILINE), terminal.text


def why_not():
    """Why this machine gives no pseudo-terminal; None where it does."""
    try:
        for end in pty.openpty():
            os.close(end)
    except OSError as error:
        return f"this machine gives no pseudo-terminals ({error})"


MUSTER = str(pathlib.Path(sys.argv[1]).resolve())
counts = {"passed": 0, "failed": 0, "skipped": 0}
reason = why_not()
for name, case in [entry for entry in globals().items() if entry[0].startswith("test_")]:
    if reason:
        print(f"skipped {name}: {reason}")
        counts["skipped"] += 1
        continue
    with tempfile.TemporaryDirectory() as path, tempfile.TemporaryDirectory() as ROOT:
        try:
            case(pathlib.Path(path))
            counts["passed"] += 1
        except AssertionError as error:
            print(f"FAILED {name}: {error}")
            counts["failed"] += 1
print(", ".join(f"{count} {word}" for word, count in counts.items()))
sys.exit(counts["failed"] > 0)
