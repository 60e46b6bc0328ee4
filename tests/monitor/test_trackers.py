"""Trackers: a webhook and MLflow get a run's begin, figures, events and end, and never hold it up."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import pslib
from launch.cli.main import main
from launch.job.job import read_job, settings_of_job
from pslib.errors import ConfigurationError
from pslib.monitor import mlflow_runs, outbox, webhook
from pslib.monitor.mlflow_runs import MLflow, MLflowSettings
from pslib.monitor.outbox import Outbox
from pslib.monitor.trackers import TrackerSettings
from pslib.monitor.webhook import Webhook, WebhookSettings
from pslib.recorder import RunRecorder
from pslib.recorder.event_files import TensorBoard
from tests.recorder.test_recorder import training
from tests.support.counting import CountingModel, write_examples
from tests.support.hand_clock import HandClock
from tests.support.job_folder import JOB, refused, save

ABOUT = {"name": "clicks", "run_id": "a1", "settings": {"training.seed": "7", "model.name": "deepfm"}}
RESULT = {"kind": "evaluate", "name": "test", "auc": 0.75, "logloss": 0.5, "calibration": None}
LOOKS = [
    training(100),
    training(200, epoch=2, saved="run/checkpoint", results=[RESULT]),
]


@contextmanager
def receiver(*answers: int) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """An HTTP server that gives these answers in turn, then 200: its URL, and the bodies that it took."""
    taken: list[dict[str, Any]] = []
    codes = iter(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.headers["Content-Type"] == "application/json"
            code = next(codes, 200)
            if code == 200:
                taken.append(json.loads(body))
            self.send_response(code)
            if code == 302:
                self.send_header("Location", "/elsewhere")
            self.end_headers()

        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook", taken
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def recorded(folder: Path | None, *callbacks: pslib.Callback, **summary: Any) -> dict[str, Any]:
    """Record a run of two looks, and return its summary."""
    run = RunRecorder(folder, HandClock(), progress=False, callbacks=callbacks, about=ABOUT)
    for look in LOOKS:
        run._clock.sleep_s(1.0)
        run.observe(look)
    return run.finish({"seed": 7, "phase": "done", **summary})


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name.startswith("pslib.")]


# --- webhook


def test_a_webhook_gets_begin_events_and_end_as_json(tmp_path: Path) -> None:
    with receiver() as (url, taken):
        summary = recorded(tmp_path, Webhook(WebhookSettings(url=url)))
    assert [one["event"] for one in taken] == ["begin", "epoch", "saved", "end"]
    begin, epoch, saved, end = taken
    assert begin["run"] == {"name": "clicks", "folder": str(tmp_path), "run_id": "a1"}
    assert begin["about"] == ABOUT["settings"]
    assert re.fullmatch(r"clicks: epoch 2 of 2 is done: loss .*, AUC -", epoch["text"])
    assert saved["about"]["path"] == "run/checkpoint"
    assert (end["text"], end["about"]) == ("clicks: the run is over, done", summary)
    assert all(one["at_s"] > 1.7e9 for one in taken)


def test_a_webhook_that_fails_for_a_while_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(webhook, "PAUSE_S", 0.0)
    with receiver(500, 429, 503) as (url, taken):
        recorded(tmp_path, Webhook(WebhookSettings(url=url)))
    assert [one["event"] for one in taken] == ["begin", "epoch", "saved", "end"]
    assert lines_of(caplog) == []


def test_a_webhook_that_refuses_is_told_once_with_the_number_that_was_lost_and_the_run_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with receiver(404, 404, 404, 404) as (url, taken):
        assert recorded(tmp_path, Webhook(WebhookSettings(url=url)))["examples"] == 200
    assert taken == []
    assert lines_of(caplog) == [
        "pslib: webhook: HTTPError: HTTP Error 404: Not Found; the run goes on, later messages are still "
        "sent",
        "pslib: webhook: 4 messages were not delivered",
    ]


def test_a_redirected_message_is_not_taken_for_a_delivered_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with receiver(302, 302, 302, 302) as (url, taken):
        recorded(tmp_path, Webhook(WebhookSettings(url=url)))
    assert taken == []
    assert lines_of(caplog)[-1] == "pslib: webhook: 4 messages were not delivered"


def test_a_webhook_that_never_answers_holds_up_neither_records_nor_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(webhook, "LAST_S", 0.2)
    asked, go_on = threading.Event(), threading.Event()

    def hangs(self: Webhook, body: bytes) -> None:
        asked.set()
        go_on.wait(60)

    monkeypatch.setattr(Webhook, "_post", hangs)
    hook = Webhook(WebhookSettings(url="http://x"))
    assert recorded(tmp_path, hook)["examples"] == 200
    assert asked.is_set()
    assert lines_of(caplog) == ["pslib: webhook: 4 messages were not delivered"]
    go_on.set()
    assert hook._outbox is not None
    hook._outbox._thread.join(20)
    assert not hook._outbox._thread.is_alive()


def test_an_outbox_that_is_full_leaves_out_what_has_waited_longest(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(outbox, "WAITING_MAX", 2)
    begun, go_on, taken = threading.Event(), threading.Event(), list[int]()

    def deliver(item: int) -> None:
        begun.set()
        go_on.wait(60)
        taken.append(item)

    box = Outbox("box", deliver, 20.0)
    box.put(0)
    assert begun.wait(20)
    for item in range(1, 5):
        box.put(item)
    go_on.set()
    box.close()
    assert taken == [0, 3, 4]
    assert lines_of(caplog) == ["pslib: box: 2 messages were not delivered"]


# --- MLflow


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """URI of a store of files, all that mlflow-skinny has without a server."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    return f"file://{tmp_path}/mlruns"


def runs_in(store: str, experiment: str = "pslib") -> tuple[Any, list[Any]]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=store)
    found = client.get_experiment_by_name(experiment)
    return client, list(client.search_runs([found.experiment_id]))


@pytest.mark.filterwarnings("ignore")
def test_mlflow_has_settings_curves_over_examples_and_the_files_of_the_run(
    store: str, tmp_path: Path
) -> None:
    recorded(tmp_path / "run", MLflow(MLflowSettings(uri=store)))
    client, (run,) = runs_in(store)
    assert (run.info.run_name, run.info.status) == ("clicks", "FINISHED")
    assert run.data.params == ABOUT["settings"]
    loss = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(one.step, one.value) for one in loss] == [(100, 0.5), (200, 0.5)]
    assert run.data.metrics["test/auc"] == 0.75
    names = {one.path for one in client.list_artifacts(run.info.run_id)}
    assert {"summary.json", "run.png", "metrics.jsonl"} <= names


@pytest.mark.filterwarnings("ignore")
def test_a_run_whose_settings_mlflow_refuses_still_has_its_figures(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ABOUT, "settings", {"a@b": "1", "a_at_b": "2"})  # of one name there
    recorded(tmp_path / "run", MLflow(MLflowSettings(uri=store)))
    _, (run,) = runs_in(store)
    assert run.info.status == "FINISHED"
    assert run.data.metrics["test/auc"] == 0.75


@pytest.mark.filterwarnings("ignore")
def test_a_run_that_goes_on_is_one_run_in_mlflow(store: str, tmp_path: Path) -> None:
    for phase in ("preempted", "failed"):
        recorded(tmp_path / "run", MLflow(MLflowSettings(uri=store, experiment="e")), phase=phase)
    _, (run,) = runs_in(store, "e")
    assert run.info.status == "FAILED"


@pytest.mark.filterwarnings("ignore")
def test_a_store_that_is_not_there_ends_no_run(
    store: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    summary = recorded(tmp_path / "run", MLflow(MLflowSettings(uri=f"file://{tmp_path}/file")))
    assert summary["examples"] == 200
    first, last = lines_of(caplog)
    assert first.startswith("pslib: mlflow: ")
    assert re.fullmatch(r"pslib: mlflow: \d messages were not delivered", last)


def test_names_are_those_that_mlflow_allows() -> None:
    assert mlflow_runs._name("valid/recall@20") == "valid/recall_at_20"
    assert mlflow_runs._name("<b>") == "_b_"
    assert len(mlflow_runs._name("x" * 300)) == 250


@pytest.mark.filterwarnings("ignore")
def test_a_script_alone_gives_trackers_as_callbacks(store: str, tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 400)
    with receiver() as (url, taken), pslib.connect() as cluster:
        trackers = [MLflow(MLflowSettings(uri=store)), Webhook(WebhookSettings(url=url))]
        trainer = pslib.Trainer(
            CountingModel(), cluster, batch_rows=16, progress=False, out=tmp_path / "run", callbacks=trackers
        )
        trainer.fit(path)
        cluster.close()
    assert [taken[0]["event"], taken[-1]["event"]] == ["begin", "end"]
    _, (run,) = runs_in(store)
    assert run.data.params["batch_rows"] == "16"
    assert run.data.metrics["cluster/pushes_applied"] == 25.0


# --- settings


def test_a_job_file_names_its_trackers(tmp_path: Path) -> None:
    save(tmp_path, "train.parquet")
    trackers = "trackers: {tensorboard: true, mlflow: true, webhook: {url: 'https://chat/x', retries: 1}}\n"
    (tmp_path / "job.yaml").write_text(JOB + trackers, encoding="utf-8")
    settings = read_job(tmp_path / "job.yaml").trackers
    assert settings == TrackerSettings(
        tensorboard=True, mlflow=MLflowSettings(), webhook=WebhookSettings(url="https://chat/x", retries=1)
    )
    assert [type(one) for one in settings.callbacks] == [TensorBoard, MLflow, Webhook]
    assert TrackerSettings().callbacks == []


def test_no_tracker_is_told_the_secrets_of_another(tmp_path: Path) -> None:
    save(tmp_path, "train.parquet")
    trackers = "trackers: {webhook: {url: 'https://chat/secret'}, mlflow: {uri: 'http://me:secret@host/'}}\n"
    (tmp_path / "job.yaml").write_text(JOB + trackers, encoding="utf-8")
    told = settings_of_job(read_job(tmp_path / "job.yaml"))
    assert told["trackers.webhook.url"] == "(not shown)"
    assert told["trackers.mlflow.uri"] == "http://***@host/"
    assert not any("secret" in value for value in told.values())


def test_wrong_trackers_are_told_before_a_run_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, "train.parquet")
    (tmp_path / "job.yaml").write_text(JOB, encoding="utf-8")
    (line,) = refused(capsys, "train", tmp_path / "job.yaml", "--set", "trackers={webhook: {url: ftp://x}}")
    assert line == "trackers.webhook.url: expected http:// or https:// and a host, got 'ftp://x'"
    monkeypatch.setattr(mlflow_runs, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    (line,) = refused(capsys, "train", tmp_path / "job.yaml", "--set", "trackers.mlflow=true")
    assert line == "mlflow: it is not installed; `pip install mlflow-skinny` brings it"
    (line,) = refused(capsys, "train", tmp_path / "job.yaml", "--set", "trackers.tensorboard=true")
    assert line.startswith("tensorboard: tensorboardX is not installed")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigurationError, match="it is not installed"):
        MLflow(MLflowSettings())


@pytest.mark.cluster
def test_a_job_tells_its_trackers_once_for_all_its_trainers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path, "train.parquet")
    (tmp_path / "job.yaml").write_text(JOB, encoding="utf-8")
    with receiver() as (url, taken):
        hook = f"trackers={{tensorboard: true, webhook: {{url: '{url}'}}}}"
        arguments = ["--trainers", "2", "--servers", "1", "--set", hook, "--quiet"]
        assert main(["train", str(tmp_path / "job.yaml"), *arguments]) == 0, capsys.readouterr().err
    kinds = [one["event"] for one in taken]
    assert (kinds[0], kinds[-1], kinds.count("begin"), kinds.count("end")) == ("begin", "end", 1, 1)
    assert taken[-1]["about"]["trainers"] == 2
    assert taken[0]["about"]["training.batch_rows"] == "64"
    assert len(list((tmp_path / "run" / "tensorboard").iterdir())) == 1
