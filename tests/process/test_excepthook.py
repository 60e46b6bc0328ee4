"""A script that ends with one of our errors shows its line; errors of its own keep their tracebacks."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pslib
from launch.worker.log_lines import USER, read_lines
from launch.worker.main import _run_reporting
from pslib.errors import ConfigurationError, DataError, ProtocolError, ServerLostError
from pslib.process.excepthook import told, uncaught_in_a_line

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import pslib
from rec_models import DeepFM

model = DeepFM(pslib.Schema(label="click", sparse=["user"]), dim=2, hidden=(2,))
with pslib.connect() as cluster:
    pslib.Trainer(model, cluster, progress=False).fit("nowhere.parquet")
"""


def test_a_plain_script_that_names_no_data_ends_with_one_line_and_our_exit_code(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.stderr == (
        "pslib: nowhere.parquet: no such file or folder\n"
        f"  {tmp_path}/script.py, line 7: "
        'pslib.Trainer(model, cluster, progress=False).fit("nowhere.parquet")\n'
    )
    assert done.returncode == DataError.exit_code


CTRL_C = """
import os
import signal
import pslib
from rec_models import LR

class Press(pslib.Callback):
    pressed = False

    def on_progress(self, trainer, record):
        if record["examples"] and not self.pressed:
            self.pressed = True
            os.kill(os.getpid(), signal.SIGINT)

users = [f"u{number % 9}" for number in range(100_000)]
data = {"user": users, "click": [number % 2 for number in range(100_000)]}
schema = pslib.Schema(label="click", sparse=["user"])
with pslib.connect() as cluster:
    trainer = pslib.Trainer(LR(schema), cluster, batch_rows=50, out="run", callbacks=[Press()])
    trainer.fit(data, epochs=100)
"""


def test_ctrl_c_in_a_script_tells_what_is_saved_and_shows_the_line_of_the_script(
    tmp_path: Path,
) -> None:
    (tmp_path / "script.py").write_text(CTRL_C)
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGINT
    lines = done.stderr.splitlines()
    told = next(line for line in lines if line.startswith("pslib: interrupted at example "))
    assert f"; saved in {tmp_path}/run/checkpoint-unfinished/checkpoint-000001: in another" in told
    assert "failed" not in done.stderr
    assert lines[-4:] == [
        "Traceback (most recent call last):",
        f'  File "{tmp_path}/script.py", line 20, in <module>',
        "    trainer.fit(data, epochs=100)",
        "KeyboardInterrupt",
    ]
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["phase"] == "interrupted"


def test_a_mistake_in_a_schema_that_stands_before_connect_is_one_line_too(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import pslib; pslib.Schema(label='click', sparse='user')"],
        cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    (line,) = done.stderr.splitlines()
    assert line.startswith("pslib: ")
    assert "['user']" in line
    assert done.returncode == ConfigurationError.exit_code


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (DataError("a.parquet: no rows"), "a.parquet: no rows"),
        (ValueError("mine"), "ValueError: mine"),
        (SystemExit(3), "SystemExit: 3"),
        (SystemExit(0), None),
    ],
    ids=repr,
)
def test_the_last_status_of_a_script_that_failed_says_so(error: BaseException, said: str | None) -> None:
    """Its records would be those of a run that is done."""
    last: list[dict[str, Any]] = []

    def script() -> None:
        with pslib.connect() as cluster:
            cluster.at_close(lambda: None, last.append)
            raise error

    with pytest.raises(type(error)):
        script()
    assert (last[0]["error"], last[0]["phase"]) == (said, "failed" if said else "done")


def shown(error: Exception, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Return Python's output for an uncaught error."""
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    uncaught_in_a_line()
    try:
        raise error
    except Exception:
        try:
            sys.excepthook(*sys.exc_info())
        except SystemExit as ending:
            code = ending.code
        else:
            code = None
    assert code == (error.exit_code if told(error) else None)
    return capsys.readouterr().err


def test_only_what_is_not_our_own_fault_is_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PSLIB_DEBUG", raising=False)
    two = shown(ConfigurationError("a: b", "c: d"), capsys, monkeypatch)
    assert two.startswith(f"pslib: a: b\npslib: c: d\n  {__file__}, line ")
    assert shown(ServerLostError("server 1"), capsys, monkeypatch).startswith("pslib: server 1\n  ")
    for error in (ValueError("mine"), ProtocolError("ours")):
        assert "Traceback" in shown(error, capsys, monkeypatch)


def test_a_debugger_a_prompt_and_the_switch_keep_tracebacks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PSLIB_DEBUG", "1")
    assert not told(DataError("x"))
    assert "Traceback" in shown(DataError("x"), capsys, monkeypatch)
    monkeypatch.setattr(sys, "excepthook", print)
    uncaught_in_a_line()
    assert sys.excepthook is print
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    uncaught_in_a_line()
    assert sys.excepthook is sys.__excepthook__


@pytest.mark.parametrize("switch", ["1", "0"])
def test_a_worker_has_the_same_switch(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, switch: str
) -> None:
    monkeypatch.setenv("PSLIB_DEBUG", switch)

    def fails() -> int:
        raise DataError("no rows", "no columns")

    assert _run_reporting(fails) == DataError.exit_code
    (entry,) = read_lines(capsys.readouterr().err.removesuffix("\n"))
    assert (entry.message, entry.to) == ("no rows\nno columns", USER)
    assert bool(entry.exception) == (switch == "1")
