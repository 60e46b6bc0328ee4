"""``pslib ui`` and ``--ui``: what they serve, until when, and what they say when they can't."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from launch.cli.main import main
from launch.supervisor.run_records import _Kept
from launch.supervisor.run_spec import Outcome, Plan
from pslib.config import ClusterConfig
from tests.monitor.pages import ask
from tests.support.recorded_state import recorded_samples, recorded_state

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def ended(tmp_path: Path) -> Path:
    """Folder of a run that has ended."""
    out = tmp_path / "clicks"
    (out / "logs").mkdir(parents=True)
    (out / "logs" / "cluster.json").write_text('{"coordinator": "tcp://127.0.0.1:1", "cluster_id": "a"}')
    recorded = {"state": recorded_state(2, 2, 100.0), "samples": recorded_samples(100.0)}
    (out / "monitor.json").write_text(json.dumps(recorded))
    summary = {
        "exit_code": 70,
        "phase": "failed",
        "error": "all servers are gone",
        "epochs": 1,
        "examples": 5,
    }
    (out / "summary.json").write_text(json.dumps(summary))
    return out


def test_a_run_that_has_ended_is_shown_from_its_files_until_ctrl_c(ended):
    command = [sys.executable, "-m", "launch.cli.main", "ui", str(ended)]
    shown = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert shown.stdout is not None
    url = shown.stdout.readline().strip()
    try:
        run = ask(url, "/api/state").plain["run"]
        assert (run["state"], run["error"], run["name"]) == ("failed", "all servers are gone", "clicks")
        assert len(ask(url, "/api/samples").plain["rows"]) == 100
        answer = ask(url, "/api/stacks/server/0", method="POST")
        assert answer.status == 409
        assert len(answer.plain["error"].splitlines()) == 1
    finally:
        shown.send_signal(signal.SIGINT)
        said, errors = shown.communicate(timeout=30)
    assert (shown.returncode, said, errors) == (0, "", "")


def test_a_folder_that_is_no_run_is_said_in_one_line(tmp_path, capsys):
    assert main(["ui", str(tmp_path)]) == 64
    assert capsys.readouterr().err.startswith(f"pslib: {tmp_path}: expected the folder of a run")
    assert main(["ui"]) == 64
    assert capsys.readouterr().err == "pslib: which run? give its folder, or the coordinator's address\n"


def test_a_port_that_is_taken_is_said_before_a_run_begins(tmp_path, capsys):
    script = tmp_path / "script.py"
    script.write_text("")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        expected = f"pslib: the page can't listen on 127.0.0.1, port {port}: {os.strerror(98)}; give another"
        assert main(["ui", str(tmp_path), "--port", str(port)]) == 64
        assert capsys.readouterr().err.startswith(expected)
        assert main(["launch", "--ui", str(port), str(script)]) == 64
        assert capsys.readouterr().err.startswith(expected)


def test_a_word_behind_ui_that_is_no_port_gets_advice(capsys):
    assert main(["train", "--ui", "clicks.yaml"]) == 64
    expected = "pslib: --ui: expected a port, 0 to 65535, got 'clicks.yaml'; without one write --ui=0"
    assert capsys.readouterr().err.startswith(expected)


def test_a_coordinator_that_is_slow_to_answer_ends_no_run_that_has_a_page_and_no_folder(tmp_path, capsys):
    kept = _Kept(Plan(ClusterConfig(), "run-7", (), tmp_path), None, 0)
    kept.begin("tcp://127.0.0.1:5")
    try:
        url = capsys.readouterr().err.removeprefix("pslib: the page of this run: ").strip()
        assert ask(url, "/api/state").plain["run"]["state"] == "running"
    finally:
        kept.close()
        kept.finish(Outcome(69, reason="server 1 is lost"))


def test_without_the_extra_a_run_does_not_begin(tmp_path, capsys, monkeypatch):
    script = tmp_path / "script.py"
    script.write_text("")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["launch", "--ui=0", str(script)]) == 64
    assert "pip install starlette uvicorn" in capsys.readouterr().err
    assert main(["ui", str(tmp_path)]) == 64
    assert "pip install starlette uvicorn" in capsys.readouterr().err
