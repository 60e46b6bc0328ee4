"""A script that catches what ends a call and goes on: the call is given up, and the run ends well."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pslib
from pslib.coordinator.session import CoordinatorSession
from pslib.errors import CheckpointError
from pslib.wire.messages import Done, Failure, Leave
from tests.support.clusters import cluster_of
from tests.support.counting import CountingModel, write_examples
from tests.support.processes.counting_runs import Start, write_counting_examples
from tests.support.simulated.one_coordinator import CONFIG, EVERYBODY, Cluster
from tests.support.training import counts_of, examples_counted, one_trainer, trainer_on, within
from tests.support.waiting import WAIT_S, wait_until

ROWS = 200
SCRIPT = """
import signal, sys
from pslib import SGD, Trainer, connect
from tests.support.processes.counting_script import CountingModel

class Interrupted(CountingModel):
    def loss_and_gradients(self, *arguments):
        if self.batches == 5:
            self.batches += 1
            signal.raise_signal(signal.SIGINT)
        return super().loss_and_gradients(*arguments)

cluster = connect()
trainer = Trainer(Interrupted(0.0), cluster, batch_rows=64, lease_rows=512, dense_optimizer=SGD(1.0))
try:
    trainer.fit(sys.argv[1])
except KeyboardInterrupt:
    print("caught")
trainer.fit(sys.argv[1])
trainer.save(sys.argv[2])
"""


class TestTheDesk:
    def test_a_call_that_all_trainers_have_left_is_over_and_the_run_ends_well(self) -> None:
        cluster = Cluster()
        for rank in range(2):
            cluster.open(rank)
            cluster.lease(rank)
        cluster.end(0, 0)
        cluster.open(0, job=1, leases=0, what="evaluate")
        assert cluster.status["phase"] == "training"  # the other one is at it still
        cluster.open(1, job=1, leases=0, what="evaluate")
        assert cluster.status["events"] == ["call 0 (fit) is given up, with 1 of 3 leases done"]
        assert cluster.status["phase"] == "waiting for the next call of the trainers"
        assert cluster.beat("server", 0).streams_done_below == 2 << 32
        for rank in range(2):
            cluster.ask(Leave("trainer", rank, 100 + rank, {}))
        cluster.pass_time(2.0, *EVERYBODY[:2])
        assert cluster.status["error"] is None

    def test_its_leases_have_no_holder_and_what_comes_late_of_them_does_no_harm(self) -> None:
        cluster = Cluster(trainers=2)
        self.give_up(cluster)
        late = cluster.lease(0)
        assert isinstance(late, Failure)  # and not that it is done
        assert "call 0 (fit) was given up" in late.text
        assert cluster.end(0, 0).code == "fenced"
        assert cluster.status["examples"] == 0

    def test_a_trainer_that_makes_it_once_more_hears_that_it_is_given_up(self) -> None:
        cluster = Cluster()
        self.give_up(cluster)
        answer = cluster.open(1)
        assert isinstance(answer, Failure)
        assert "call 0 (fit) was given up" in answer.text

    def test_one_whose_successor_is_awaited_has_not_left_it(self) -> None:
        cluster = Cluster()
        cluster.session.members.config = replace(CONFIG, restarts=1)
        cluster.open(0)
        cluster.open(1)
        cluster.lease(0)
        cluster.pass_time(10.0, *EVERYBODY[:3])
        cluster.open(0, job=1, leases=0, what="evaluate")
        assert cluster.status["phase"] == "training"

    def test_one_that_is_lost_for_good_keeps_no_call_open(self) -> None:
        for leaves_first in (False, True):
            cluster = Cluster()
            for rank in range(2):
                cluster.open(rank)
            cluster.lease(1)
            cluster.open(0, job=1, leases=0, what="evaluate")
            if not leaves_first:
                cluster.pass_time(10.0, *EVERYBODY[:3])
            cluster.ask(Leave("trainer", 0, 100, {"well": True}))
            cluster.pass_time(10.0, *EVERYBODY[:2])
            status = cluster.status
            assert "call 0 (fit) is given up, with 0 of 3 leases done" in status["events"]
            assert status["error"] is None

    def test_an_evaluation_that_was_given_up_has_no_figures_and_a_save_no_checkpoint(self) -> None:
        cluster = Cluster()
        for number, what in enumerate(["evaluate", "save", "fit"]):
            for rank in range(2):
                cluster.open(rank, number, what=what, details={"path": "/nowhere"})
        status = cluster.status
        assert (status["results"], status["saved"]) == ([], "")

    def test_a_successor_of_the_coordinator_knows_it_too(self) -> None:
        cluster = Cluster()
        self.give_up(cluster)
        again = CoordinatorSession(CONFIG)
        again.restore(cluster.session.plain())
        assert again.registry.all_done

    @pytest.mark.parametrize("what", ["save", "load"])
    def test_a_save_or_load_waits_for_the_earlier_call_that_others_are_in(self, what: str) -> None:
        """The call would save, or change, rows that the others still train."""
        cluster = Cluster()
        for rank in range(2):
            cluster.open(rank)
            cluster.lease(rank)
        cluster.open(0, job=1, leases=1, what=what, details={"path": "x"})
        assert cluster.lease(0, job=1).state == "wait"
        for index, epoch in ((1, 0), (0, 1), (2, 0)):
            assert cluster.lease(1).index == index
            assert cluster.lease(0, job=1).state == "wait"
            assert cluster.end(1, index, epoch) == Done()
            is_over = index == 2  # else the other one, which holds nothing just now, may get more
            assert cluster.lease(0, job=1).state == ("held" if is_over else "wait")

    def test_a_trainer_in_no_call_is_not_waited_for(self) -> None:
        """A client that trains nothing is a member too: a save after a failed fit waited until it left."""
        cluster = Cluster()
        cluster.open(1, job=1)
        cluster.lease(1, job=1)
        cluster.open(1, job=2, leases=1, what="save", details={"path": "x"})
        assert cluster.lease(1, job=2).state == "held"

    def test_no_lease_is_given_out_while_a_trainer_saves_in_a_later_call(self) -> None:
        cluster = Cluster()
        cluster.open(1, job=1)
        cluster.open(1, job=2, leases=1, what="save", details={"path": "x"})
        assert cluster.lease(1, job=2).state == "held"
        cluster.open(0, job=1)
        assert cluster.lease(0, job=1).state == "wait"
        assert cluster.end(1, 0, job=2) == Done()
        assert cluster.lease(0, job=1).state == "held"

    @pytest.mark.parametrize("what", ["save", "load"])
    def test_one_that_has_failed_is_others_to_try_and_keeps_no_moves_out(self, what: str) -> None:
        cluster = Cluster()
        for rank in range(2):
            cluster.open(rank, leases=1, what=what, details={"path": "x"})
        cluster.lease(0)
        assert cluster.session.registry.at_files
        assert cluster.end(0, 0, payload={"given_back": np.ones(1, np.uint8)}) == Done()
        assert not cluster.session.registry.at_files
        again = cluster.lease(1)
        assert (again.state, again.epoch) == ("held", 1)
        assert cluster.session.registry.at_files
        assert cluster.end(0, 0).code == "fenced"

    def test_a_lease_that_was_given_out_is_given_out_when_the_journal_is_replayed(self) -> None:
        """Also by a coordinator that waited for less, as earlier ones did: the trainer has done the work."""
        cluster = Cluster()
        records = [[cluster.session.image(cluster.now_s)]]
        cluster.session.journal.append = lambda entries: records.append(list(entries))
        cluster.session._must_wait = lambda _job: False  # type: ignore[method-assign]
        for rank in range(2):
            cluster.open(rank)
            cluster.lease(rank)
        cluster.open(0, job=1, leases=1, what="save", details={"path": "x"})
        held = cluster.lease(0, job=1)
        assert held.state == "held"
        cluster.session = CoordinatorSession(CONFIG)
        for record in records:
            cluster.session.replay(record)
        assert cluster.end(0, 0, held.epoch, job=1) == Done()

    def give_up(self, cluster: Cluster) -> None:
        cluster.open(0)
        cluster.open(1)
        cluster.lease(0)
        for rank in range(2):
            assert cluster.open(rank, job=1, leases=0, what="evaluate") == Done()


def last_status(cluster: pslib.cluster.Cluster) -> dict[str, Any]:
    """Filled when the cluster has closed."""
    last: dict[str, Any] = {}
    cluster.at_close(lambda: None, last.update)
    return last


def interrupted_once(at_step: int) -> CountingModel:
    steps = iter(range(1, 10_000))

    def look(batch: object, rows: object) -> None:
        if next(steps) == at_step:
            raise KeyboardInterrupt

    return CountingModel(look)


@pytest.mark.parametrize("consistency", ["async", "sync", "ssp", "geo"])
@pytest.mark.parametrize("at_step", [1, 25])
def test_ctrl_c_in_a_fit_that_a_script_catches_ends_that_fit_alone(
    tmp_path: Path, consistency: str, at_step: int
) -> None:
    path = write_examples(tmp_path / "a.parquet", ROWS)
    with pslib.connect(servers=2) as cluster:
        last = last_status(cluster)
        trainer = trainer_on(cluster, interrupted_once(at_step), consistency=consistency)
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(path)
        trainer.fit(path)
        trainer.evaluate(path)
        trainer.save(tmp_path / "saved")
    assert (last["error"], last["phase"]) == (None, "done")


def test_what_was_computed_before_counts_once_and_is_in_when_the_fit_ends(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", ROWS)
    with one_trainer(interrupted_once(25)) as trainer:
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(path)
        assert examples_counted(trainer.cluster) == 24 * 5
        assert int(counts_of(trainer.cluster, np.arange(ROWS)).sum()) == 24 * 5
        trainer.fit(path)
        assert examples_counted(trainer.cluster) == 24 * 5 + ROWS


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("catches", [True, False])
def test_a_script_that_catches_it_before_the_cluster_closes_ends_well_and_another_is_interrupted(
    tmp_path: Path, catches: bool, by_hand: bool
) -> None:
    """Also where the cluster is closed by hand, while the error is on its way or after it."""
    path = write_examples(tmp_path / "a.parquet", ROWS)
    cluster = pslib.connect(servers=2)
    last = last_status(cluster)

    def script() -> None:
        with contextlib.closing(cluster) if by_hand else cluster:
            trainer = trainer_on(cluster, interrupted_once(3))
            with pytest.raises(KeyboardInterrupt) if catches else contextlib.nullcontext():
                trainer.fit(path)

    if catches:
        script()
    else:
        assert isinstance(within(5.0, script), KeyboardInterrupt)
    assert (last["error"], last["phase"]) == (None, "done" if catches else "interrupted")


def test_under_a_launcher_it_ends_with_done_too(start: Start, tmp_path: Path) -> None:
    examples, script = write_counting_examples(tmp_path / "a.parquet", 6000), tmp_path / "script.py"
    script.write_text(SCRIPT)
    out = tmp_path / "out"
    command = start("launch", "--servers", "2", "--out", out, script, examples, tmp_path / "saved")
    assert command.finish(60) == 0, command.output
    assert len(command.lines("caught")) == 1
    assert len(command.lines("call 1 (fit) is given up")) == 1
    assert "lost" not in command.output
    summary = json.loads((out / "summary.json").read_text())
    assert summary["phase"] == "done"
    assert summary["pushes_sent"] == summary["pushes_applied"]


def refuse(*_arguments: object, **_named: object) -> None:
    raise CheckpointError("no room")


@pytest.mark.parametrize("call", ["save", "load"])
def test_a_trainer_whose_save_or_load_fails_gives_it_back_at_once(tmp_path: Path, call: str) -> None:
    """Moves, and other trainers, would wait until its script calls something else."""
    with cluster_of() as running:
        cluster = running.join()
        trainer = trainer_on(cluster)
        trainer.save(tmp_path / "saved")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cluster.client, {"save": "save_files", "load": "load"}[call], refuse)
            with pytest.raises(CheckpointError, match="no room"):
                getattr(trainer, call)(tmp_path / "saved")
        registry = running.embedded.coordinator.session.registry
        assert not registry.all_done
        wait_until(lambda: not registry.at_files, WAIT_S, "the lease to be given back")
