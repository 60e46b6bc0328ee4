"""A load that a script has left while another trainer is at it: no trainer trains before it is over."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

import pslib
from pslib.cluster import Cluster as Connection
from pslib.coordinator.session import CoordinatorSession
from pslib.errors import CheckpointError, ConfigurationError, WaitTimeoutError
from pslib.trainer.collective import Job
from pslib.wire.messages import Done, Failure, Lease
from tests.support.clusters import cluster_of
from tests.support.counting import write_examples
from tests.support.counting_trainers import QUICK, StopError, counting, stop_after
from tests.support.simulated.one_coordinator import Cluster
from tests.support.training import UNHURRIED, counts_of, one_trainer, trainer_on
from tests.support.waiting import PATIENCE_S

ROWS = 50
GIVEN_BACK = {"given_back": np.ones(1, np.uint8)}


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, str]:
    """Examples, and a checkpoint of a training that has seen each once."""
    path, place = write_examples(tmp_path / "a.parquet", ROWS), str(tmp_path / "saved")
    with one_trainer(servers=2) as trainer:
        trainer.fit(path)
        trainer.save(place)
    return path, place


class Interrupted:
    """Lets one trainer load as slowly as a test wants, and ends the other one's wait for that, once."""

    def __init__(self, patch: pytest.MonkeyPatch, error: BaseException) -> None:
        self.error, self.loading, self.may_load = error, threading.Event(), threading.Event()
        self.once = threading.Lock()
        confirm, next_lease = Job.confirm, Job._next

        def loads_slowly(job: Job) -> None:
            confirm(job)
            self.loading.set()
            assert self.may_load.wait(PATIENCE_S)

        def is_interrupted(job: Job) -> Lease:
            lease = next_lease(job)
            if lease.state == "wait" and self.loading.is_set() and self.once.acquire(blocking=False):
                raise self.error
            return lease

        patch.setattr(Job, "confirm", loads_slowly)
        patch.setattr(Job, "_next", is_interrupted)


ERRORS = [KeyboardInterrupt(), WaitTimeoutError("the coordinator was slow")]


@pytest.mark.parametrize("state", [True, False])
@pytest.mark.parametrize("error", ERRORS, ids=["ctrl-c", "a slow coordinator"])
def test_a_trainer_that_leaves_the_wait_for_a_load_does_nothing_before_it_has_made_that_call_again(
    saved: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, error: BaseException, state: bool
) -> None:
    """Both train then, and go on from the same step: without that rows were 1, those of the checkpoint."""
    path, place = saved
    interrupted = Interrupted(monkeypatch, error)
    refused: list[ConfigurationError] = []

    def goes_on(trainer: pslib.Trainer) -> None:
        others = [lambda: trainer.fit(path), lambda: trainer.save(place), lambda: trainer.evaluate(path)]
        for call in (*others, lambda: trainer.load(place, state=not state)):
            with pytest.raises(ConfigurationError, match="left before it was done") as caught:
                call()
            refused.append(caught.value)
        interrupted.may_load.set()
        trainer.load(place, state=state)

    def script(connection: Connection) -> list[float]:
        trainer = trainer_on(connection)
        try:
            trainer.load(place, state=state)
        except type(error):
            goes_on(trainer)
        trainer.fit(path)
        return [float(trainer._epochs), *sorted(set(counts_of(connection, np.arange(ROWS)).tolist()))]

    with cluster_of(2, trainers=2, timing=UNHURRIED) as running:
        assert running.run(script, script) == [[1.0 + state, 2.0]] * 2
    assert len(refused) == 4
    assert all("\n" not in str(one) and place in str(one) for one in refused)


def test_a_trainer_that_leaves_the_load_of_an_unfinished_fit_goes_on_with_it_as_the_others_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The load is the first call of the script, also when it is made again."""
    path, place = write_examples(tmp_path / "a.parquet", ROWS * 20), tmp_path / "cuts"
    every = pslib.CheckpointSettings(place, every_batches=10)
    with cluster_of(timing=QUICK) as running, pytest.raises(StopError):
        counting(running.join(), stop_after(40, place), checkpoint=every).fit(path)
    interrupted = Interrupted(monkeypatch, KeyboardInterrupt())

    def script(connection: Connection) -> set[float]:
        trainer = counting(connection)
        try:
            trainer.load(place)
        except KeyboardInterrupt:
            interrupted.may_load.set()
            trainer.load(place)
        trainer.fit(path)
        return set(counts_of(connection, np.arange(ROWS * 20)).tolist())

    with cluster_of(2, trainers=2, timing=UNHURRIED) as running:
        assert running.run(script, script) == [{1.0}] * 2


def test_a_load_that_the_coordinator_refuses_is_not_asked_for_again(saved: tuple[Path, str]) -> None:
    path, place = saved
    with cluster_of() as running:
        trainer = trainer_on(running.join())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(running.embedded.coordinator.session.registry, "open_job", refuse)
            with pytest.raises(ConfigurationError, match="another script"):
                trainer.load(place)
        trainer.fit(path)


def test_a_load_that_has_failed_at_this_trainer_keeps_it_from_nothing(saved: tuple[Path, str]) -> None:
    path, place = saved
    with one_trainer() as trainer:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(trainer.cluster.client, "load", is_damaged)
            with pytest.raises(CheckpointError, match="damaged"):
                trainer.load(place)
        trainer.fit(path)
        trainer.load(place)


def test_a_left_load_is_made_again_when_others_have_removed_what_it_was_of(
    saved: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The load is over at the others, and this trainer goes on from there: rows and steps of one moment."""
    path, place = saved[0], str(tmp_path / "kept")
    with one_trainer(servers=2) as trainer:
        trainer.fit(path)
        trainer.save(place, keep_last=1)
    interrupted, has_saved = Interrupted(monkeypatch, KeyboardInterrupt()), threading.Event()

    def script(connection: Connection) -> float:
        trainer = trainer_on(connection)
        try:
            trainer.load(place)
        except KeyboardInterrupt:
            interrupted.may_load.set()
            assert has_saved.wait(PATIENCE_S)
            trainer.load(place)
            return float(trainer._epochs)
        trainer.save(place, keep_last=1)
        has_saved.set()
        return float(trainer._epochs)

    with cluster_of(2, trainers=2, timing=UNHURRIED) as running:
        assert running.run(script, script) == [1.0, 1.0]


def test_a_left_load_of_what_is_gone_fails_once_and_keeps_nothing_from_being_called(
    saved: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, place = saved
    with one_trainer(servers=2) as trainer:
        with monkeypatch.context() as patch:
            patch.setattr(Job, "_next", is_slow)
            with pytest.raises(WaitTimeoutError):
                trainer.load(place)
        shutil.rmtree(place)
        with pytest.raises(ConfigurationError, match="left before it was done"):
            trainer.fit(path)
        with pytest.raises(CheckpointError, match=r"no manifest\.json there"):
            trainer.load(place)
        trainer.fit(path)


def is_slow(_job: Job) -> Lease:
    raise WaitTimeoutError("the coordinator was slow")


def refuse(*_arguments: object) -> Failure:
    return Failure("configuration", "another script")


def is_damaged(*_arguments: object, **_named: object) -> None:
    raise CheckpointError("damaged")


# --- what the coordinator gives out


@pytest.mark.parametrize("what", ["save", "load"])
def test_no_lease_of_a_later_call_is_given_out_while_a_trainer_saves_or_loads(what: str) -> None:
    """One that has caught what ended it there goes on alone: it would change what the other one saves."""
    cluster = Cluster()
    for rank in range(2):
        cluster.open(rank, job=1, leases=1, what=what, details={"path": "x"})
    cluster.lease(0, job=1)
    assert cluster.end(0, 0, job=1, payload=GIVEN_BACK) == Done()
    cluster.open(0, job=2)
    assert cluster.lease(0, job=2).state == "wait"  # it is the other one's now, which looks for it
    held = cluster.lease(1, job=1)
    assert (held.state, held.epoch) == ("held", 1)
    assert cluster.lease(0, job=2).state == "wait"
    assert cluster.end(1, 0, held.epoch, job=1) == Done()
    assert cluster.lease(0, job=2).state == "held"


def test_a_load_without_trainers_in_it_keeps_no_trainer_out() -> None:
    """A client that trains nothing is in none, and keeps the call from being given up."""
    cluster = Cluster()
    cluster.open(0, job=1, leases=1, what="load", details={"path": "x"})
    cluster.lease(0, job=1)
    cluster.end(0, 0, job=1, payload=GIVEN_BACK)
    cluster.open(0, job=2)
    assert cluster.lease(0, job=2).state == "held"


def test_a_save_that_is_done_keeps_no_trainer_waiting_for_one_that_has_not_heard_of_it() -> None:
    """Nor does an earlier one that is open for ever: a client that trains nothing may yet make that call."""
    cluster = Cluster(trainers=3)
    cluster.open(0, job=1)
    for rank in (0, 2):
        cluster.open(rank, job=2, leases=1, what="save", details={"path": "x"})
    assert cluster.lease(0, job=2).state == "held"
    assert cluster.end(0, 0, job=2) == Done()
    cluster.open(0, job=3)
    assert cluster.lease(0, job=3).state == "held"


def test_a_fit_that_others_are_still_in_keeps_no_later_one_waiting() -> None:
    cluster = Cluster()
    for rank in range(2):
        cluster.open(rank, job=1)
    cluster.lease(1, job=1)
    cluster.open(0, job=2)
    assert cluster.lease(0, job=2).state == "held"


def test_a_trainer_without_a_call_keeps_no_other_waiting_behind_a_first_load_that_has_failed() -> None:
    """A member that only pulls rows may never make one: the other one's fit waited until it left."""
    cluster = Cluster()
    failed_at(cluster, 0, job=0)
    cluster.open(0, job=1)
    assert cluster.lease(0, job=1).state == "held"


@pytest.mark.parametrize("job", [0, 1])
def test_a_load_that_has_failed_at_all_trainers_keeps_none_waiting(job: int) -> None:
    """A trainer that is slow to make its next call has nothing more to do in this one."""
    cluster = Cluster()
    for rank in range(2):
        failed_at(cluster, rank, job)
    for later, what in ((job + 1, "save"), (job + 2, "fit")):
        cluster.open(0, job=later, leases=1, what=what)
        held = cluster.lease(0, job=later)
        assert held.state == "held"
        assert cluster.end(0, 0, held.epoch, job=later) == Done()


def test_a_trainer_that_asks_for_a_failed_load_again_is_waited_for_also_after_a_comeback() -> None:
    cluster = Cluster()
    for rank in range(2):
        failed_at(cluster, rank, job=0)
    cluster.session = come_back(cluster)
    cluster.open(0, job=1)
    assert cluster.lease(0, job=1).state == "held"
    cluster.session = come_back(cluster)
    assert cluster.lease(1, job=0).state == "held"
    assert cluster.lease(0, job=1).state == "wait"


def failed_at(cluster: Cluster, rank: int, job: int) -> None:
    """A trainer makes a load and fails at it."""
    cluster.open(rank, job=job, leases=1, what="load", details={"path": "x"})
    held = cluster.lease(rank, job=job)
    assert held.state == "held"
    assert cluster.end(rank, 0, held.epoch, job=job, payload=GIVEN_BACK) == Done()


def come_back(cluster: Cluster) -> CoordinatorSession:
    """A coordinator that knows what this one has written down."""
    session = CoordinatorSession(cluster.session.config)
    session.replay([cluster.session.image(cluster.now_s)])
    return session
