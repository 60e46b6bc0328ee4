"""Cuts while trainers are in different calls: the table of one says nothing of later ones."""

from __future__ import annotations

import numpy as np
import pytest

from pslib.wire.messages import EndLease, OpenJob, SaveSoon
from tests.coordinator.test_checkpoint_barrier import Cluster

DETAILS = {"checkpoint": {"every_s": 10.0}}


def opens(cluster: Cluster, rank: int, job: int, what: str = "fit", leases: int = 3) -> None:
    """A trainer begins a call, and has a lease of it."""
    details = DETAILS if what == "fit" else {}
    cluster.ask(OpenJob(rank, job, what, 9, details, np.arange(leases, dtype=np.uint32)))
    assert cluster.lease(rank, job=job).state == "held"


@pytest.mark.parametrize(
    ("what", "cut"), [("fit", False), ("measure", False), ("evaluate", True), ("export", True)]
)
def test_no_cut_of_a_fit_is_made_while_somebody_pushes_in_a_later_call(what: str, cut: bool) -> None:
    """Those batches are in the rows: who went on from it trained them twice."""
    cluster = Cluster()
    cluster.lease(0)
    opens(cluster, 1, 2, what)
    cluster.wait(30.0)
    assert (cluster.session.cuts._cut is not None) == cut


def test_a_cut_that_is_asked_for_in_an_evaluation_waits_for_whoever_is_in_the_next_fit() -> None:
    cluster = Cluster(leases=1)
    cluster.lease(0)
    cluster.ask(EndLease(0, 10, 1, 1 << 32, 0, {}))
    opens(cluster, 1, 2, "evaluate")
    opens(cluster, 0, 3)
    cluster.ask(SaveSoon())
    cluster.wait(5.0)
    assert cluster.session.cuts._cut is None


def test_a_cut_that_is_asked_for_keeps_no_lease_from_those_for_whom_it_waits() -> None:
    """All would wait for each other: the cut for the first call to be over, and its leases for the cut."""
    cluster = Cluster()
    opens(cluster, 0, 2)
    cluster.ask(SaveSoon())
    cluster.wait(30.0)
    assert cluster.lease(1).state == "held"
