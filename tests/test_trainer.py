"""The trainer: staleness, counters, collective calls of several trainers, and how everything ends."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pslib
from cython_ext.hashing import hash_ints
from pslib.cluster import Cluster
from pslib.config import Timing
from pslib.errors import ConfigurationError, DataError, ServerLostError, UnavailableError
from pslib.metrics import EvalResult, ScoreCounts
from pslib.optimizers import SGD, Adagrad, RowwiseAdagrad
from pslib.schema import RaggedField
from rec_models.fm import FM
from rec_models.lr import LR
from tests.clusters import QUICK, Trainers, cluster_of, own_threads, vanish
from tests.counting import SCHEMA, STEP, CountingModel, write_examples

UNHURRIED = Timing(heartbeat_s=0.2, silence_s=2.0, retry_s=0.5, request_s=20.0, start_s=20.0)
"""A trainer that is only slow, on a busy machine, must not count as lost."""


def trainer_on(
    cluster: Cluster, model: CountingModel | None = None, batch_rows: int = 5, **settings: object
) -> pslib.Trainer:
    chosen = {"dense_optimizer": STEP, "progress": False, "lease_rows": 20, "warmup_batches": 0} | settings
    return pslib.Trainer(model or CountingModel(), cluster, batch_rows=batch_rows, **chosen)


def counts_of(cluster: Cluster, ids: np.ndarray) -> np.ndarray:
    """How often each example was trained on."""
    keys = hash_ints(ids.astype(np.int64), SCHEMA.sparse[0].salt, None)
    return cluster.client.pull({"counts": keys}).wait().rows["counts"][:, 0]


def examples_counted(cluster: Cluster) -> int:
    return int(cluster.client.pull({}, dense=True).wait().dense[0])


def within(seconds: float, work: Callable[[], object]) -> BaseException:
    """The error with which ``work`` ends, soon."""
    started = time.monotonic()
    caught: BaseException | None = None
    try:
        work()
    except BaseException as error:
        caught = error
    assert caught is not None
    assert time.monotonic() - started < seconds
    return caught


# --- staleness


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_a_pull_misses_at_most_staleness_batches_and_sometimes_that_many(
    tmp_path: Path, staleness: int
) -> None:
    missed: list[int] = []

    def look(batch, rows) -> None:
        trained = int(rows[batch.sparse[0, 1], 0])
        missed.append(len(missed) - trained // len(batch))
        time.sleep(0.002)

    path = write_examples(tmp_path / "a.parquet", 200)
    with cluster_of(2) as running:
        trainer_on(running.join(), CountingModel(look), staleness=staleness).fit(path)
        running.close()
        status = running.embedded.last_status()
    assert max(missed) == staleness == status["staleness_max"]
    assert min(missed) >= 0


# --- counters


def test_counters_agree_with_the_data_and_with_each_other(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 103)
    with cluster_of(2, shard_threads=2) as running:
        trainer_on(running.join()).fit(path, epochs=3)
        running.close()
        status = running.embedded.last_status()
    assert status["examples"] == status["examples_total"] == 309
    assert status["pushes_sent"] == status["pushes_applied"] > 0
    assert status["updates_sent"] == status["updates_applied"] > status["pushes_sent"]
    assert status["phase"] == "done"
    assert status["epoch"] == status["epochs"] == 3


def test_evaluation_creates_no_rows(tmp_path: Path) -> None:
    train = write_examples(tmp_path / "a.parquet", 50)
    unseen = write_examples(tmp_path / "b.parquet", 50, first=1000)
    with cluster_of() as running:
        cluster = running.join()
        trainer = trainer_on(cluster)
        trainer.fit(train)
        before = cluster.client.stats()
        trainer.evaluate(unseen)
        after = cluster.client.stats()
    assert before["rows"] == after["rows"] == 51
    assert before["memory_bytes"] == after["memory_bytes"]
    assert before["updates_applied"] == after["updates_applied"]


# --- several trainers


def test_two_trainers_train_on_every_example_once(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 230)
    steps = [0, 0]

    def script(rank: int) -> Callable[[Cluster], np.ndarray]:
        def look(batch, rows) -> None:
            steps[rank] += 1
            time.sleep(0.001)

        def run(cluster: Cluster) -> np.ndarray:
            trainer_on(cluster, CountingModel(look)).fit(path, epochs=2)
            assert examples_counted(cluster) == 460
            return counts_of(cluster, np.arange(230))

        return run

    with cluster_of(2, trainers=2) as running:
        counts = running.run(script(0), script(1))
        running.close()
        status = running.embedded.last_status()
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
    """It falls silent in the middle of a lease, with pushes under way: still every example counts once."""
    path = write_examples(tmp_path / "a.parquet", 400)
    vanished = threading.Event()

    def dying(cluster: Cluster) -> None:
        steps = 0

        def look(batch, rows) -> None:
            nonlocal steps
            steps += 1
            time.sleep(0.002)
            if steps == 7:
                vanish(cluster)
                vanished.set()

        trainer_on(cluster, CountingModel(look), staleness=3).fit(path)

    def living(cluster: Cluster) -> np.ndarray:
        model = CountingModel(lambda _batch, _rows: time.sleep(0.002))
        trainer_on(cluster, model, staleness=3).fit(path)
        assert examples_counted(cluster) == 400
        return counts_of(cluster, np.arange(400))

    with cluster_of(2, trainers=2, timing=UNHURRIED) as running:
        died, counts = running.run(dying, living)
        assert vanished.is_set()
        events = running.embedded.last_status()["events"]
    assert isinstance(died, UnavailableError)
    assert (counts == 1).all()
    assert any("is lost" in event and "leases go to the others" in event for event in events)


def test_a_trainer_that_is_lost_by_mistake_is_refused_when_it_comes_back(tmp_path: Path) -> None:
    """It was only slow: its leases have gone to the other, and what it pushes late must not count again."""
    path = write_examples(tmp_path / "a.parquet", 400)
    pushed_late: list[int] = []

    def slow(cluster: Cluster) -> None:
        steps = 0

        def look(batch, rows) -> None:
            nonlocal steps
            steps += 1
            if steps == 7:
                cluster.client.member.stop_heartbeats()
                time.sleep(2 * UNHURRIED.silence_s)
            if steps >= 7:
                pushed_late.append(steps)

        trainer_on(cluster, CountingModel(look), staleness=3).fit(path)

    def living(cluster: Cluster) -> np.ndarray:
        model = CountingModel(lambda _batch, _rows: time.sleep(0.002))
        trainer_on(cluster, model, staleness=3).fit(path)
        time.sleep(UNHURRIED.silence_s)
        assert examples_counted(cluster) == 400
        return counts_of(cluster, np.arange(400))

    with cluster_of(2, trainers=2, timing=UNHURRIED) as running:
        came_back, counts = running.run(slow, living)
    assert isinstance(came_back, UnavailableError)
    assert pushed_late
    assert (counts == 1).all()


def test_a_save_that_wakes_up_late_does_not_damage_the_checkpoint_of_its_heir(tmp_path: Path) -> None:
    path, checkpoint = write_examples(tmp_path / "a.parquet", 40), tmp_path / "checkpoint"
    written, saved = threading.Event(), threading.Event()

    def sleeper(cluster: Cluster) -> None:
        trainer, save_files = trainer_on(cluster), cluster.client.save_files
        trainer.fit(path)

        def save_files_and_sleep(place: str, stem: str) -> list[dict[str, object]]:
            entries = save_files(place, stem)
            cluster.client.member.stop_heartbeats()
            written.set()
            assert saved.wait(20)
            return entries

        cluster.client.save_files = save_files_and_sleep
        trainer.save(checkpoint)

    def heir(cluster: Cluster) -> np.ndarray:
        trainer = trainer_on(cluster)
        trainer.fit(path)
        assert written.wait(20)
        trainer.save(checkpoint)
        saved.set()
        time.sleep(0.5)
        trainer.load(checkpoint)
        return counts_of(cluster, np.arange(40))

    with cluster_of(2, trainers=2, timing=UNHURRIED) as running:
        came_back, counts = running.run(sleeper, heir)
    assert isinstance(came_back, UnavailableError)
    assert not isinstance(counts, BaseException), counts
    assert (counts == 1).all()


def test_a_trainer_that_leaves_with_an_error_leaves_its_leases_to_the_others(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 300)

    def failing(cluster: Cluster) -> None:
        steps = 0

        def look(batch, rows) -> None:
            nonlocal steps
            steps += 1
            if steps == 3:
                raise ZeroDivisionError("a bug in the model")

        trainer_on(cluster, CountingModel(look)).fit(path)

    def living(cluster: Cluster) -> np.ndarray:
        trainer_on(cluster, CountingModel(lambda _batch, _rows: time.sleep(0.002))).fit(path)
        return counts_of(cluster, np.arange(300))

    with cluster_of(trainers=2) as running:
        failed, counts = running.run(failing, living)
    assert isinstance(failed, ZeroDivisionError)
    assert (counts == 1).all()


def test_a_trainer_that_goes_on_after_an_error_holds_nobody_up(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 300)

    trained = threading.Event()

    def careless(cluster: Cluster) -> str:
        def look(batch, rows) -> None:
            raise ZeroDivisionError("a bug in the model")

        trainer = trainer_on(cluster, CountingModel(look))
        with pytest.raises(ZeroDivisionError):
            trainer.fit(path)
        place = trainer.save(tmp_path / "saved")
        assert trained.wait(20.0)
        return place

    def careful(cluster: Cluster) -> str:
        trainer = trainer_on(cluster, CountingModel(lambda _batch, _rows: time.sleep(0.001)))
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
    assert "dense parameters exist as" in str(error)


# --- errors


@pytest.mark.parametrize("last_step", [1, 20, 40])
def test_an_error_in_the_model_ends_fit_with_it_and_leaves_no_thread(tmp_path: Path, last_step: int) -> None:
    """At the first step the reader is ahead; at the last one it waits for leases that never end."""
    path = write_examples(tmp_path / "a.parquet", 200)
    steps = 0

    def look(batch, rows) -> None:
        nonlocal steps
        steps += 1
        if steps == last_step:
            time.sleep(0.1)
            raise ZeroDivisionError("a bug in the model")

    with cluster_of() as running:
        trainer = trainer_on(running.join(), CountingModel(look))
        idle = own_threads()
        error = within(3.0, lambda: trainer.fit(path))
        assert isinstance(error, ZeroDivisionError)
        assert own_threads() == idle


def test_ctrl_c_in_fit_unwinds_cleanly(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 200)
    before = own_threads()

    def look(batch, rows) -> None:
        raise KeyboardInterrupt

    def script() -> None:
        with pslib.connect(servers=2) as cluster:
            trainer_on(cluster, CountingModel(look)).fit(path)

    assert isinstance(within(5.0, script), KeyboardInterrupt)
    assert own_threads() == before


def test_a_bad_value_in_the_data_ends_fit_with_its_place(tmp_path: Path) -> None:
    labels = np.zeros(200, np.int64)
    labels[150] = 2
    path = write_examples(tmp_path / "a.parquet", 200, labels=labels)
    with cluster_of() as running:
        trainer = trainer_on(running.join())
        idle = own_threads()
        error = within(3.0, lambda: trainer.fit(path))
        assert own_threads() == idle
    assert isinstance(error, DataError)
    assert "row 150" in str(error)
    assert "'label'" in str(error)


def test_a_bad_value_in_the_data_ends_evaluate_too(tmp_path: Path) -> None:
    labels = np.zeros(50, np.int64)
    labels[3] = 2
    path = write_examples(tmp_path / "a.parquet", 50, labels=labels)
    with cluster_of() as running:
        assert isinstance(within(3.0, lambda: trainer_on(running.join()).evaluate(path)), DataError)


def fit_with(running: Trainers, path: Path, spoil: Callable[[], None]) -> BaseException:
    """The error of a fit during which something is spoilt at the fifth step."""
    steps = 0

    def look(batch, rows) -> None:
        nonlocal steps
        steps += 1
        if steps == 5:
            spoil()

    trainer = trainer_on(running.join(), CountingModel(look))
    idle = own_threads()
    error = within(8.0, lambda: trainer.fit(path))
    assert set(own_threads()) <= set(idle)
    return error


def raising(*_arguments: object) -> None:
    raise ZeroDivisionError("a bug in the server")


def test_an_error_in_a_shard_ends_fit_with_it(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 400)
    with cluster_of(2) as running:
        error = fit_with(
            running,
            path,
            lambda: setattr(running.embedded.servers[0]._threads[0].shard, "push", raising),
        )
    assert isinstance(error, UnavailableError)
    assert "a bug in the server" in str(error)


def test_a_server_thread_that_dies_ends_fit_naming_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_examples(tmp_path / "a.parquet", 4000)
    with cluster_of(2) as running:
        error = fit_with(
            running, path, lambda: setattr(running.embedded.servers[1]._session, "receive", raising)
        )
    assert isinstance(error, UnavailableError)
    assert "server 1 at memory:" in str(error) or "server 0 at memory:" in str(error)
    assert "a bug in the server" in str(error)
    assert "has died" in caplog.text


def test_a_shard_thread_that_dies_ends_fit_naming_its_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_examples(tmp_path / "a.parquet", 4000)
    with cluster_of(2, shard_threads=2) as running:
        error = fit_with(running, path, lambda: running.embedded.servers[1]._threads[1].put(raising))
    assert isinstance(error, UnavailableError)
    assert "a bug in the server" in str(error)
    assert "has died" in caplog.text


def test_a_coordinator_that_dies_ends_fit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_examples(tmp_path / "a.parquet", 4000)
    with cluster_of(1, timing=QUICK) as running:
        session = running.embedded.coordinator.session
        error = fit_with(running, path, lambda: setattr(session, "tick", raising))
    assert isinstance(error, UnavailableError)
    assert "coordinator" in str(error)
    assert "has died" in caplog.text


def test_a_server_that_falls_silent_ends_fit_naming_it_and_what_was_lost(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 4000)
    with cluster_of(2, timing=QUICK) as running:

        def kill() -> None:
            running.embedded.servers[0]._member.stop_heartbeats()
            running.embedded.servers[0]._link.close()

        error = fit_with(running, path, kill)
        server = running.embedded.servers[0]
    assert isinstance(error, ServerLostError)
    assert f"server {server.rank} at {server.address}" in str(error)
    assert "rows" in str(error)


# --- calls


def test_fit_again_goes_on_with_the_next_epoch(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 60)
    salt = SCHEMA.sparse[0].salt
    number_of = {int(hash_ints(np.array([i]), salt, None)[0]): i for i in range(60)}

    def order_of(*epochs: int) -> list[int]:
        seen: list[int] = []

        def look(batch, rows) -> None:
            seen.extend(number_of[int(key)] for key in batch.keys[batch.sparse[:, 0]])

        with cluster_of() as running:
            trainer = trainer_on(running.join(), CountingModel(look), seed=3)
            for count in epochs:
                trainer.fit(path, epochs=count)
        return seen

    one_by_one, at_once = order_of(1, 1), order_of(2)
    assert one_by_one == at_once
    assert one_by_one[:60] != one_by_one[60:]
    assert sorted(one_by_one[:60]) == sorted(one_by_one[60:]) == list(range(60))


def test_fit_evaluates_after_each_epoch(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 60)
    with cluster_of() as running:
        trainer = trainer_on(running.join())
        results = trainer.fit(path, epochs=2, valid=path)
        assert results == [trainer.evaluate(path)] * 2


@pytest.mark.parametrize(("rows", "batch_rows"), [(1, 1), (1, 64), (7, 64), (8, 4)])
def test_small_data_is_trained_whole(tmp_path: Path, rows: int, batch_rows: int) -> None:
    path = write_examples(tmp_path / "a.parquet", rows)
    with cluster_of() as running:
        cluster = running.join()
        trainer = trainer_on(cluster, batch_rows=batch_rows, lease_rows=None)
        trainer.fit(path)
        assert (counts_of(cluster, np.arange(rows)) == 1).all()
        assert trainer.evaluate(path).examples == rows


def test_labels_of_one_kind_give_no_auc_and_a_log_loss(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 40, labels=np.zeros(40, np.int64))
    with cluster_of() as running:
        trainer = trainer_on(running.join())
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
    with cluster_of(2) as running:
        cluster = running.join()
        trainer = trainer_on(cluster, NoDense())
        trainer.fit(path)
        assert (counts_of(cluster, np.arange(60)) == 1).all()
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
    with cluster_of() as running:
        cluster = running.join()
        trainer = trainer_on(cluster, dense_optimizer=Adagrad(0.1))
        with pytest.raises(DataError, match=r"nowhere\.parquet"):
            trainer.fit(tmp_path / "nowhere.parquet")
        trainer.fit(path)
        assert (counts_of(cluster, np.arange(20)) == 1).all()


# --- hygiene


def test_an_embedded_cluster_closes_quickly_and_leaves_no_thread(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 50)
    before = own_threads()
    with pslib.connect(servers=3, shard_threads=2) as cluster:
        trainer_on(cluster).fit(path)
        started = time.monotonic()
    assert time.monotonic() - started < 2.0
    assert own_threads() == before


FORGETFUL = """
import sys
import pslib
from tests.counting import STEP, CountingModel

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
        cwd=Path(__file__).parent.parent,
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
    before = own_threads()
    running = Trainers(servers=4)
    started = time.monotonic()
    running.close()
    assert time.monotonic() - started < 2.0
    assert own_threads() == before


def test_a_cluster_may_be_closed_twice_and_with_pulls_on_their_way() -> None:
    with cluster_of(2) as running:
        cluster = running.join()
        trainer_on(cluster)
        pulls = [cluster.client.pull({"counts": np.arange(1000, dtype=np.uint64)}) for _ in range(50)]
        cluster.close()
        cluster.close()
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
