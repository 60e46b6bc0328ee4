"""The coordinator's machine, scene by scene: members that fall silent, and the order of leaves."""

from __future__ import annotations

from typing import Any

import pytest

from pslib.coordinator.leases import stream_of
from pslib.wire.messages import Done, Lease, Leave, Stop
from tests.support.simulated.one_coordinator import EVERYBODY, Cluster


class TestSilence:
    def test_the_leases_of_a_silent_trainer_go_to_the_others_where_it_stopped(self) -> None:
        cluster = Cluster()
        cluster.open(0, leases=1)
        cluster.lease(0)
        cluster.beat("trainer", 0, streams=[[stream_of(0, 0), 3]])
        cluster.pass_time(7, *EVERYBODY[:2], EVERYBODY[3])
        assert cluster.lease(1) == Lease("held", stream_of(0, 0), 0, 1, 3)
        lost = "trainer 0 (pid 7 on host) is lost; its leases go to the others (1)"
        assert lost in cluster.status["events"]

    def test_a_trainer_that_was_silent_too_long_is_told_to_stop_and_gets_nothing_any_more(self) -> None:
        cluster = Cluster()
        cluster.open(0, leases=1)
        cluster.lease(0)
        cluster.pass_time(7, *EVERYBODY[:2], EVERYBODY[3])
        beat = cluster.beat("trainer", 0)
        assert (beat.order, "silent too long" in beat.reason) == ("fail", True)
        assert cluster.lease(0).code == "fenced"
        assert cluster.end(0, 0).code == "fenced"

    def test_a_trainer_that_slept_in_a_save_hears_that_it_is_lost_while_its_heir_is_in_the_next_call(
        self,
    ) -> None:
        """All wait for that one, and to wait was what it heard: it took itself for live, and wrote on."""
        cluster = Cluster()
        for rank in range(2):
            cluster.open(rank, leases=1, what="save", details={"path": "runs/a"})
        cluster.lease(0)
        cluster.pass_time(7, *EVERYBODY[:2], EVERYBODY[3])
        assert cluster.lease(1).state == "held"
        assert cluster.end(1, 0, epoch=1) == Done()
        cluster.open(1, job=1, leases=1, what="load", details={"path": "runs/a"})
        assert cluster.lease(1, job=1).state == "held"
        assert cluster.lease(0, (0,)).code == "fenced"

    def test_asking_for_work_is_a_sign_of_life(self) -> None:
        cluster = Cluster()
        cluster.open(0)
        for _ in range(4):
            cluster.pass_time(4, *EVERYBODY[:2], EVERYBODY[3])
            cluster.lease(0)
        assert cluster.status["trainers"] == 2

    def test_a_lost_server_ends_the_run_and_the_line_names_it_and_what_was_lost(self) -> None:
        cluster = Cluster()
        cluster.open(0)
        cluster.beat("server", 1, rows=1000, updates_applied=50)
        cluster.pass_time(7, EVERYBODY[0], *EVERYBODY[2:])
        beat = cluster.beat("trainer", 0)
        assert beat.order == "fail"
        assert beat.reason == (
            "server 1 at tcp://server:1 (pid 7 on host) has been silent for 6 s and counts as lost, "
            "with about 1,000 rows and 50 updates; there is no checkpoint"
        )
        assert cluster.status["phase"] == "failed"
        assert cluster.register("trainer", 5).code == "unavailable"

    def test_the_last_checkpoint_is_named(self) -> None:
        cluster = Cluster()
        cluster.open(0, leases=1, what="save", details={"path": "runs/a"})
        cluster.lease(0)
        cluster.end(0, 0)
        cluster.pass_time(7, *EVERYBODY[:1], *EVERYBODY[2:])
        assert "the checkpoint runs/a is the last state" in cluster.status["error"]

    @pytest.mark.parametrize("call", ["none", "over", "open"])
    def test_a_script_with_all_trainers_lost_has_failed_also_between_two_calls(self, call: str) -> None:
        cluster = Cluster()
        if call != "none":
            cluster.open(0, leases=1)
        if call == "over":
            cluster.lease(0)
            cluster.end(0, 0)
        cluster.pass_time(7, *EVERYBODY[:2])
        assert cluster.status["error"] == "all trainers are lost before the work was done"
        assert cluster.beat("server", 0).order == "fail"

    def test_a_trainer_that_is_lost_after_the_others_have_finished_is_no_failure(self) -> None:
        cluster = Cluster()
        cluster.ask(Leave("trainer", 0, 100, {}))
        cluster.pass_time(7, *EVERYBODY[:2])
        assert cluster.status["error"] is None
        assert cluster.beat("server", 0).order == "leave"


class TestLeaving:
    def _leave(self, cluster: Cluster, role: str, rank: int, **progress: Any) -> None:
        assert cluster.ask(Leave(role, rank, 100 + rank, progress)) == Done()

    def test_servers_stay_until_every_trainer_has_flushed(self) -> None:
        cluster = Cluster()
        self._leave(cluster, "trainer", 0)
        assert cluster.beat("server", 0).order == "go"
        self._leave(cluster, "trainer", 1)
        assert cluster.beat("server", 0).order == "leave"
        assert not cluster.session.over
        self._leave(cluster, "server", 0)
        self._leave(cluster, "server", 1)
        assert cluster.session.over
        assert cluster.status["phase"] == "done"

    def test_the_last_counters_come_with_the_goodbye(self) -> None:
        cluster = Cluster()
        cluster.beat("trainer", 0, pushes_sent=5)
        self._leave(cluster, "trainer", 0, pushes_sent=9)
        self._leave(cluster, "server", 0, pushes_applied=9, rows=4)
        status = cluster.status
        assert (status["pushes_sent"], status["pushes_applied"], status["rows"]) == (9, 9, 4)

    def test_a_heartbeat_that_comes_after_the_goodbye_does_not_take_its_counters_back(self) -> None:
        cluster = Cluster()
        self._leave(cluster, "trainer", 0, pushes_sent=9)
        cluster.beat("trainer", 0, pushes_sent=5)
        assert cluster.status["pushes_sent"] == 9

    def test_a_trainer_that_leaves_gives_its_leases_back(self) -> None:
        cluster = Cluster()
        cluster.open(0, leases=1)
        cluster.lease(0)
        self._leave(cluster, "trainer", 0)
        assert cluster.lease(1).epoch == 1

    def test_a_stop_tells_all_members_to_leave(self) -> None:
        cluster = Cluster()
        cluster.ask(Stop("enough", failed=False))
        assert cluster.beat("trainer", 0).order == "leave"
        assert cluster.beat("server", 0).order == "leave"

    def test_a_failed_stop_says_why(self) -> None:
        cluster = Cluster()
        cluster.ask(Stop("Ctrl-C", failed=True))
        assert (cluster.beat("trainer", 0).order, cluster.beat("trainer", 0).reason) == ("fail", "Ctrl-C")
