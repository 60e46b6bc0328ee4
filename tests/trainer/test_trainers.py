"""Several trainers: collective calls, leases that change hands, scripts that disagree."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from pslib.client.pending import PendingPush
from pslib.cluster import Cluster
from pslib.errors import ConfigurationError, ServerLeftError, UnavailableError
from pslib.metrics.metrics import EvalResult, ScoreCounts
from pslib.table.policies import Score
from pslib.trainer.collective import HeldLease
from pslib.trainer.pipeline.pace import LeasePlan
from tests.support.clusters import cluster_of, vanish
from tests.support.counting import CountingModel, write_examples
from tests.support.training import UNHURRIED, at_step, counts_of, examples_counted, held_until, trainer_on
from tests.support.waiting import PATIENCE_S

# --- several trainers


def test_two_trainers_train_on_every_example_once(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 230)
    steps, both = [0, 0], threading.Barrier(2)

    def script(rank: int) -> Callable[[Cluster], np.ndarray]:
        def look(batch, rows) -> None:
            steps[rank] += 1
            if steps[rank] == 1:
                both.wait(PATIENCE_S)
            time.sleep(0.001)

        def run(cluster: Cluster) -> np.ndarray:
            trainer_on(cluster, CountingModel(look)).fit(path, epochs=2)
            assert examples_counted(cluster) == 460
            return counts_of(cluster, np.arange(230))

        return run

    with cluster_of(2, trainers=2) as running:
        counts = running.run(script(0), script(1))
        status = running.last_status()
    assert all((one == 2).all() for one in counts)
    assert min(steps) > 0
    assert status["examples"] == 460
    assert status["pushes_sent"] == status["pushes_applied"] == sum(steps)


def test_merged_figures_of_two_trainers_are_those_of_all_examples(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 230)
    table = pq.read_table(path)
    expected = ScoreCounts.of(table["score"].to_numpy(), table["label"].to_numpy()).result()

    def run(cluster: Cluster) -> EvalResult:
        return trainer_on(cluster).evaluate(path)

    with cluster_of(trainers=2) as running:
        assert running.run(run, run) == [expected, expected]


def test_a_trainer_that_comes_late_goes_through_what_is_done(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 100)

    def script(cluster: Cluster) -> EvalResult:
        trainer = trainer_on(cluster)
        trainer.fit(path)
        return trainer.evaluate(path)

    with cluster_of() as running:
        first = running.join()
        result = script(first)
        second = running.join()
        assert script(second) == result
        assert (counts_of(second, np.arange(100)) == 1).all()


def test_leases_of_a_trainer_that_vanishes_are_finished_by_another(tmp_path: Path) -> None:
    """The trainer falls silent within a lease, with pushes under way: every example still counts once."""
    path = write_examples(tmp_path / "a.parquet", 400)
    vanished = threading.Event()

    def dying(cluster: Cluster) -> None:
        model = CountingModel(at_step(7, lambda: vanish(cluster, vanished), 0.002))
        trainer_on(cluster, model, staleness=3).fit(path)

    def living(cluster: Cluster) -> np.ndarray:
        trainer_on(cluster, CountingModel(held_until(vanished)), staleness=3).fit(path)
        assert examples_counted(cluster) == 400
        return counts_of(cluster, np.arange(400))

    with cluster_of(2, trainers=2, timing=UNHURRIED) as running:
        died, counts = running.run(dying, living)
        assert vanished.is_set()
        status = running.embedded.last_status()
    assert isinstance(died, UnavailableError)
    assert (counts == 1).all()
    assert status["examples"] == status["examples_total"] == 400
    assert any("is lost" in event and "leases go to the others" in event for event in status["events"])


def test_a_trainer_that_is_lost_by_mistake_is_refused_when_it_comes_back(tmp_path: Path) -> None:
    """The trainer was only slow: its leases have gone to the other; its late pushes must not count again."""
    path = write_examples(tmp_path / "a.parquet", 400)
    pushed_late: list[int] = []
    silent, trained, back = (threading.Event() for _ in range(3))

    def slow(cluster: Cluster) -> None:
        steps = 0

        def look(batch, rows) -> None:
            nonlocal steps
            steps += 1
            if steps == 7:
                cluster.client.member.stop_heartbeats()
                silent.set()
                assert trained.wait(PATIENCE_S)
            if steps >= 7:
                pushed_late.append(steps)

        try:
            trainer_on(cluster, CountingModel(look), staleness=3).fit(path)
        finally:
            back.set()

    def living(cluster: Cluster) -> np.ndarray:
        trainer_on(cluster, CountingModel(held_until(silent)), staleness=3).fit(path)
        trained.set()
        assert back.wait(PATIENCE_S)
        assert examples_counted(cluster) == 400
        return counts_of(cluster, np.arange(400))

    with cluster_of(2, trainers=2, timing=UNHURRIED) as running:
        came_back, counts = running.run(slow, living)
    assert isinstance(came_back, UnavailableError)
    assert pushed_late
    assert (counts == 1).all()


def test_a_save_is_made_again_when_a_server_leaves_before_it_has_answered(tmp_path: Path) -> None:
    """Its rows are others' by then; the trainer ended with 69, and was started again."""
    path, checkpoint = write_examples(tmp_path / "a.parquet", 40), tmp_path / "checkpoint"
    tried: list[str] = []
    with cluster_of(2) as running:
        cluster = running.join()
        trainer, save_files = trainer_on(cluster), cluster.client.save_files
        trainer.fit(path)

        def is_left_once(place: str, stem: str) -> list[dict[str, object]]:
            entries = save_files(place, stem)
            tried.append(stem)
            if len(tried) == 1:
                raise ServerLeftError("server 1 at tcp://s:1 has left the cluster, and had not answered")
            return entries

        cluster.client.save_files = is_left_once
        trainer.save(checkpoint)
        trainer.load(checkpoint)
        assert (counts_of(cluster, np.arange(40)) == 1).all()
    first, second = tried
    files = [one.name for one in checkpoint.iterdir()]
    assert not [name for name in files if first in name]
    assert [name for name in files if second in name]


def test_a_save_that_wakes_up_late_does_not_damage_the_checkpoint_of_its_heir(tmp_path: Path) -> None:
    path, checkpoint = write_examples(tmp_path / "a.parquet", 40), tmp_path / "checkpoint"
    written, saved, back = (threading.Event() for _ in range(3))

    def sleeper(cluster: Cluster) -> None:
        trainer, save_files = trainer_on(cluster), cluster.client.save_files
        trainer.fit(path)

        def save_files_and_sleep(place: str, stem: str) -> list[dict[str, object]]:
            entries = save_files(place, stem)
            cluster.client.member.stop_heartbeats()
            written.set()
            assert saved.wait(PATIENCE_S)
            return entries

        cluster.client.save_files = save_files_and_sleep
        try:
            trainer.save(checkpoint)
        finally:
            back.set()

    def successor(cluster: Cluster) -> np.ndarray:
        trainer = trainer_on(cluster)
        trainer.fit(path)
        assert written.wait(PATIENCE_S)
        trainer.save(checkpoint)
        saved.set()
        assert back.wait(PATIENCE_S)
        trainer.load(checkpoint)
        return counts_of(cluster, np.arange(40))

    with cluster_of(2, trainers=2, timing=UNHURRIED) as running:
        came_back, counts = running.run(sleeper, successor)
    assert isinstance(came_back, UnavailableError)
    assert not isinstance(counts, BaseException), counts
    assert (counts == 1).all()


def test_a_trainer_that_leaves_with_an_error_leaves_its_leases_to_the_others(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 300)
    fails = threading.Event()

    def fail() -> None:
        fails.set()
        raise ZeroDivisionError("a bug in the model")

    def failing(cluster: Cluster) -> None:
        trainer_on(cluster, CountingModel(at_step(3, fail))).fit(path)

    def living(cluster: Cluster) -> np.ndarray:
        trainer_on(cluster, CountingModel(held_until(fails))).fit(path)
        return counts_of(cluster, np.arange(300))

    with cluster_of(trainers=2) as running:
        failed, counts = running.run(failing, living)
    assert isinstance(failed, ZeroDivisionError)
    assert (counts == 1).all()


def test_a_trainer_that_goes_on_after_an_error_holds_no_other_up(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 300)

    fails, trained = threading.Event(), threading.Event()

    def careless(cluster: Cluster) -> str:
        def look(batch, rows) -> None:
            fails.set()
            raise ZeroDivisionError("a bug in the model")

        trainer = trainer_on(cluster, CountingModel(look))
        with pytest.raises(ZeroDivisionError):
            trainer.fit(path)
        place = trainer.save(tmp_path / "saved")
        assert trained.wait(PATIENCE_S)
        return place

    def careful(cluster: Cluster) -> str:
        trainer = trainer_on(cluster, CountingModel(held_until(fails)))
        trainer.fit(path)
        trained.set()
        assert (counts_of(cluster, np.arange(300)) == 1).all()
        return trainer.save(tmp_path / "saved")

    with cluster_of(trainers=2) as running:
        assert running.run(careless, careful) == [str(tmp_path / "saved")] * 2


@pytest.mark.parametrize("difference", ["settings", "call", "data"])
def test_scripts_that_disagree_end_with_a_line_for_one_of_them(tmp_path: Path, difference: str) -> None:
    path = write_examples(tmp_path / "a.parquet", 60)
    other = write_examples(tmp_path / "b.parquet", 60, first=60)

    def one(cluster: Cluster) -> str:
        trainer_on(cluster).fit(path)
        return "done"

    def another(cluster: Cluster) -> str:
        trainer = trainer_on(cluster, batch_rows=4 if difference == "settings" else 5)
        if difference == "call":
            trainer.evaluate(path)
        else:
            trainer.fit(other if difference == "data" else path)
        return "done"

    with cluster_of(trainers=2) as running:
        results = running.run(one, another)
    errors = [result for result in results if result != "done"]
    assert [type(error) for error in errors] == [ConfigurationError]
    assert "all trainers must run the same script" in str(errors[0])


def test_trainers_with_different_models_end_with_a_line_for_one_of_them() -> None:
    class Other(CountingModel):
        def dense_shapes(self):
            return {"examples": (2,)}

        def initial_dense(self, seed: int):
            return {"examples": np.zeros(2, np.float32)}

    with cluster_of(trainers=2) as running:
        results = running.run(lambda c: trainer_on(c) and "made", lambda c: trainer_on(c, Other()) and "made")
    assert "made" in results
    (error,) = [result for result in results if result != "made"]
    assert isinstance(error, ConfigurationError)
    assert "table counts is trained as another model: it is " in str(error)
    assert "it has dense parameters examples, got other shapes of them; give the other model a" in str(error)


def test_a_maintenance_happens_once_whichever_trainer_finishes_its_lease(tmp_path: Path) -> None:
    """A trainer vanishes in the middle of a lease, and another one in the very end of it."""
    path = write_examples(tmp_path / "a.parquet", 230)
    table = replace(CountingModel().table(), score=Score(decay=0.5))
    gone = threading.Event()

    def script(dies_at: int) -> Callable[[Cluster], int]:
        def run(cluster: Cluster) -> int:
            model = CountingModel(at_step(dies_at, lambda: vanish(cluster, gone), 0.002))
            trainer = trainer_on(cluster, model, table=table, maintain_every_batches=4)
            if not dies_at:
                assert gone.wait(PATIENCE_S)
            trainer.fit(path)
            assert (counts_of(cluster, np.arange(230)) == 1).all()
            return int(cluster.client.stats()["maintained"])

        return run

    for dies_at in (6, 8):
        gone.clear()
        with cluster_of(2, trainers=2, shard_threads=2, timing=UNHURRIED) as running:
            _lost, maintained = running.run(script(dies_at), script(0))
        assert maintained == 46 // 4  # batches of 5 examples; each lease but the last holds 4 of them


def test_a_maintenance_that_its_trainer_never_sent_is_sent_by_its_heir(
    tmp_path: Path,
) -> None:
    """All batches of the lease are applied, and reported: nothing but the maintenance is left to do."""
    path = write_examples(tmp_path / "a.parquet", 230)
    table = replace(CountingModel().table(), score=Score(decay=0.5))
    failed = threading.Event()

    def dies(cluster: Cluster) -> None:
        trainer = trainer_on(cluster, table=table, maintain_every_batches=4)

        def maintain(lease: HeldLease, plan: LeasePlan) -> PendingPush:
            raise ZeroDivisionError("between its last batch and its maintenance")

        trainer._tools = replace(trainer._tools, maintain=maintain)
        try:
            trainer.fit(path)
        finally:
            failed.set()

    def successor(cluster: Cluster) -> int:
        counted = CountingModel(lambda batch, _rows: batches.append(len(batch)))
        trainer = trainer_on(cluster, counted, table=table, maintain_every_batches=4)
        assert failed.wait(PATIENCE_S)
        trainer.fit(path)
        assert (counts_of(cluster, np.arange(230)) == 1).all()
        return int(cluster.client.stats()["maintained"])

    batches: list[int] = []
    with cluster_of(2, trainers=2, shard_threads=2) as running:
        died, maintained = running.run(dies, successor)
    assert isinstance(died, ZeroDivisionError)
    assert maintained == 46 // 4
    assert len(batches) <= 46 - 4
