"""A trainer whose table ages and lets rows go: its time goes on, and nothing overtakes a maintenance."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pslib.client.pending import PendingPush
from pslib.table.optimizers import SGD
from pslib.table.policies import ByAge, ByNorm, Eviction
from pslib.table.tables import TableSpec
from tests.support.clusters import cluster_of
from tests.support.counting import CountingModel, write_examples
from tests.support.training import one_trainer, trainer_on

TABLE = CountingModel().table()


def last_seen(checkpoint: Path) -> np.ndarray:
    """Return the last-seen times of all rows of a checkpoint on one server."""
    (file,) = checkpoint.glob("counts.*.arrow")
    with pa.OSFile(str(file)) as source:
        return pa.ipc.open_file(source).read_all()["last_seen"].to_numpy()


def about(checkpoint: Path) -> dict[str, Any]:
    return dict(json.loads((checkpoint / "manifest.json").read_text())["about"])


def trained(path: Path, place: Path, table: TableSpec, load: Path | None = None) -> None:
    with one_trainer(table=table) as trainer:
        trainer._seconds = 1000.0
        if load:
            trainer.load(load)
        trainer.fit(path)
        trainer.save(place)


def test_steps_and_seconds_go_on_where_a_loaded_training_was(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 100)
    for clock in ("steps", "seconds"):
        first, second = tmp_path / f"{clock}-1", tmp_path / f"{clock}-2"
        table = replace(TABLE, eviction=(ByAge(1e6),), clock=clock)
        trained(path, first, table)
        trained(path, second, table, load=first)
        assert (about(first)["steps"], about(second)["steps"]) == (20, 40)
        assert about(second)["seconds"] > about(first)["seconds"] > 1000
        if clock == "steps":
            assert (last_seen(first).max(), last_seen(second).min(), last_seen(second).max()) == (19, 20, 39)
        else:
            assert last_seen(second).min() >= last_seen(first).max() >= 1000


def test_the_warmup_goes_on_where_a_loaded_training_was(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 100)
    trained(path, tmp_path / "first", TABLE)
    with one_trainer(table=TABLE, staleness=4, warmup_batches=40) as trainer:
        assert trainer._mode.staleness.now == 0
        trainer.load(tmp_path / "first")
        assert about(tmp_path / "first")["steps"] == 20
        assert trainer._mode.staleness.now == 2  # half-way, neither 0 nor 4


def test_an_evaluation_is_at_the_step_at_which_training_stands(tmp_path: Path) -> None:
    """Weights that have decayed since a row was pushed last show so, after a load too."""
    path = write_examples(tmp_path / "a.parquet", 100)
    part = replace(TABLE.parts[0], optimizer=SGD(1.0, weight_decay=0.5))
    decaying = replace(TABLE, parts=(part,))
    seen: list[np.ndarray] = []

    class Remembering(CountingModel):
        def table(self) -> TableSpec:
            return decaying

        def predict(self, batch, rows, dense):
            seen.append(rows[batch.sparse[:, 0], 0])
            return super().predict(batch, rows, dense)

    with one_trainer(Remembering()) as trainer:
        trainer.fit(path)
        trainer.evaluate(path)
        trainer.save(tmp_path / "saved")
    with one_trainer(Remembering()) as trainer:
        trainer.load(tmp_path / "saved")
        trainer.evaluate(path)
    first, second = np.concatenate(seen[: len(seen) // 2]), np.concatenate(seen[len(seen) // 2 :])
    # one batch was 1 step ago, one 2 steps, ..., one 20: each example's row was 1 then
    assert sorted(set(first.tolist())) == [0.5**steps for steps in range(20, 0, -1)]
    assert (first == second).all()


class Later:
    """A maintenance that begins a little later than it was asked for."""

    def __init__(self, start: Callable[[], PendingPush]) -> None:
        self._start = start

    def on_done(self, callback: Callable[[], None]) -> None:
        threading.Timer(0.02, self._go, [callback]).start()

    def _go(self, callback: Callable[[], None]) -> None:
        self._pending = self._start()
        self._pending.on_done(callback)

    def wait(self, timeout_s: float) -> None:
        self._pending.wait(timeout_s)


def test_no_pull_overtakes_the_maintenance_before_it(tmp_path: Path) -> None:
    """With staleness 0, also where the maintenance is slow to start."""
    path = write_examples(tmp_path / "a.parquet", 200)
    all_leave: tuple[Eviction, ...] = (ByNorm(1e9),)
    counted: list[int] = []

    def look(batch, rows) -> None:
        counted.append(int(rows[batch.sparse[0, 1], 0]))

    with cluster_of(2, shard_threads=2) as running:
        trainer = trainer_on(
            running.join(),
            CountingModel(look),
            table=replace(TABLE, eviction=all_leave),
            staleness=0,
            maintain_every_batches=4,
        )
        maintain = trainer._maintain
        trainer._maintain = lambda lease, plan: Later(partial(maintain, lease, plan))  # type: ignore
        trainer.fit(path)
    assert counted == [0, 5, 10, 15] * 10
