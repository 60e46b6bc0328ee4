"""Event files for TensorBoard: what stands in ``metrics.jsonl``, at the same moments."""

from __future__ import annotations

import errno
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.record_writer import RecordWriter

import pslib
from launch.cli.main import main
from pslib.errors import ConfigurationError
from pslib.recorder import RunRecorder
from pslib.recorder.event_files import TensorBoard
from tests.recorder.test_recorder import training
from tests.support.clusters import cluster_of
from tests.support.counting import CountingModel, write_examples
from tests.support.hand_clock import HandClock

MISSING = "tensorboard: tensorboardX is not installed; `pip install tensorboardX` brings it"


def events_in(folder: Path) -> Iterator[Event]:
    """TFRecord: length (8 bytes), its checksum (4), a serialized event, its checksum (4)."""
    for file in sorted((folder / "tensorboard").iterdir()):
        data = file.read_bytes()
        while data:
            length = int.from_bytes(data[:8], "little")
            yield Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]


def curves_in(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the steps and values of each tag."""
    found: dict[str, list[tuple[int, float]]] = {}
    for event in events_in(folder):
        for value in event.summary.value:
            found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def recorded(folder: Path, *looks: dict[str, Any]) -> RunRecorder:
    """A recorder that has seen these looks, one a second."""
    run = RunRecorder(folder, HandClock(), progress=False, callbacks=[TensorBoard()])
    for look in looks:
        run._clock.sleep_s(1.0)
        run.observe(look)
    return run


def test_the_figures_of_each_line_are_drawn_at_the_examples_of_the_whole_training(tmp_path: Path) -> None:
    looks = [training(count, examples_before=50, rows=count // 10) for count in (100, 300)]
    recorded(tmp_path, *looks).finish({"seed": 7})
    curves = curves_in(tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert curves["train/examples_per_s"] == [(one["examples"], one["examples_per_s"]) for one in lines]
    assert curves["train/loss"] == [(100, 0.5), (300, 0.5)]
    assert curves["cluster/rows"] == [(100, 10.0), (300, 30.0)]
    assert "train/auc" not in curves, "it is not defined yet"
    walls_s = [event.wall_time for event in events_in(tmp_path)][1:]
    assert walls_s[1] - walls_s[0] == pytest.approx(1.0)


def test_each_evaluation_is_a_point_of_its_own_curves(tmp_path: Path) -> None:
    results = [
        {"kind": "evaluate", "name": "valid", "auc": 0.75, "logloss": 0.5, "calibration": None},
        {"kind": "evaluate", "name": "", "label": "buy", "auc": 0.5, "logloss": 0.25, "calibration": 1.0},
    ]
    recorded(tmp_path, training(100), training(150, results=results)).finish({"seed": 7})
    curves = curves_in(tmp_path)
    assert (curves["valid/auc"], curves["valid/logloss"]) == ([(150, 0.75)], [(150, 0.5)])
    assert "valid/calibration" not in curves
    assert curves["evaluate/buy/calibration"] == [(150, 1.0)]


def test_a_ranking_is_a_point_of_a_curve_for_each_k(tmp_path: Path) -> None:
    ranked = {"kind": "rank", "name": "valid", "at": [10, 20], "recall": [0.25, 0.5], "mrr": [0, 0]}
    recorded(tmp_path, training(100, results=[{**ranked, "ndcg": [0, 0]}])).finish({"seed": 7})
    curves = curves_in(tmp_path)
    assert (curves["valid/recall@10"], curves["valid/recall@20"]) == ([(100, 0.25)], [(100, 0.5)])


def test_examples_that_are_trained_again_make_no_curve_go_back(tmp_path: Path) -> None:
    recorded(tmp_path, training(500), training(200), training(600)).finish({"seed": 7})
    assert [step for step, _ in curves_in(tmp_path)["train/examples_per_s"]] == [500, 500, 600]


def test_a_run_that_goes_on_adds_a_file_to_that_of_before(tmp_path: Path) -> None:
    for count in (100, 200):
        recorded(tmp_path, training(count)).close()
    assert [step for step, _ in curves_in(tmp_path)["train/examples_per_s"]] == [100, 200]


def test_a_disk_that_is_full_ends_the_events_and_neither_the_run_nor_its_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = recorded(tmp_path, training(100))

    def full(_self: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(RecordWriter, "flush", full)
    for count in (200, 300):
        run._clock.sleep_s(1.0)
        run.observe(training(count))
    assert run.finish({"seed": 7})["examples"] == 300
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3
    (line,) = [one.getMessage() for one in caplog.records if one.name.startswith("pslib.")]
    assert re.fullmatch(
        f"pslib: {tmp_path}/tensorboard/events.*: No space .*; it ends here, the run goes on", line
    )


def test_a_trainer_writes_them_beside_its_records(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 400)
    with pslib.connect() as cluster:
        pslib.Trainer(
            CountingModel(), cluster, batch_rows=16, progress=False, out=tmp_path / "run", tensorboard=True
        ).fit(path)
    assert curves_in(tmp_path / "run")["cluster/pushes_applied"][-1] == (400, 25.0)


def test_a_trainer_under_a_launcher_leaves_them_to_it_and_needs_no_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with cluster_of() as running:
        pslib.Trainer(CountingModel(), running.join(), tensorboard=True)


def test_a_run_with_them_is_told_before_anything_starts_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "script.py"
    script.touch()
    assert main(["launch", "--tensorboard", str(script)]) == 64
    assert capsys.readouterr().err == (
        "pslib: --tensorboard: expected --out beside it, the folder of its files\n"
    )
    with pslib.connect() as cluster:
        with pytest.raises(ConfigurationError, match=r"^tensorboard: expected out beside it, "):
            pslib.Trainer(CountingModel(), cluster, progress=False, tensorboard=True)
        monkeypatch.setitem(sys.modules, "tensorboardX", None)
        with pytest.raises(ConfigurationError) as error:
            pslib.Trainer(CountingModel(), cluster, progress=False, out=tmp_path / "run", tensorboard=True)
        assert str(error.value) == MISSING
    assert main(["launch", "--tensorboard", "--out", str(tmp_path / "run"), str(script)]) == 64
    assert capsys.readouterr().err == f"pslib: {MISSING}\n"
    assert not (tmp_path / "run").exists()
