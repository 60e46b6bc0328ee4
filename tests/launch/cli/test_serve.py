"""`pslib serve`: a process that answers, takes newer checkpoints, and leaves in order."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pslib.serving.client import ScoringClient
from tests.scoring.test_loaded_model import Trained, model_named
from tests.serving.test_zmq_server import ROW
from tests.support.waiting import PATIENCE_S, wait_until

RECORD = {"age": 0.5, "user": 3, "movie": "m1", "genres": ["a"], "liked": ["a"]}
COMMAND = [sys.executable, "-m", "launch.cli.main", "serve"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    made = Trained(tmp_path_factory.mktemp("clicks"), model_named("deepfm"))
    made.run(lambda trainer: None)
    return made


class Serving:
    """A started server; `lines` are what it has said."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process, self._log = process, log

    @property
    def lines(self) -> str:
        return self._log.read_text()

    def at(self, scheme: str) -> str:
        pattern = rf"serving at ({scheme}://\S+)"
        wait_until(
            lambda: re.search(pattern, self.lines) or self.process.poll() is not None, PATIENCE_S, pattern
        )
        found = re.search(pattern, self.lines)
        assert found, self.lines
        return found[1]

    def predict(self) -> Any:
        connection = http.client.HTTPConnection(self.at("http").removeprefix("http://"), timeout=PATIENCE_S)
        connection.request("POST", "/predict", json.dumps(RECORD))
        answer = json.loads(connection.getresponse().read())
        connection.close()
        return answer


@contextmanager
def serving(tmp_path: Path, *options: str) -> Iterator[Serving]:
    log = tmp_path / "serve.log"
    with log.open("w") as out:
        process = subprocess.Popen([*COMMAND, "--port", "0", *options], stderr=out, stdout=out, text=True)
    try:
        yield Serving(process, log)
    finally:
        process.kill()
        process.wait()


def test_a_run_is_served_over_http_and_zeromq_and_sigterm_ends_it(trained: Trained, tmp_path: Path) -> None:
    with serving(tmp_path, f"clicks={trained.checkpoint}", "--zmq", "tcp://127.0.0.1:0") as server:
        answer = server.predict()
        assert answer["model"] == "clicks"
        with ScoringClient(server.at("tcp")) as client:
            found = client.predict("clicks", ROW, timeout_s=PATIENCE_S)
        assert found == pytest.approx(answer["predictions"], abs=1e-5)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE_S) == 0
        assert "Traceback" not in server.lines


def test_a_newer_checkpoint_is_taken_while_it_serves(trained: Trained, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    shutil.copytree(trained.checkpoint, folder / "checkpoint-000001")
    with serving(tmp_path, str(folder), "--refresh-s", "0.1") as server:
        assert server.predict()["version"] == "1"
        shutil.copytree(trained.checkpoint, folder / "fresh")
        os.rename(folder / "fresh", folder / "checkpoint-000002")
        wait_until(lambda: server.predict()["version"] == "2", PATIENCE_S, "version 2")
        assert "models: version 2 answers" in server.lines


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["none"], "none"),
        (["a=CHECKPOINT", "a=CHECKPOINT"], "expected each name once"),
        (["CHECKPOINT", "--host", "256.0.0.1"], "can't listen there"),
        (["CHECKPOINT", "--zmq", "tcp://0.0.0.0:0"], "refused to listen on tcp://0.0.0.0:0"),
        (["CHECKPOINT", "--threads", "0"], "threads: expected a whole number in 1..256, got 0"),
        (["CHECKPOINT", "--admin-token-file", "absent"], "absent: No such file"),
        (
            ["CHECKPOINT", "--admin-token-file", sys.executable],
            "it is not UTF-8 text; give a file with the token",
        ),
    ],
)
def test_wrong_options_get_one_line(trained: Trained, tmp_path: Path, options: list[str], told: str) -> None:
    given = [one.replace("CHECKPOINT", trained.checkpoint) for one in options]
    run = subprocess.run(
        [*COMMAND, "--port", "0", *given], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert (run.returncode, told in run.stderr, "Traceback" in run.stderr) == (64, True, False), run.stderr
    assert run.stderr.count("\n") == 1
