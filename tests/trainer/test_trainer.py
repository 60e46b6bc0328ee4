"""One trainer: staleness, counters, its calls, and how everything closes."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pslib
from cython_ext.common.hashing import hash_ints
from pslib.errors import ConfigurationError, DataError, UnavailableError
from pslib.schema import RaggedField
from pslib.table.optimizers import SGD, Adagrad, RowwiseAdagrad
from pslib.trainer.collective import Job
from rec_models.fm import FM
from rec_models.lr import LR
from tests.support.clusters import Trainers, cluster_of, own_threads, threads_of_pslib
from tests.support.counting import SCHEMA, CountingModel, write_examples
from tests.support.training import counts_of, one_trainer, trainer_on
from tests.support.waiting import PATIENCE

# --- one call at a time


def test_a_call_from_another_thread_is_refused_while_one_is_under_way(tmp_path: Path) -> None:
    """The call was taken for the end of the first one, which then trained on nothing and said it was done."""
    path, begun, go_on = write_examples(tmp_path / "a.parquet", 200), threading.Event(), threading.Event()

    def look(batch, rows) -> None:
        begun.set()
        assert go_on.wait(60)

    with cluster_of(1) as running, ThreadPoolExecutor() as threads:
        cluster = running.join()
        trainer = trainer_on(cluster, CountingModel(look))
        fit = threads.submit(trainer.fit, path)
        assert begun.wait(60)
        try:
            for call in (trainer.fit, trainer.evaluate, trainer.save, trainer.load):
                with pytest.raises(
                    ConfigurationError, match=f"{call.__name__}: another thread is in fit of a Trainer"
                ):
                    call(path)
        finally:
            go_on.set()
        assert fit.result(60) == []
        trainer.evaluate(path)
        assert cluster.status()["examples"] == 200


@pytest.mark.parametrize("call", ["save", "load"])
def test_a_trainer_that_counts_as_lost_when_it_is_about_to_save_or_load_does_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """A trainer that slept too long has a successor, which has trained since: its load must not undo that."""
    path = write_examples(tmp_path / "a.parquet", 50)

    def lost(_job: Job) -> None:
        raise UnavailableError("this trainer counts as lost")

    with one_trainer(servers=2) as trainer:
        trainer.fit(path)
        trainer.save(tmp_path / "saved")
        trainer.fit(path)
        monkeypatch.setattr(Job, "confirm", lost)
        with pytest.raises(UnavailableError, match="counts as lost"):
            getattr(trainer, call)(tmp_path / "saved")
        assert set(counts_of(trainer.cluster, np.arange(50)).tolist()) == {2.0}
        monkeypatch.undo()
        trainer.load(tmp_path / "saved")
        assert set(counts_of(trainer.cluster, np.arange(50)).tolist()) == {1.0}


# --- counters


def test_counters_agree_with_the_data_and_with_each_other(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 103)
    with cluster_of(2, shard_threads=2) as running:
        trainer_on(running.join()).fit(path, epochs=3)
        status = running.last_status()
    assert status["examples"] == status["examples_total"] == 309
    assert status["pushes_sent"] == status["pushes_applied"] > 0
    assert status["updates_sent"] == status["updates_applied"] > status["pushes_sent"]
    assert status["phase"] == "done"
    assert status["epoch"] == status["epochs"] == 3
    (fit,) = (one for one in status["results"] if one["kind"] == "fit")
    assert fit["lease_rows"] >= fit["batch_rows"] > 0  # by which examples are counted on the way


def test_evaluation_creates_no_rows(tmp_path: Path) -> None:
    train = write_examples(tmp_path / "a.parquet", 50)
    unseen = write_examples(tmp_path / "b.parquet", 50, first=1000)
    with one_trainer() as trainer:
        trainer.fit(train)
        before = trainer.cluster.client.stats()
        trainer.evaluate(unseen)
        after = trainer.cluster.client.stats()
    assert before["rows"] == after["rows"] == 51
    assert before["memory_bytes"] == after["memory_bytes"]
    assert before["updates_applied"] == after["updates_applied"]


# --- calls


def test_fit_again_goes_on_with_the_next_epoch(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 60)
    salt = SCHEMA.sparse[0].salt
    number_of = {int(hash_ints(np.array([i]), salt, None)[0]): i for i in range(60)}

    def order_of(*epochs: int) -> list[int]:
        seen: list[int] = []

        def look(batch, rows) -> None:
            seen.extend(number_of[int(key)] for key in batch.keys[batch.sparse[:, 0]])

        with one_trainer(CountingModel(look), seed=3) as trainer:
            for count in epochs:
                trainer.fit(path, epochs=count)
        return seen

    one_by_one, at_once = order_of(1, 1), order_of(2)
    assert one_by_one == at_once
    assert one_by_one[:60] != one_by_one[60:]
    assert sorted(one_by_one[:60]) == sorted(one_by_one[60:]) == list(range(60))


def test_fit_evaluates_after_each_epoch(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 60)
    with one_trainer() as trainer:
        results = trainer.fit(path, epochs=2, valid=path)
        assert results == [trainer.evaluate(path)] * 2


@pytest.mark.parametrize(("rows", "batch_rows"), [(1, 1), (1, 64), (7, 64), (8, 4)])
def test_small_data_is_trained_whole(tmp_path: Path, rows: int, batch_rows: int) -> None:
    path = write_examples(tmp_path / "a.parquet", rows)
    with one_trainer(batch_rows=batch_rows, lease_rows=None) as trainer:
        trainer.fit(path)
        assert (counts_of(trainer.cluster, np.arange(rows)) == 1).all()
        assert trainer.evaluate(path).examples == rows


def test_labels_of_one_kind_give_no_auc_and_a_log_loss(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 40, labels=np.zeros(40, np.int64))
    with one_trainer() as trainer:
        trainer.fit(path)
        result = trainer.evaluate(path)
    assert math.isnan(result.auc)
    assert math.isnan(result.calibration)
    assert 0 < result.logloss < 20
    assert (result.examples, result.positives) == (40, 0)


def test_ragged_fields_train(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0)
    lists = [list(range(int(n))) for n in numbers.integers(0, 5, 64)]
    table = pa.table({"y": numbers.integers(0, 2, 64), "tags": pa.array(lists, pa.list_(pa.int64()))})
    pq.write_table(table, tmp_path / "a.parquet")
    schema = pslib.Schema(label="y", ragged=[RaggedField("tags")])
    with cluster_of(2) as running:
        cluster = running.join()
        trainer = pslib.Trainer(FM(schema, dim=3), cluster, batch_rows=16, progress=False)
        trainer.fit(tmp_path / "a.parquet", epochs=2)
        assert trainer.evaluate(tmp_path / "a.parquet").examples == 64
        assert cluster.client.stats()["rows"] == len({key for one in lists for key in one})


def test_a_model_without_sparse_fields_trains(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 60)
    schema = pslib.Schema(label="label", dense=["score"])
    with cluster_of(2) as running:
        cluster = running.join()
        trainer = pslib.Trainer(LR(schema), cluster, batch_rows=16, dense_optimizer=SGD(0.5), progress=False)
        before = cluster.client.pull({}, dense=True).wait().dense.copy()
        trainer.fit(path)
        assert (cluster.client.pull({}, dense=True).wait().dense != before).any()
        assert cluster.client.stats()["rows"] == 0


def test_a_model_without_dense_parameters_trains(tmp_path: Path) -> None:
    class NoDense(CountingModel):
        def dense_shapes(self):
            return {}

        def initial_dense(self, seed: int):
            return {}

        def loss_and_gradients(self, batch, rows, dense, step_seed):
            step = super().loss_and_gradients(batch, rows, dense, step_seed)
            step.dense_gradients.clear()
            return step

    path = write_examples(tmp_path / "a.parquet", 60)
    with one_trainer(NoDense(), servers=2) as trainer:
        trainer.fit(path)
        assert (counts_of(trainer.cluster, np.arange(60)) == 1).all()
        assert trainer.evaluate(path).examples == 60


def test_settings_out_of_range_are_all_named_at_once() -> None:
    with cluster_of() as running:
        cluster = running.join()
        with pytest.raises(ConfigurationError) as caught:
            pslib.Trainer(
                CountingModel(),
                cluster,
                batch_rows=0,
                staleness=-1,
                lease_rows=0,
                seed=-1,
                dense_optimizer=RowwiseAdagrad(),
                progress=False,
            )
        assert [problem.split(":")[0] for problem in caught.value.problems] == [
            "batch_rows",
            "staleness",
            "lease_rows",
            "seed",
            "dense parameters",
        ]
        with pytest.raises(ConfigurationError, match=r"batch_rows: expected a whole number .* got 2\.5"):
            trainer_on(cluster, batch_rows=2.5)
        with pytest.raises(ConfigurationError, match="epochs: expected at least 1, got 0"):
            trainer_on(cluster).fit("nowhere.parquet", epochs=0)


def test_data_that_is_missing_is_named_and_changes_nothing(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 20)
    with one_trainer(dense_optimizer=Adagrad(0.1)) as trainer:
        with pytest.raises(DataError, match=r"nowhere\.parquet"):
            trainer.fit(tmp_path / "nowhere.parquet")
        trainer.fit(path)
        assert (counts_of(trainer.cluster, np.arange(20)) == 1).all()


# --- hygiene


def test_an_embedded_cluster_closes_quickly_and_leaves_no_thread(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 50)
    before = threads_of_pslib()
    with pslib.connect(servers=3, shard_threads=2) as cluster:
        trainer_on(cluster).fit(path)
        started = time.monotonic()
    assert time.monotonic() - started < PATIENCE * 10.0
    assert own_threads(but=before) == []  # one of an earlier test may end meanwhile


FORGETFUL = """
import sys
import pslib
from tests.support.counting import STEP, CountingModel

cluster = pslib.connect(servers=2)
trainer = pslib.Trainer(CountingModel(), cluster, dense_optimizer=STEP, progress=False, out=sys.argv[2])
trainer.fit(sys.argv[1])
if sys.argv[3] == "fails":
    raise ZeroDivisionError("a bug in the script")
"""


@pytest.mark.parametrize(("ending", "exit_code"), [("ends", 0), ("fails", 1)])
def test_a_script_that_does_not_close_its_cluster_leaves_it_in_order(
    tmp_path: Path, ending: str, exit_code: int
) -> None:
    path = write_examples(tmp_path / "a.parquet", 60)
    done = subprocess.run(
        [sys.executable, "-c", FORGETFUL, path, tmp_path / "out", ending],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == exit_code, done.stderr
    assert ("a bug in the script" in done.stderr) == (ending == "fails")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["examples"] == 60
    assert summary["pushes_sent"] == summary["pushes_applied"]


def test_a_cluster_closed_while_others_are_missing_closes_quickly() -> None:
    before = threads_of_pslib()
    running = Trainers(servers=4)
    started = time.monotonic()
    running.close()
    assert time.monotonic() - started < PATIENCE * 10.0
    assert own_threads(but=before) == []  # one of an earlier test may end meanwhile


def test_a_cluster_may_be_closed_twice_and_with_pulls_on_their_way() -> None:
    with one_trainer(servers=2) as trainer:
        pulls = [trainer.cluster.client.pull({"counts": np.arange(1000, dtype=np.uint64)}) for _ in range(50)]
        trainer.cluster.close()
        trainer.cluster.close()
        for pull in pulls:
            with suppress(UnavailableError):
                assert pull.wait(1.0).rows["counts"].shape == (1000, 1)


def test_more_epochs_than_a_job_lists_are_trained_job_after_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pslib.trainer.trainer.EPOCHS_A_JOB", 2)
    path = write_examples(tmp_path / "a.parquet", 7)
    with pslib.connect() as cluster:
        trainer_on(cluster).fit(path, epochs=5)
        jobs = [job["epochs"] for job in cluster.status()["results"] if job["kind"] == "fit"]
        assert jobs == [2, 2, 1]
        assert counts_of(cluster, np.arange(7)).tolist() == [5.0] * 7


@pytest.mark.parametrize("with_valid", [False, True])
def test_every_epoch_of_a_call_knows_how_many_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_valid: bool
) -> None:
    monkeypatch.setattr("pslib.trainer.trainer.EPOCHS_A_JOB", 2)
    path = write_examples(tmp_path / "a.parquet", 7)
    told: list[tuple[int, int]] = []
    with pslib.connect() as cluster:

        def look(batch, rows) -> None:
            status = cluster.status()
            told.append((status["epochs"], status["examples_total"]))

        trainer = trainer_on(cluster, CountingModel(look))
        trainer.fit(path, epochs=5, valid=path if with_valid else None)
    assert set(told) == {(5, 35)}
