"""``pslib top``: of runs that go on, in a terminal and in a pipe, and of those that have ended."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from launch.cli.main import main
from pslib.clock import SystemClock
from tests.support.processes.counting_runs import Start, write_job
from tests.support.recorded_state import recorded_samples, recorded_state
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[3]
ROWS, COLUMNS = 30, 90
IN_TERMINAL = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from launch.cli.main import main
sys.exit(main())
"""
"""The command line, to which the terminal sends Ctrl-C."""


@pytest.fixture
def ended(tmp_path: Path) -> Path:
    """The folder of a run that has ended, with its last state."""
    folder = tmp_path / "clicks"
    folder.mkdir()
    written = {"state": recorded_state(2, 2, 130), "samples": recorded_samples(130)}
    (folder / "metrics.jsonl").touch()
    (folder / "monitor.json").write_text(json.dumps(written))
    (folder / "summary.json").write_text(
        json.dumps({"exit_code": 69, "phase": "failed", "error": "server 0 is lost"})
    )
    return folder


def test_a_run_that_has_ended_shows_its_last_state(
    ended: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    assert main(["top", str(ended)]) == 0
    screen = capsys.readouterr().out
    assert screen.startswith("clicks  failed  epoch 1/3")
    assert "\nerror: server 0 is lost" in screen
    assert screen.count(" live ") == 4
    assert "\x1b" not in screen
    assert main(["top", "--json", str(ended)]) == 0
    assert json.loads(capsys.readouterr().out)["run"]["error"] == "server 0 is lost"


def test_a_folder_without_a_run_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", str(tmp_path)]) == 64
    line = capsys.readouterr().err
    assert line.startswith(f"pslib: {tmp_path}: expected the folder of a")
    assert line.count("\n") == 1


class Terminal:
    """A command in a terminal of its own."""

    def __init__(self, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.before = termios.tcgetattr(theirs)
        self._theirs = theirs
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "PYTHONUTF8": "1"}
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            environment.pop(name, None)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", IN_TERMINAL, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
            start_new_session=True,
        )
        self.text = ""

    def until(self, found: str) -> None:
        """Read the screen until it has had a text."""
        clock, end_s = SystemClock(), SystemClock().now_s() + PATIENCE_S
        while not re.search(found, self.text):
            assert clock.now_s() < end_s, self.text
            if select.select([self._ours], [], [], 0.5)[0]:
                self.text += os.read(self._ours, 1 << 16).decode("utf-8", "replace")

    def press(self, key: bytes) -> None:
        """Press a key."""
        os.write(self._ours, key)

    def settings(self) -> list[object]:
        """Settings of the terminal."""
        return termios.tcgetattr(self._theirs)

    def close(self) -> None:
        """End the command and the terminal."""
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    """Terminals of a test, which are closed at its end."""
    opened: list[Terminal] = []
    yield opened
    for one in opened:
        one.close()


def test_a_run_that_goes_on_is_shown_until_q_or_ctrl_c(
    start: Start, examples: Path, tmp_path: Path, terminals: list[Terminal]
) -> None:
    cluster = {"servers": 2, "trainers": 2}
    run = start("train", write_job(tmp_path, examples, {"batch_rows": 64, "epochs": 40}, cluster))
    run.wait_for_file("metrics.jsonl", '"phase": "training"')
    for key in (b"q", b"\x03"):
        terminal = Terminal("top", str(tmp_path / "out"))
        terminals.append(terminal)
        terminal.until(r"\x1b\[\?1049h")  # the other screen of the terminal
        terminal.until(r"out.*training.*epoch")
        terminal.until(r"trainer \(2\)")
        terminal.until(r"server \(2\)")
        terminal.until(r"[1-9][\d,]* examples/s")
        assert terminal.process.poll() is None
        terminal.press(key)
        terminal.until(r"\x1b\[\?1049l")
        assert terminal.process.wait(PATIENCE_S) == 0
        assert terminal.settings() == terminal.before
        assert "Traceback" not in terminal.text
    piped = start("top", tmp_path / "out")
    assert piped.finish(60) == 0
    (head,) = piped.lines("  training  ")
    assert head.startswith("out  training  epoch ")
    assert len(piped.lines(" live ")) == 4
    plain = start("top", "--json", tmp_path / "out")
    assert plain.finish(60) == 0
    state = json.loads(plain.output)
    assert state["format"] == 1
    assert state["run"]["examples_per_s"] > 0
    assert start("stop", tmp_path / "out").finish(60) == 0
    run.finish(60)
    assert start("top", tmp_path / "out").finish(60) == 0
