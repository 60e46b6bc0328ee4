"""History of a trainer: what it trains and evaluates, by time and at the end of each epoch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

import pslib
from pslib.recorder import history
from pslib.recorder.records import COLUMNS
from rec_models import TwoTower
from tests.support.clusters import cluster_of
from tests.support.counting import CountingModel, write_examples
from tests.support.counting_trainers import (
    QUICK,
    ROWS,
    StopError,
    counted_examples,
    counting,
    slowly,
    stop_in,
)
from tests.support.hand_clock import HandClock
from tests.support.training import at_step, one_trainer, trainer_on

examples = pytest.fixture(counted_examples, scope="module")


@pytest.fixture(autouse=True)
def _no_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only ends of epochs are recorded, however slow the machine is."""
    monkeypatch.setattr(history, "EVERY_S", float("inf"))


def rows_of(trainer: pslib.Trainer, *columns: str) -> list[tuple[Any, ...]]:
    table = trainer.history.table
    return list(zip(*(table.column(name).to_pylist() for name in columns), strict=True))


def on_clock(trainer: pslib.Trainer, clock: HandClock) -> None:
    """Let a trainer's history read a clock that the test moves."""
    trainer._history._clock, trainer._history._start_s = clock, clock.now_s()


def test_progress_is_recorded_once_a_second_and_at_the_end_of_each_epoch(tmp_path: Path) -> None:
    path, clock = write_examples(tmp_path / "a.parquet", 40), HandClock()
    model = CountingModel(lambda batch, rows: clock.sleep_s(0.375))
    with one_trainer(model, staleness=0) as trainer:
        on_clock(trainer, clock)
        trainer.history.every_s = 1.0
        trainer.fit(path, epochs=2)
    assert rows_of(trainer, "event", "seconds", "epoch", "examples") == [
        ("progress", 1.125, 0, 10),
        ("progress", 2.25, 0, 25),
        ("progress", 3.375, 1, 40),
        ("progress", 4.5, 1, 55),
        ("progress", 6.0, 2, 80),
    ]
    assert rows_of(trainer, "loss")[0] == (0.5,)
    speeds = [speed for (speed,) in rows_of(trainer, "examples_per_s")]
    assert speeds[1] == pytest.approx(15 / 1.125)
    assert speeds[-1] == pytest.approx(25 / 1.5), "the last quarter of a second is part of the second before"


def test_each_evaluation_is_a_record_of_the_same_table(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 40)
    with one_trainer() as trainer:
        seen = trainer.fit(path, epochs=2, valid=path)
        tested = trainer.evaluate(path, name="test")
        assert trainer.history.table.column_names == list(COLUMNS)
        assert rows_of(trainer, "event", "name", "epoch", "examples", "evaluated") == [
            ("progress", None, 1, 40, None),
            ("evaluation", "valid", 1, 40, 40),
            ("progress", None, 2, 80, None),
            ("evaluation", "valid", 2, 80, 40),
            ("evaluation", "test", 2, 80, 40),
        ]
        assert {loss for (loss,) in rows_of(trainer, "loss")} == {0.5}, "a plot has no gaps"
        figures = [row for row in rows_of(trainer, "auc", "logloss", "calibration") if row[1] is not None]
        assert figures == [(one.auc, one.logloss, one.calibration) for one in [*seen, tested]]


def test_predictions_of_data_without_a_label_are_no_evaluation(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 40)
    with one_trainer() as trainer:
        trainer.evaluate({"score": [0.5], "id": [1], "same": [7]}, predictions=tmp_path / "found")
        assert len(trainer.history) == 0
        trainer.evaluate(path, predictions=tmp_path / "more")
        assert len(trainer.history) == 1


def test_a_ranking_is_a_record_for_each_k(tmp_path: Path) -> None:
    clicks = {"user": np.arange(40) % 4, "item": np.arange(40) % 5}
    model = TwoTower(pslib.Schema(label=None, sparse=["user", "item"]), item=("item",), dim=4, out=4)
    with pslib.connect() as cluster:
        trainer = pslib.Trainer(model, cluster, batch_rows=8, progress=False)
        (found,) = trainer.fit_and_rank(clicks, clicks, at=(1, 3))
    assert rows_of(trainer, "event", "name", "k", "recall", "ndcg")[1:] == [
        ("evaluation", "valid", k, found.recall[k], found.ndcg[k]) for k in (1, 3)
    ]


def test_an_interrupted_fit_leaves_what_it_trained_and_the_next_one_counts_on(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 40)

    def interrupt() -> None:
        raise KeyboardInterrupt

    with one_trainer(CountingModel(at_step(4, interrupt)), staleness=0) as trainer:
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(path)
        assert rows_of(trainer, "epoch", "examples") == [(0, 15)]
        trainer.fit(path)
        assert rows_of(trainer, "epoch", "examples") == [(0, 15), (1, 55)]


def test_time_between_two_fits_is_no_slow_training(tmp_path: Path) -> None:
    path, clock = write_examples(tmp_path / "a.parquet", 40), HandClock()
    with one_trainer(CountingModel(lambda batch, rows: clock.sleep_s(0.125))) as trainer:
        on_clock(trainer, clock)
        trainer.fit(path)
        clock.sleep_s(3600.0)
        trainer.fit(path)
        assert [speed for (speed,) in rows_of(trainer, "examples_per_s")] == [40.0, 40.0]


def test_epochs_count_on_after_the_load_of_a_checkpoint(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 40)
    with one_trainer() as trainer:
        trainer.fit(path, epochs=2)
        trainer.save(tmp_path / "saved")
    with one_trainer() as trainer:
        trainer.load(tmp_path / "saved")
        trainer.fit(path)
        assert rows_of(trainer, "epoch", "examples") == [(3, 40)]


def test_examples_count_on_in_a_script_that_goes_on_with_an_unfinished_fit(
    examples: str, tmp_path: Path
) -> None:
    def script(trainer: pslib.Trainer) -> None:
        trainer.fit(examples)
        trainer.evaluate(examples)
        trainer.fit(examples)

    with cluster_of(timing=QUICK) as running:
        trainer = counting(running.join())
        script(trainer)
        expected = rows_of(trainer, "event", "epoch", "examples")
    every = pslib.CheckpointSettings(tmp_path / "saved", every_batches=20)
    with cluster_of(timing=QUICK) as running:
        trainer = counting(running.join(), stop_in(3, 100, tmp_path / "saved"), checkpoint=every)
        with pytest.raises(StopError):
            script(trainer)
    with cluster_of(timing=QUICK) as running:
        trainer = counting(running.join(), checkpoint=every)
        trainer.load(tmp_path / "saved")
        script(trainer)
        assert rows_of(trainer, "event", "epoch", "examples") == expected[1:]


def test_each_of_several_trainers_has_the_history_of_its_own_share(examples: str) -> None:
    def trained(cluster: pslib.Cluster) -> list[int]:
        trainer = counting(cluster, slowly)
        trainer.fit(examples)
        result = trainer.evaluate(examples)
        *progress, evaluation = trainer.history.records
        assert (evaluation.auc, evaluation.evaluated) == (result.auc, ROWS)
        assert evaluation.examples == trainer._progress.examples
        return [one.examples for one in progress]

    with cluster_of(trainers=2, timing=QUICK) as running:
        shares = running.results(trained, trained)
    assert sum(sum(share) for share in shares) == ROWS


def test_two_trainers_of_one_connection_count_their_own_examples(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 40)
    with cluster_of() as running:
        cluster = running.join()
        both = [trainer_on(cluster), trainer_on(cluster, share=True)]
        for trainer in (*both, both[0]):
            trainer.fit(path)
        assert [rows_of(one, "epoch", "examples") for one in both] == [[(1, 40), (2, 80)], [(1, 40)]]


def test_windows_of_a_stream_are_recorded_with_the_files_before_them(tmp_path: Path) -> None:
    for number in range(2):
        write_examples(tmp_path / f"{number}.parquet", 40, first=40 * number)
    (tmp_path / "_STOP").touch()
    with one_trainer() as trainer:
        windows = list(trainer.fit_stream(tmp_path, pslib.StreamSettings(poll_s=0.01, window_files=1)))
        assert len(windows) == 2
        assert rows_of(trainer, "event", "name", "files", "examples") == [
            ("evaluation", "window", 0, 0),
            ("progress", None, None, 40),
            ("evaluation", "window", 1, 40),
            ("progress", None, None, 80),
        ]


def test_the_records_of_a_script_name_its_model_and_have_the_columns_of_its_history(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 40)
    with pslib.connect() as cluster:
        trainer = trainer_on(cluster, out=tmp_path / "run")
        trainer.fit(path, valid=path)
        rows = trainer.history.table.filter(pc.field("event") == "evaluation").to_pylist()
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    (told,) = [line for line in lines if line["event"] == "evaluation"]
    apart = {"seconds": 0, "loss": 0}  # measured at other moments
    assert [told | apart] == [rows[0] | apart]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["job"], summary["model"]) == (None, "CountingModel")
