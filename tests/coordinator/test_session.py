"""The coordinator's machine, scene by scene: joining, leases as jobs, broken requests, what people see."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from pslib.config import ClusterConfig
from pslib.coordinator.jobs import SCORES_KEPT
from pslib.coordinator.leases import stream_of
from pslib.metrics.metrics import LOGIT_BINS, ScoreCounts
from pslib.monitor.run_state import run_state
from pslib.wire.fields import Message
from pslib.wire.messages import (
    Beat,
    Done,
    EndLease,
    Failure,
    Heartbeat,
    JobResult,
    Lease,
    Leave,
    NextLease,
    OpenJob,
    Pull,
    Registered,
    Result,
    Status,
)
from tests.support.simulated.one_coordinator import CONFIG, EVERYBODY, NO_WINDOWS, Cluster


class TestJoining:
    def test_the_answer_carries_rank_settings_and_map(self) -> None:
        answer = Cluster().register("trainer", 1)
        assert isinstance(answer, Registered)
        assert (answer.rank, answer.ready, answer.map_version) == (1, True, 1)
        assert ClusterConfig.from_dict(dict(answer.config)) == CONFIG
        assert answer.addresses == ["tcp://server:0", "tcp://server:1"]
        assert answer.owners.size == CONFIG.units

    def test_a_member_that_must_wait_is_told_for_which(self) -> None:
        answer = Cluster(trainers=0).register("trainer", 0)
        assert (answer.ready, answer.missing) == (False, "1 of 2 trainers")

    def test_a_third_server_joins_and_its_address_is_told_to_all(self) -> None:
        cluster = Cluster()
        assert (cluster.register("server", 2).rank, cluster.beat("server", 2).order) == (2, "go")
        beat = cluster.beat("trainer", 0)
        assert (beat.map_version, beat.addresses[2]) == (2, "tcp://server:2")

    def test_an_unknown_role_is_refused(self) -> None:
        assert Cluster().register("chief", 0).code == "configuration"

    def test_a_map_is_sent_only_to_a_member_that_does_not_have_it(self) -> None:
        cluster = Cluster()
        assert cluster.beat("trainer", 0, version=1).owners.size == 0
        assert cluster.beat("trainer", 0, version=0).owners.size == CONFIG.units


class TestJobs:
    def test_leases_are_streams_and_end_once_all_their_batches_are_applied(self) -> None:
        cluster = Cluster()
        cluster.open(0)
        assert cluster.lease(0) == Lease("held", stream_of(0, 0), 0, 0, 0)
        assert cluster.lease(1) == Lease("held", stream_of(0, 1), 1, 0, 0)
        assert cluster.lease(0, (0,)) == Lease("held", stream_of(0, 2), 2, 0, 0)
        assert cluster.lease(1, (1,)).state == "wait"
        for rank, index in ((0, 0), (1, 1), (0, 2)):
            assert cluster.ask(JobResult(0)).values["done"] is False
            assert cluster.end(rank, index) == Done()
        assert cluster.lease(1).state == "done"
        outcome = cluster.ask(JobResult(0)).values["outcome"]
        assert (outcome["kind"], outcome["examples"]) == ("fit", 30)

    def test_all_trainers_must_say_the_same(self) -> None:
        cluster = Cluster()
        assert cluster.open(0) == Done()
        assert cluster.open(1) == Done()
        answer = cluster.open(1, fingerprint=6)
        assert answer.code == "configuration"
        assert "all trainers must run the same script" in answer.text
        assert cluster.open(1, what="evaluate").code == "configuration"

    @pytest.mark.parametrize(
        "wrong",
        [
            {"checkpoint": 5},
            {"checkpoint": {"every_s": "soon"}},
            {"checkpoint": {"every_batches": -1}},
            {"checkpoint": {"every_s": float("nan")}},
            {"examples": "many"},
            {"lease_rows": 0.5},
            {"batch_rows": -1},
            {"epochs": 1.5},
            {"first_epoch": -1},
        ],
    )
    def test_details_with_which_nothing_could_be_computed_are_refused(self, wrong: dict[str, Any]) -> None:
        """They are in the journal else, and end the coordinator and each that comes after it."""
        cluster = Cluster()
        answer = cluster.open(0, details={"epochs": 1, "examples": 30} | wrong)
        assert (answer.code, answer.text[:5]) == ("configuration", "fit: ")
        assert ": expected a " in answer.text
        assert not cluster.session.registry.jobs
        cluster.pass_time(2.0, *EVERYBODY)
        assert cluster.status["error"] is None

    def test_what_is_no_number_in_a_heartbeat_is_not_counted(self) -> None:
        cluster = Cluster()
        cluster.open(0, details={"checkpoint": {"every_s": 1000.0}})
        cluster.beat("trainer", 0, staleness_count=3, pushes_sent=5, loss_sum=float("nan"))
        odd = ("many", [1], None, {"a": 1}, float("nan"), True)
        for value in odd:
            for name in ("staleness_count", "pushes_sent", "staleness_max"):
                cluster.beat("trainer", 0, **{name: value})
            for name in ("rows", "memory_bytes", "pushes_applied"):
                cluster.beat("server", 0, **{name: value})
        cluster.pass_time(2.0, *EVERYBODY)
        status = cluster.status
        assert [status[name] for name in ("staleness_count", "pushes_sent", "rows")] == [3, 5, 0]

    def test_a_job_can_not_be_opened_before_its_turn(self) -> None:
        assert Cluster().open(0, job=2).code == "configuration"

    def test_a_job_without_leases_is_done_at_once(self) -> None:
        cluster = Cluster()
        cluster.open(0, leases=0)
        assert cluster.ask(JobResult(0)).values["done"] is True
        assert cluster.lease(0).state == "done"

    def test_servers_hear_below_which_stream_all_is_done(self) -> None:
        cluster = Cluster()
        cluster.open(0, leases=2)
        cluster.lease(0)
        cluster.end(0, 0)
        assert cluster.beat("server", 0).streams_done_below == stream_of(0, 1)
        cluster.lease(0)
        cluster.end(0, 1)
        assert cluster.beat("server", 0).streams_done_below == stream_of(1, 0)

    def test_scores_of_a_lease_count_once_and_are_merged_exactly(self) -> None:
        cluster = Cluster()
        cluster.open(0, leases=2, what="evaluate")
        rng = np.random.default_rng(1)
        scores, labels = rng.random(40).astype(np.float32), rng.random(40) < 0.4
        for rank in range(2):
            cluster.lease(rank)
        for rank, half in enumerate((slice(0, 20), slice(20, 40))):
            counts = ScoreCounts.of(scores[half], labels[half])
            payload = dict(zip(("scores", "positives", "negatives"), counts.to_arrays(), strict=True))
            for _ in range(2):  # the answer was lost
                assert cluster.end(rank, rank, payload=payload) == Done()
        outcome = cluster.ask(JobResult(0)).values["outcome"]
        whole = ScoreCounts.of(scores, labels)
        assert outcome["auc"] == whole.auc()
        assert outcome["examples"] == 40

    def test_scores_of_many_leases_take_the_memory_of_the_distinct_ones(self) -> None:
        cluster = Cluster()
        cluster.open(0, leases=100, what="evaluate")
        counts = ScoreCounts.of(np.float32([0.25, 0.5]), np.array([0, 1])).to_arrays()
        payload = dict(zip(("scores", "positives", "negatives"), counts, strict=True))
        for index in range(99):
            cluster.lease(0, tuple(range(index)))
            cluster.end(0, index, payload=payload)
        kept = cluster.session.registry.jobs[0].scores
        assert sum(part.scores.size for part in kept) <= 2 * SCORES_KEPT
        assert sum(part.examples for part in kept) == 198

    @pytest.mark.parametrize(
        ("what", "payload"),
        [
            ("evaluate", {"scores": np.zeros(1, np.float32)}),
            ("fit", {"words": np.frombuffer(b'{"examples": 7}', np.uint8)}),  # a window's alone
        ],
    )
    def test_a_lease_with_a_payload_that_does_not_fit_is_not_over(
        self, what: str, payload: dict[str, Any]
    ) -> None:
        cluster = Cluster()
        cluster.open(0, leases=1, what=what)
        cluster.lease(0)
        assert isinstance(cluster.end(0, 0, payload=payload), Failure)
        assert cluster.ask(JobResult(0)).values["done"] is False

    @pytest.mark.parametrize("text", [b"[1]", b'"done"', b"{", b"\xff", b"1"])
    def test_words_that_are_no_outcome_leave_a_window_open_for_another_look(self, text: bytes) -> None:
        cluster = Cluster()
        cluster.open(0, leases=1, what="window")
        cluster.lease(0)
        assert isinstance(cluster.end(0, 0, payload={"words": np.frombuffer(text, np.uint8)}), Failure)
        assert cluster.ask(JobResult(0)).values["done"] is False
        found = np.frombuffer(b'{"files": ["a"]}', np.uint8)
        assert isinstance(cluster.end(0, 0, payload={"words": found}), Done)
        assert cluster.ask(JobResult(0)).values["outcome"]["files"] == ["a"]

    @pytest.mark.parametrize("stream", [3, stream_of(1, 0), 2**64 - 1])
    def test_a_stream_that_is_no_lease_of_the_job_is_refused(self, stream: int) -> None:
        cluster = Cluster()
        cluster.open(0)
        assert cluster.ask(EndLease(0, 100, 0, stream, 0, {})).code == "configuration"

    def test_only_members_get_leases(self) -> None:
        cluster = Cluster()
        cluster.open(0)
        assert cluster.ask(NextLease(0, 999, 0, np.empty(0, np.uint64))).code == "fenced"
        assert cluster.ask(NextLease(9, 100, 0, np.empty(0, np.uint64))).code == "fenced"
        assert cluster.lease(0, job=7).code == "configuration"


class TestBrokenRequests:
    """One bad request must not end the one process that all others need."""

    @pytest.mark.parametrize(
        "message",
        [
            Pull({}, NO_WINDOWS),
            Beat("go", "", 0, 0, [], np.empty(0, np.uint16)),
            JobResult(2**64 - 1),
            OpenJob(0, 2**64 - 1, "fit", 1, {}, NO_WINDOWS),
            OpenJob(2**64 - 1, 0, "x" * 4000, 1, {}, NO_WINDOWS),
            Heartbeat("trainer", 0, 100, 1, {"streams": 5}),
            Heartbeat("trainer", 0, 100, 1, {"streams": [["a", "b"]]}),
            Heartbeat("trainer", 2**64 - 1, 100, 1, {}),
            EndLease(0, 100, 0, 0, 0, {"scores": np.zeros(3)}),
            Leave("trainer", 99, 100, {}),
        ],
    )
    def test_are_answered_and_the_session_goes_on(self, message: Message) -> None:
        cluster = Cluster()
        cluster.open(0)
        assert isinstance(cluster.ask(message), Failure | Beat | Done)
        assert cluster.lease(1).state == "held"
        assert cluster.status["trainers"] == 2

    @pytest.mark.parametrize(
        ("entry", "value"),
        [
            ("bins_positive", [1, 2]),
            ("bins_negative", ["many"] * LOGIT_BINS),
            ("bins_negative", [2**64 - 1] * LOGIT_BINS),
            ("tables", 5),
            ("tables", {"embedding": {"rows": "many"}}),
            ("field_names", 5),
            ("field_keys", [0.5]),
            ("field_batches", "many"),
            ("jobs_waiting", 5),
            ("waits", [["tcp://server:0"]]),
            ("step_waits", [5]),
            ("credit_bytes", "many"),
            ("rows", "many"),
        ],
    )
    def test_entries_of_a_heartbeat_that_no_status_can_be_made_of_are_left_out(
        self, entry: str, value: Any
    ) -> None:
        cluster = Cluster()
        fields = {"field_names": ["user"], "field_keys": [4], "field_distinct": [2], "field_batches": 1}
        for role in ("server", "trainer"):
            assert cluster.beat(role, 0, **{**fields, entry: value, "examples": 7}).order == "go"
        assert cluster.status["trainers"] == 2
        told = cluster.ask(Status(True))
        assert isinstance(told, Result)
        assert [one.get(entry) for one in told.values["members"] if one["rank"] == 0] == [None, None]
        assert told.values["loss_examples"] == 7
        assert json.dumps(run_state(told.values))


class TestStatus:
    def test_what_is_done_counts_at_once_and_a_loss_with_the_examples_that_came_with_it(self) -> None:
        cluster = Cluster()
        cluster.open(0, leases=1, details={"epochs": 1, "examples": 30, "lease_rows": 30, "batch_rows": 10})
        cluster.lease(0)
        cluster.beat("trainer", 0, examples=20, loss_sum=12.0, streams=[[0, 2]])
        assert (cluster.status["examples"], cluster.status["loss_examples"]) == (20, 20)
        cluster.end(0, 0)
        assert (cluster.status["examples"], cluster.status["loss_examples"]) == (30, 20)
        assert cluster.status["loss_sum"] == 12.0

    def test_a_call_of_many_jobs_is_told_as_a_whole_until_it_is_over(self) -> None:
        cluster = Cluster(trainers=2)
        cluster.open(0, details={"epochs": 2, "examples": 60, "epochs_to_come": 3})
        assert (cluster.status["epochs"], cluster.status["examples_total"]) == (5, 150)
        cluster.open(0, job=1, details={"epochs": 2, "examples": 60, "epochs_to_come": 1})
        assert (cluster.status["epochs"], cluster.status["examples_total"]) == (5, 150)
        for role in ("trainer", "server"):
            for rank in range(2):
                cluster.ask(Leave(role, rank, 100 + rank, {}))
        assert cluster.session.over
        assert (cluster.status["epochs"], cluster.status["examples_total"]) == (4, 120)

    def test_epochs_are_those_of_the_training_also_where_it_began_in_an_earlier_run(self) -> None:
        cluster = Cluster()
        cluster.open(0, leases=4, details={"epochs": 2, "first_epoch": 3, "epochs_to_come": 1})
        assert (cluster.status["epoch"], cluster.status["epochs"]) == (3, 6)
        for index in range(2):
            cluster.lease(0)
            cluster.end(0, index)
        assert (cluster.status["epoch"], cluster.status["epochs"]) == (4, 6)

    def test_a_phase_of_waiting_says_for_what(self) -> None:
        cluster = Cluster(trainers=0)
        assert cluster.status["phase"] == "waiting for 2 of 2 trainers"
        cluster.register("trainer", 0)
        assert cluster.status["phase"] == "waiting for 1 of 2 trainers"
        cluster.register("trainer", 1)
        assert cluster.status["phase"] == "waiting for the first call of the trainers"
        cluster.open(0, leases=1)
        assert cluster.status["phase"] == "training"
        cluster.lease(0)
        cluster.end(0, 0)
        assert cluster.status["phase"] == "epoch 1 done"
        for rank in range(2):
            cluster.ask(Leave("trainer", rank, 100 + rank, {}))
        assert cluster.status["phase"] == "waiting for 2 servers to leave"

    def test_a_status_names_the_trainers_that_have_left_in_order_and_those_that_are_lost(self) -> None:
        """By the process: a launcher has others, which never came, and waits for none of them."""
        cluster = Cluster(trainers=2)
        trainers = cluster.session.members.trainers
        cluster.ask(Leave("trainer", 0, 100, {}))
        cluster.session.members.lose(cluster.now_s, trainers[1])
        assert cluster.status["trainers_left"] == [trainers[0].where] == ["pid 7 on host"]
        assert cluster.status["trainers_lost"] == [trainers[1].where]

    def test_a_look_changes_nothing(self) -> None:
        cluster = Cluster(trainers=2)
        before = cluster.session.members.plain()
        assert cluster.status["phase"].startswith("waiting")
        assert cluster.session.members.plain() == before
