"""Cuts beside others: trainers that share parameters, a fit that failed before, tables of other clients."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import pslib
from pslib.batch import Batch
from pslib.checkpoint import newest
from pslib.checkpoint.verification import verify_checkpoint
from pslib.client.pending import Pending, PendingPush
from pslib.trainer.checkpoints.online import TrainerCuts
from pslib.trainer.checkpoints.pause import CheckpointPause
from pslib.trainer.pipeline import pipeline
from tests.support.clients import KEYS, PLAIN, ones
from tests.support.clusters import cluster_of
from tests.support.counting_trainers import (
    QUICK,
    ROWS,
    StopError,
    counted_examples,
    counting,
    counts_in,
    saved_in,
    slowly,
    stop_after,
)

examples = pytest.fixture(counted_examples, scope="module")


@pytest.mark.parametrize("second", ["as the first", "without checkpoints"])
def test_checkpoints_are_those_of_the_trainer_that_fits_where_two_share_parameters(
    examples: str, tmp_path: Path, second: str
) -> None:
    every = pslib.CheckpointSettings(tmp_path / "saved", every_batches=20)
    other = pslib.CheckpointSettings(tmp_path / "other", every_batches=20)
    with cluster_of(2, timing=QUICK) as running:
        cluster = running.join()
        trainer = counting(cluster, stop_after(60, tmp_path / "saved"), checkpoint=every)
        counting(cluster, share=True, checkpoint=other if second == "as the first" else None)
        with pytest.raises(StopError):
            trainer.fit(examples)
    assert not (tmp_path / "other").exists()
    with cluster_of(2, timing=QUICK) as running:
        trainer = counting(running.join(), checkpoint=every)
        trainer.load(tmp_path / "saved")
        assert 0 < counts_in(trainer)[1] < ROWS
        trainer.fit(examples)
        counts, examples_seen = counts_in(trainer)
        assert (set(counts.values()), examples_seen) == ({1.0}, ROWS)


def test_a_client_that_trains_nothing_holds_up_no_checkpoint_and_leads_none(
    examples: str, tmp_path: Path
) -> None:
    every, trained = pslib.CheckpointSettings(tmp_path / "saved", every_batches=20), threading.Event()
    events: list[str] = []

    def script(cluster: pslib.Cluster) -> None:
        if cluster.rank == 0:
            assert trained.wait(60)
            return
        try:
            counting(cluster, slowly, checkpoint=every).fit(examples)
            events.extend(cluster.status()["events"])
        finally:
            trained.set()

    with cluster_of(2, trainers=2, timing=QUICK) as running:
        assert running.run(script, script) == [None, None]
    assert [event for event in events if "checkpoint not made" in event] == []
    assert verify_checkpoint(newest(str(tmp_path / "saved"))).problems == ()


def test_of_what_a_client_that_trains_nothing_has_pushed_only_what_came_after_a_checkpoint_can_be_lost(
    examples: str, tmp_path: Path
) -> None:
    """A server that begins there has the rest: all that a notebook had ever pushed was counted as lost."""
    every, trained = pslib.CheckpointSettings(tmp_path / "saved", every_batches=20), threading.Event()
    pushed = threading.Event()

    def script(cluster: pslib.Cluster) -> tuple[int, int] | None:
        client = cluster.client
        if cluster.rank == 0:
            client.setup([PLAIN])
            client.push({"plain": (KEYS, ones(2, 2))}).wait()
            pushed.set()
            assert trained.wait(60)
            acknowledged = client.session.acknowledged
            return acknowledged.lost(0, "cut 1", acknowledged.count(0))
        try:
            assert pushed.wait(60)
            counting(cluster, slowly, checkpoint=every).fit(examples)
            return None
        finally:
            trained.set()

    with cluster_of(trainers=2, timing=QUICK) as running:
        assert running.run(script, script) == [(0, 1), None]


def test_trainers_that_share_parameters_may_fit_in_turns_and_their_work_adds_up(
    examples: str, tmp_path: Path
) -> None:
    """One whose fit failed while it paused for a cut is not paused for ever, though another one fits next."""
    every = pslib.CheckpointSettings(tmp_path / "saved", every_batches=20, keep_last=100)
    with cluster_of(timing=QUICK) as running:
        cluster = running.join()
        first = counting(cluster, slowly, checkpoint=every)
        second = counting(cluster, share=True)
        report = cluster.client.member.progress
        first.fit(examples)
        assert report()["examples"] == ROWS
        first._tools.gate.close(1 << 30, -1)
        second.fit(examples)
        assert report()["examples"] == 2 * ROWS
        saved = len(list((tmp_path / "saved").iterdir()))
        first.fit(examples)
        assert report()["examples"] == report()["staleness_count"] * 16 == 3 * ROWS
        assert len(list((tmp_path / "saved").iterdir())) > saved > 0
        assert set(counts_in(first)[0].values()) == {3.0}


def test_a_push_of_a_failed_fit_that_is_acknowledged_in_the_next_one_is_in_no_cuts_way(
    examples: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "SETTLE_S", 0.05)
    held, is_held, batches = Pending[Any]("a push"), threading.Event(), Counter[str]()

    def on_step(batch: Batch, rows: Any) -> None:
        slowly(batch, rows)
        batches["n"] += 1
        if batches["n"] == 11:
            assert is_held.wait(20)
            raise StopError
        if batches["n"] == 16:
            held.succeed(None)

    every = pslib.CheckpointSettings(tmp_path / "saved", every_batches=20)
    with cluster_of(2, timing=QUICK) as running:
        cluster = running.join()
        push, pushes = cluster.client.push, itertools.count(1)

        def hold_one(*arguments: Any, **named: Any) -> PendingPush:
            pending = push(*arguments, **named)
            if next(pushes) != 10:
                return pending
            is_held.set()
            return held

        monkeypatch.setattr(cluster.client, "push", hold_one)
        trainer = counting(cluster, on_step, checkpoint=every, staleness=2, warmup_batches=0)
        with pytest.raises(StopError):
            trainer.fit(examples)
        assert not (tmp_path / "saved").exists()
        trainer.fit(examples)
        assert held.done
        assert trainer._tools.gate._inside == 0
        events = running.embedded.coordinator.session.events
    assert any(line.startswith("saved ") for line in events), events
    verify_checkpoint(newest(str(tmp_path / "saved")))


@pytest.mark.parametrize("cut", [False, True])
def test_tables_of_other_clients_are_saved_and_come_back_with_the_model(
    examples: str, tmp_path: Path, cut: bool
) -> None:
    """Tables may be set up again before the checkpoint is loaded, or later."""
    item, keys = pslib.TableSpec("item", (pslib.PartSpec("v", 4),)), np.arange(50, dtype=np.uint64)
    every = pslib.CheckpointSettings(tmp_path / "saved", every_batches=20) if cut else None
    with cluster_of(2, timing=QUICK) as running:
        trainer = counting(running.join(), slowly, checkpoint=every)
        client = trainer.cluster.client
        client.setup([item])
        client.push({"item": (keys, np.ones((50, 4), np.float32))}).wait()
        expected = client.pull({"item": keys}).wait().rows["item"]
        trainer.fit(examples)
        if not cut:
            trainer.save(tmp_path / "saved", keep_last=1)
    assert [one["name"] for one in saved_in(tmp_path / "saved")["tables"]] == ["counts", "item"]
    assert verify_checkpoint(newest(str(tmp_path / "saved"))).ok
    for before in (True, False):
        with cluster_of(1, partition_bits=8, timing=QUICK) as running:
            trainer = counting(running.join())
            client = trainer.cluster.client
            if before:
                client.setup([item])
            trainer.load(tmp_path / "saved")
            client.setup([item])
            assert np.array_equal(client.pull({"item": keys}).wait().rows["item"], expected)


# --- without a cluster


class Door:
    """In place of a gate: what it was told last."""

    is_open = True

    def close(self, cut: int, target: int, held_back: bool) -> None:
        self.is_open = False

    def open(self) -> None:
        self.is_open = True


def a_client() -> Any:
    endpoint = SimpleNamespace(lock=threading.Lock(), session=None, ask=lambda *_: None)
    member = SimpleNamespace(on_cut=None, incarnation=1, coordinator="c")
    return SimpleNamespace(rank=0, member=member, endpoint=endpoint)


def test_a_trainer_that_fits_hears_of_cuts_and_leads_none_that_another_has_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TrainerCuts, "_run", lambda self, led: None)
    client, doors = a_client(), (Door(), Door())
    first, second = (TrainerCuts(client, door, None, None) for door in doors)  # type: ignore[arg-type]
    heard = client.member.on_cut
    first.follow()
    assert client.member.on_cut is heard, "it may be training as the second one is made"
    client.member.on_cut({"number": 1, "phase": "pause", "leader": 0})
    assert first._led is not None
    assert [door.is_open for door in doors] == [False, True]
    second.follow()
    assert first._led is None
    assert [door.is_open for door in doors] == [True, True]
    client.member.on_cut({"number": 1, "phase": "begin", "leader": 0})
    assert second._led is None
    assert [door.is_open for door in doors] == [True, False]
    client.member.on_cut({"number": 2, "phase": "near", "leader": 0})
    assert second._led is not None


def test_a_batch_of_an_earlier_job_that_waits_at_the_gate_is_turned_away() -> None:
    gate, let_in = CheckpointPause(a_client(), SimpleNamespace(held=list)), list[bool]()  # type: ignore[arg-type]
    earlier = gate.begin_job(False)
    gate.close(7, -1)
    waits = threading.Thread(target=lambda: let_in.append(earlier.enter(0, lambda: False)), daemon=True)
    waits.start()
    job = gate.begin_job(False)
    waits.join(20)
    assert let_in == [False]
    gate.open()
    assert job.enter(0, lambda: False)
    earlier.ended()
    assert gate._inside == 1
    job.ended()
    assert gate._inside == 0
