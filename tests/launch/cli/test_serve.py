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
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pslib.serving.client import ScoringClient
from tests.support.followed import followed_training
from tests.support.model_server import ROW, served
from tests.support.models.zoo import Trained
from tests.support.waiting import PATIENCE_S, wait_until

RECORD = {"age": 0.5, "user": 3, "movie": "m1", "genres": ["a"], "liked": ["a"]}
COMMAND = [sys.executable, "-m", "launch.cli.main", "serve"]


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

    def predict(self, record: Mapping[str, Any] = RECORD) -> Any:
        connection = http.client.HTTPConnection(self.at("http").removeprefix("http://"), timeout=PATIENCE_S)
        connection.request("POST", "/predict", json.dumps(record))
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


def rolled_back(*given: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "launch.cli.main", "rollback", *given]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_rollback_lets_an_older_version_answer_and_a_wrong_one_gets_one_line(
    trained: Trained, tmp_path: Path
) -> None:
    for number in (1, 2):
        shutil.copytree(trained.checkpoint, tmp_path / f"checkpoint-{number:06d}")
    token, wrong, split = tmp_path / "token", tmp_path / "wrong", tmp_path / "split"
    token.write_text("a-token-of-the-test")
    wrong.write_text("another-token-of-it")
    split.write_text("a-token-of\nthe-test-too")
    with served({"m": str(tmp_path)}, "a-token-of-the-test") as client:
        shutil.copytree(trained.checkpoint, tmp_path / "checkpoint-000003")
        client.repository.refresh()
        url, with_token = f"http://127.0.0.1:{client.port}", ["--admin-token-file", str(token)]
        for given, told in (
            ([url, "m", "--admin-token-file", str(wrong)], "expected the admin token"),
            ([url, "none", *with_token], "model 'none': expected one of m"),
            ([url, "m", "--version", "9", *with_token], "expected a version of 2, 3, got '9'"),
            (
                [url, "m", "--admin-token-file", str(split)],
                "expected one line of 16 or more characters of ASCII",
            ),
            (["127.0.0.1:1", "m"], "expected http://HOST:PORT"),
            (["http://[one", "m"], "http://[one: expected an answer of pslib serve"),
            (["http://127.0.0.1:1", "m"], "http://127.0.0.1:1: expected an answer of pslib serve"),
        ):
            run = rolled_back(*given)
            assert run.returncode in (64, 69), run.stderr
            assert told in run.stderr
            assert run.stderr.count("\n") == 1
            assert "the-test" not in run.stderr
        run = rolled_back(url, "m", *with_token)
        assert (run.returncode, run.stderr) == (0, "")
        assert run.stdout == "m: version 2 answers; no newer one is taken until a load\n"
        assert client.ask("POST", "/predict", RECORD)[1]["version"] == "2"
        assert rolled_back(url, "m", "--version", "3", *with_token).stdout.startswith("m: version 3 answers")


def test_a_rollback_follows_no_redirection_which_would_get_the_token(tmp_path: Path) -> None:
    asked: list[str] = []

    class Redirect(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.command)
            self.send_response(302)
            self.send_header("Location", f"http://127.0.0.1:{server.server_address[1]}/elsewhere")
            self.end_headers()

        def do_GET(self) -> None:
            asked.append(f"{self.command} {self.headers['Authorization']}")
            self.send_error(404)

        def log_message(self, format: str, *args: object) -> None:
            """Write no line for each."""

    (tmp_path / "token").write_text("a-token-of-the-test")
    with ThreadingHTTPServer(("127.0.0.1", 0), Redirect) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        run = rolled_back(url, "m", "--admin-token-file", str(tmp_path / "token"))
        server.shutdown()
    assert (run.returncode, run.stderr) == (
        64,
        f"pslib: {url}: it redirects to {url}/elsewhere; expected the URL of pslib serve itself\n",
    )
    assert asked == ["POST"]


def test_a_server_that_may_wait_begins_with_the_first_checkpoint(trained: Trained, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with serving(tmp_path, str(folder), "--wait-s", "600", "--host", "::") as server:
        wait_until(lambda: "waits up to 600 s for a checkpoint" in server.lines, PATIENCE_S, "the wait")
        shutil.copytree(trained.checkpoint, tmp_path / "fresh")
        folder.mkdir()
        os.rename(tmp_path / "fresh", folder / "checkpoint")
        port = server.at("http").rpartition(":")[2]
        connection = http.client.HTTPConnection(f"127.0.0.1:{port}", timeout=PATIENCE_S)
        connection.request("GET", "/v2/health/ready")
        assert connection.getresponse().status == 200
        connection.close()
        assert server.lines.count("waits up to") == 1


def test_a_server_that_waits_ends_when_it_is_asked_to_or_nothing_has_come(tmp_path: Path) -> None:
    with serving(tmp_path, "absent", "--wait-s", "600") as server:
        wait_until(lambda: "waits up to" in server.lines, PATIENCE_S, "the wait")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE_S) == 75
        assert server.lines.splitlines()[-1] == "pslib: asked to leave (SIGTERM)"
    with serving(tmp_path, "absent", "--wait-s", "0.1") as server:
        assert server.process.wait(PATIENCE_S) == 64
        assert "Traceback" not in server.lines


def test_a_process_follows_a_training_and_sigterm_ends_it(tmp_path: Path) -> None:
    record, keys = {"user": 3, "item": 5}, np.arange(1000, dtype=np.uint64)
    with followed_training(tmp_path) as training, serving(tmp_path, str(tmp_path), "--follow") as server:
        before = server.predict(record)
        assert before["version"].startswith("20+")
        training.push(keys, 0.5)
        wait_until(
            lambda: server.predict(record)["predictions"] != before["predictions"], PATIENCE_S, "the push"
        )
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE_S) == 0
        assert "Traceback" not in server.lines


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["none"], "none"),
        (["a=CHECKPOINT", "a=CHECKPOINT"], "expected each name once"),
        (["CHECKPOINT", "--host", "256.0.0.1"], "can't listen there"),
        (["CHECKPOINT", "--host", "a..b"], "can't listen there"),
        (["CHECKPOINT", "--zmq", "tcp://0.0.0.0:0"], "refused to listen on tcp://0.0.0.0:0"),
        (["CHECKPOINT", "--threads", "0"], "threads: expected a whole number in 1..256, got 0"),
        (["CHECKPOINT", "--admin-token-file", "absent"], "absent: No such file"),
        (
            ["CHECKPOINT", "--admin-token-file", sys.executable],
            "it is not UTF-8 text; give a file with the token",
        ),
        (["CHECKPOINT", "--follow"], "expected the folder of a run that has started"),
        (["CHECKPOINT", "--follow-keys", sys.executable], "--follow-keys: expected --follow with it"),
    ],
)
def test_wrong_options_get_one_line(trained: Trained, tmp_path: Path, options: list[str], told: str) -> None:
    given = [one.replace("CHECKPOINT", trained.checkpoint) for one in options]
    run = subprocess.run(
        [*COMMAND, "--port", "0", *given], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert (run.returncode, told in run.stderr, "Traceback" in run.stderr) == (64, True, False), run.stderr
    assert run.stderr.count("\n") == 1
