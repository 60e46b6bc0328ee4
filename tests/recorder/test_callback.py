"""Callbacks of a run: what its recorder calls them with, once for a run and never by batch."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import pslib
from pslib.clock import utc_now_s
from pslib.recorder import RunRecorder
from tests.recorder.test_recorder import training
from tests.support.clusters import cluster_of
from tests.support.counting import CountingModel, write_examples
from tests.support.hand_clock import HandClock
from tests.support.training import trainer_on


class Diary(pslib.Callback):
    """Notes what it is called with, and the threads that call."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, Any, Mapping[str, Any]]] = []
        self.threads: set[str] = set()
        self.ended = threading.Event()

    def _note(self, what: str, trainer: Any, about: Mapping[str, Any]) -> None:
        self.notes.append((what, trainer, about))
        self.threads.add(threading.current_thread().name)

    def on_run_begin(self, trainer: Any, info: Mapping[str, Any]) -> None:
        self._note("begin", trainer, info)

    def on_progress(self, trainer: Any, record: Mapping[str, Any]) -> None:
        self._note(record["event"], trainer, record)

    def on_event(self, trainer: Any, event: Mapping[str, Any]) -> None:
        self._note(event["kind"], trainer, event)

    def on_run_end(self, trainer: Any, summary: Mapping[str, Any]) -> None:
        self._note("end", trainer, summary)
        self.ended.set()

    @property
    def kinds(self) -> list[str]:
        return [what for what, _, _ in self.notes]

    def of(self, kind: str) -> list[Mapping[str, Any]]:
        return [about for what, _, about in self.notes if what == kind]


class Fails(Diary):
    def on_progress(self, trainer: Any, record: Mapping[str, Any]) -> None:
        super().on_progress(trainer, record)
        raise ValueError("no such column\nin the table")


def recorded(folder: Path | None, *looks: dict[str, Any], callbacks: list[pslib.Callback]) -> RunRecorder:
    """A recorder that has seen these looks, one a second."""
    run = RunRecorder(folder, HandClock(), progress=False, callbacks=callbacks)
    for look in looks:
        run._clock.sleep_s(1.0)
        run.observe(look)
    return run


def test_the_methods_get_begin_records_events_and_the_summary_in_their_order(tmp_path: Path) -> None:
    diary, result = Diary(), {"kind": "evaluate", "name": "valid", "auc": 0.75, "logloss": 0.5}
    looks = [
        training(100),
        training(200, epoch=2, saved="run/checkpoint-2", results=[result]),
        training(300, epoch=2, saved="run/checkpoint-2", results=[result], events=["server 1 is lost"]),
    ]
    run = recorded(tmp_path, *looks, callbacks=[diary])
    summary = run.finish({"seed": 7})
    run.close()
    assert diary.kinds == [
        "begin", "progress", "progress", "evaluation", "epoch", "saved", "progress", "note", "end"
    ]  # fmt: skip
    assert diary.of("begin")[0]["folder"] == str(tmp_path)
    assert [one["examples"] for one in diary.of("progress")] == [100, 200, 300]
    assert diary.of("evaluation")[0]["auc"] == 0.75
    assert diary.of("epoch")[0]["text"] == "epoch 2 of 2 is done: loss 0.5000, AUC -"
    assert diary.of("saved")[0]["path"] == "run/checkpoint-2"
    assert diary.of("note")[0]["text"] == "server 1 is lost"
    assert diary.of("end") == [summary]


def test_what_a_run_had_reached_before_its_records_began_is_no_event(tmp_path: Path) -> None:
    diary = Diary()
    recorded(tmp_path, training(100, epoch=3, saved="run/checkpoint-3"), callbacks=[diary]).close()
    assert diary.kinds == ["begin", "progress", "end"]
    assert diary.of("end") == [{"phase": "training"}]


def test_events_that_a_resumed_coordinator_still_knows_are_not_told_again() -> None:
    diary, old = Diary(), {"number": 3, "at_s": 1e9, "kind": "lost", "role": "server", "rank": 0, "text": "x"}
    now = old | {"number": 4, "at_s": utc_now_s() + 60.0, "kind": "back"}
    recorded(None, training(100), training(200, events=[old, now]), callbacks=[diary]).close()
    assert diary.kinds == ["begin", "progress", "progress", "back", "end"]
    lines = [training(100, events=["of before"]), training(200, events=["of before", "of now"])]
    recorded(None, *lines, callbacks=[diary]).close()
    assert [one["text"] for one in diary.of("note")] == ["of now"]


def test_an_event_is_told_once_by_its_number() -> None:
    diary, lost = Diary(), {"number": 4, "kind": "lost", "role": "server", "rank": 1, "text": "killed"}
    looks = [training(100, events=[lost]), training(200, events=[lost, lost | {"number": 5, "kind": "back"}])]
    recorded(None, *looks, callbacks=[diary]).close()
    assert [one["kind"] for one in diary.of("lost") + diary.of("back")] == ["lost", "back"]


def test_one_that_fails_is_told_in_a_line_and_left_out_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fails, diary = Fails(), Diary()
    recorded(tmp_path, training(100), training(200), callbacks=[fails, diary]).finish({"seed": 7})
    assert fails.kinds == ["begin", "progress"]
    assert diary.kinds == ["begin", "progress", "progress", "end"]
    assert [one.getMessage() for one in caplog.records] == [
        "pslib: Fails.on_progress: ValueError: no such column; it ends here, the run goes on"
    ]


def test_a_script_alone_calls_them_from_its_recorder_and_with_its_trainer(tmp_path: Path) -> None:
    path, diary = write_examples(tmp_path / "a.parquet", 400), Diary()
    with pslib.connect() as cluster:
        trainer = pslib.Trainer(
            CountingModel(), cluster, batch_rows=16, seed=5, progress=False, callbacks=[diary]
        )
        trainer.fit(path)
    assert diary.kinds[0] == "begin"
    assert diary.kinds[-1] == "end"
    assert {"joined", "left"} <= set(diary.kinds)
    assert {id(one) for _, one, _ in diary.notes} == {id(trainer)}
    begin, end = diary.of("begin")[0], diary.of("end")[0]
    assert (begin["name"], begin["folder"], begin["settings"]["batch_rows"]) == ("CountingModel", None, "16")
    assert (end["examples"], end["seed"], end["phase"]) == (400, 5, "done")
    assert diary.of("progress")[-1]["examples"] == 400
    assert len(diary.of("progress")) < 400 / 16, "they come by time, not by batch"


def test_of_several_trainers_that_of_rank_0_calls_them_with_the_figures_of_all(tmp_path: Path) -> None:
    path, diaries = write_examples(tmp_path / "a.parquet", 400), dict[int, Diary]()

    def script(cluster: pslib.Cluster) -> None:
        diary = diaries[cluster.rank] = Diary()
        trainer_on(cluster, batch_rows=10, callbacks=[diary]).fit(path)

    with cluster_of(trainers=2) as running:
        running.results(script, script)
    assert diaries[1].kinds == []
    assert (diaries[0].kinds[0], diaries[0].kinds[-1]) == ("begin", "end")
    assert diaries[0].of("end")[0]["examples"] == 400
    assert diaries[0].of("end")[0]["trainers"] == 2


def test_callbacks_of_a_run_keep_no_epoch_from_beginning_before_the_last_one_ends(tmp_path: Path) -> None:
    """`on_epoch_end` does; what only watches must not change how a training goes."""
    path, diary = write_examples(tmp_path / "a.parquet", 40), Diary()
    with cluster_of() as running:
        trainer = trainer_on(running.join(), callbacks=[diary])
        assert not trainer._callbacks.by_epoch
        trainer.fit(path, epochs=2)
