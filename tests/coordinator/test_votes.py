"""Votes: every trainer that is there has one, and none is waited for that is not there any more."""

from __future__ import annotations

from typing import Any

import pytest

from pslib.wire.fields import json_array
from pslib.wire.messages import Done, Failure, JobResult, Leave, Result, SaveSoon
from tests.support.simulated.one_coordinator import EVERYBODY, Cluster

STOP = {"words": json_array({"stop": "Mine (trainer 1)"})}


def voting(trainers: int = 2) -> Cluster:
    """A cluster after a fit whose trainers have all come to the vote."""
    cluster = Cluster(trainers)
    cluster.open(0, leases=1, details={"epochs": 1, "examples": 30, "checkpoint": {"every_s": 9e9}})
    cluster.lease(0)
    cluster.end(0, 0)
    for rank in range(trainers):
        assert cluster.open(rank, job=1, leases=0, what="vote", details={}) == Done()
    return cluster


def vote(cluster: Cluster, rank: int, payload: Any = None) -> None:
    lease = cluster.lease(rank, job=1)
    assert lease.state == "held"
    assert cluster.end(rank, lease.index, lease.epoch, job=1, payload=payload) == Done()


def outcome(cluster: Cluster) -> Any:
    return cluster.ask(JobResult(1)).values["outcome"].get("stop")


def test_a_vote_is_over_when_every_trainer_has_voted_and_one_is_enough_to_stop() -> None:
    cluster = voting()
    vote(cluster, 0)
    assert cluster.lease(0, job=1).state == "wait"
    assert cluster.ask(JobResult(1)).values == {"done": False, "outcome": {}}
    vote(cluster, 1, STOP)
    assert cluster.lease(0, job=1).state == "done"
    assert outcome(cluster) == "Mine (trainer 1)"


def test_no_trainer_votes_for_another_or_twice() -> None:
    cluster = voting()
    vote(cluster, 1, STOP)
    assert cluster.lease(1, job=1).state == "wait"
    vote(cluster, 0)
    assert outcome(cluster) == "Mine (trainer 1)", "the last vote does not undo it"


@pytest.mark.parametrize("how", ["lost", "left", "lost while it voted"])
def test_the_vote_of_a_trainer_that_is_gone_is_void(how: str) -> None:
    cluster = voting()
    vote(cluster, 0)
    if how == "left":
        cluster.ask(Leave("trainer", 1, 101, {}))
    else:
        if how == "lost while it voted":
            cluster.lease(1, job=1)
        cluster.pass_time(20.0, *EVERYBODY[:3])
    assert cluster.lease(0, job=1).state == "done"
    assert cluster.ask(JobResult(1)).values["done"]
    assert outcome(cluster) is None
    assert not cluster.session.error, "an async run goes on without it"


def test_a_trainer_that_comes_during_a_vote_has_none_and_hears_its_outcome() -> None:
    cluster = voting()
    cluster.register("trainer", 2)
    cluster.open(2, job=1, leases=0, what="vote", details={})
    assert cluster.lease(2, job=1).state == "wait"
    vote(cluster, 0)
    vote(cluster, 1)
    assert cluster.lease(2, job=1).state == "done"


def test_votes_are_no_results_of_the_run() -> None:
    cluster = voting()
    assert cluster.status["phase"] == "agreeing whether to stop"
    vote(cluster, 0)
    vote(cluster, 1)
    assert {one["kind"] for one in cluster.status["results"]} == {"fit"}


def test_words_are_refused_of_calls_in_which_nothing_is_agreed_on() -> None:
    cluster = Cluster()
    cluster.open(0, leases=1, what="evaluate")
    cluster.lease(0)
    assert isinstance(cluster.end(0, 0, payload=STOP), Failure)


def test_a_checkpoint_that_is_asked_for_is_taken_while_trainers_vote() -> None:
    cluster = voting()
    assert isinstance(cluster.ask(SaveSoon()), Result)
    cluster.pass_time(2.0, *EVERYBODY)
    assert cluster.session.cuts.busy
